#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <initializer_list>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "communicator/plan/policy.h"
#include "isthmus/codec_type.h"
#include "isthmus/error.h"
#include "isthmus/options.h"
#include "tests/cpp/support/error_of.h"

namespace isthmus::test {
namespace {

const OptionField& field_named(const std::string& name) {
  for (const OptionField& field : option_fields()) {
    if (field.name == name) {
      return field;
    }
  }
  throw std::out_of_range(name);
}

using Variables = std::vector<std::pair<std::string, std::string>>;

// Sets environment variables until the end of the test.
class Environment {
 public:
  explicit Environment(Variables variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const auto& [name, value] : variables_) {
      unsetenv(name.c_str());
    }
  }

 private:
  Variables variables_;
};

TEST(Options, DefaultsAreValidAndPrintEveryFieldInOrder) {
  const Options options;
  EXPECT_NO_THROW(options.validate());
  EXPECT_EQ(options.to_string(),
            "nodes=\"\" codec=quant tiers=two inter_tier=gloo bits=4 error_feedback=codec sparsity=0.9875 ratio=10 "
            "dense_steps=0 segments=0 error_interval=100 "
            "units=* gradients=labelled min_elements=65536 "
            "weights=plain replica_interval=100 max_units=4096 "
            "device_timings=false log=warning");
}

TEST(Options, EveryVariableIsNamedAfterItsField) {
  std::set<std::string> names;
  for (const OptionField& field : option_fields()) {
    std::string expected = std::string("ISTHMUS_") + field.name;
    for (char& letter : expected) {
      letter = static_cast<char>(std::toupper(letter));
    }
    EXPECT_EQ(field.environment, expected);
    EXPECT_TRUE(names.insert(field.name).second) << field.name << " is listed twice";
    EXPECT_NE(std::string(field.help), "");
  }
}

struct Range {
  const char* field;
  std::vector<std::string> accepted;
  std::vector<std::string> rejected;
};

TEST(Options, RangesAtTheirEdges) {
  const std::vector<Range> ranges = {
      {"nodes", {"", "2x4", "0,1|2,3", "islands"}, {"island", "Islands", "2 x 4", "-1", "0;1"}},
      {"codec", {"none", "tagc", "quant"}, {"", "TAGC", "tagc ", "zstd"}},
      {"tiers", {"two", "flat"}, {"", "2", "three"}},
      {"inter_tier", {"gloo", "mpi"}, {"", "nccl", "MPI"}},
      {"bits", {"1", "5", "8"}, {"-1", "0", "9", "2.5", ""}},
      {"error_feedback", {"codec", "on", "off"}, {"", "true"}},
      {"dense_steps", {"0", "1000000"}, {"-1", "5%"}},
      {"segments", {"0", "64"}, {"-1", "65"}},
      {"error_interval", {"0", "1"}, {"-1", "1.5"}},
      {"ratio", {"1", "64", "2.5"}, {"0", "0.999", "64.001", "nan", "inf", "-2", "", "10x", " 10"}},
      {"sparsity", {"0", "0.9875", "0.999999"}, {"1", "-0.001", "nan", "98.75%", ""}},
      {"units", {"*", "*.mlp.*,!*.0.*", "!head", "a, b"}, {"", ",", "*,", "!", "a,!"}},
      {"gradients", {"labelled", "backward"}, {"", "labeled", "Backward", "all"}},
      {"min_elements", {"0", "9223372036854775807"}, {"-1", "9223372036854775808", "1e6"}},
      {"weights", {"plain", "delta"}, {"", "none", "DELTA"}},
      {"replica_interval", {"0", "1", "100000"}, {"-1", "1.5"}},
      {"max_units", {"1", "100000"}, {"0", "-1"}},
      {"device_timings", {"1", "true", "yes", "0", "false", "no"}, {"", "2", "on"}},
      {"log", {"debug", "info", "warning", "error"}, {"", "trace", "WARNING"}},
  };
  ASSERT_EQ(ranges.size(), option_fields().size());
  for (const Range& range : ranges) {
    const OptionField& field = field_named(range.field);
    for (const std::string& text : range.accepted) {
      Options options;
      EXPECT_NO_THROW(field.set(options, text)) << range.field << "=" << text;
      EXPECT_NO_THROW(options.validate()) << range.field << "=" << text;
      Options copy;
      field.set(copy, field.get(options));
      EXPECT_EQ(copy.to_string(), options.to_string()) << "what get() returns, set() takes";
    }
    for (const std::string& text : range.rejected) {
      Options options;
      EXPECT_EQ(error_of<OptionError>([&] { field.set(options, text); }),
                "option " + std::string(range.field) + "=\"" + text + "\": expected " + std::string(field.range));
      EXPECT_EQ(options.to_string(), Options().to_string()) << "a refused value changes nothing";
    }
  }
}

TEST(Options, ValidateSeesFieldsThatWereSetDirectly) {
  Options options;
  options.sparsity = 1;
  EXPECT_EQ(error_of<OptionError>([&] { options.validate(); }),
            "option sparsity=\"1\": expected at least 0, less than 1");
}

TEST(Options, EnvironmentOverridesDefaults) {
  const Environment environment(
      Variables{{"ISTHMUS_NODES", "2x2"}, {"ISTHMUS_RATIO", "4"}, {"ISTHMUS_WEIGHTS", "delta"}, {"ISTHMUS_CODEC", ""}});
  const Options options = Options::from_environment();
  EXPECT_EQ(options.nodes, "2x2");
  EXPECT_EQ(options.ratio, 4);
  EXPECT_EQ(options.weights, WeightForm::kDelta);
  EXPECT_EQ(options.codec, "quant") << "an empty variable is as good as none";
}

TEST(Options, EnvironmentNamesTheVariable) {
  const Environment environment(Variables{{"ISTHMUS_TIERS", "three"}});
  EXPECT_EQ(error_of<OptionError>(Options::from_environment),
            "environment variable ISTHMUS_TIERS=\"three\": expected two or flat");
}

std::set<std::string> unused_fields(const Options& options) {
  std::set<std::string> names;
  for (const OptionField& field : option_fields()) {
    if (!options.uses(field)) {
      names.insert(field.name);
    }
  }
  return names;
}

using Names = std::set<std::string>;

TEST(Options, EachCodecUsesItsOwn) {
  const Names of_quant = {"bits"};
  const Names of_tagc = {"sparsity", "ratio"};
  const Names of_lossy = {"error_feedback", "dense_steps", "error_interval"};
  const auto all = [](std::initializer_list<Names> parts) {
    Names names;
    for (const Names& part : parts) {
      names.insert(part.begin(), part.end());
    }
    return names;
  };
  Options options;
  options.codec = "quant";
  EXPECT_EQ(unused_fields(options), of_tagc);
  options.codec = "tagc";
  EXPECT_EQ(unused_fields(options), of_quant);
  options.codec = "none";
  EXPECT_EQ(unused_fields(options), all({of_quant, of_tagc, of_lossy}));
}

// What codecs are made with is what they are said to use, and they are not said to use more.
TEST(Options, CodecsAreMadeWithWhatTheyUse) {
  for (const std::string& codec : codec_names()) {
    Options options;
    options.codec = codec;
    for (const OptionField& field : option_fields()) {
      const bool is_setting = options.codec_settings().find(' ' + std::string(field.name) + '=') != std::string::npos;
      EXPECT_TRUE(!is_setting || options.uses(field)) << codec << ' ' << field.name;
    }
  }
}

TEST(Options, DifferentOptionsPrintDifferently) {
  Options spaces;
  spaces.units = "a codec=none";
  Options quotes;
  quotes.units = "\"a codec=none\"";
  EXPECT_NE(spaces.to_string(), quotes.to_string());
  Options close;
  close.sparsity = 0.98750000000000004 + 1e-16;
  EXPECT_NE(close.to_string(), Options().to_string());
}

TEST(Policy, UnitsByName) {
  EXPECT_TRUE(unit_is_compressed("*", ""));
  EXPECT_TRUE(unit_is_compressed("*", "blocks.1"));
  EXPECT_TRUE(unit_is_compressed("*.mlp", "blocks.1.mlp"));
  EXPECT_FALSE(unit_is_compressed("*.mlp", "blocks.1.attn"));
  EXPECT_FALSE(unit_is_compressed("*,!*attn*", "blocks.1.attn"));
  EXPECT_FALSE(unit_is_compressed("!*attn*,*", "blocks.1.attn"));
  EXPECT_TRUE(unit_is_compressed("!*attn*", "blocks.1.mlp"));
  EXPECT_TRUE(unit_is_compressed("head , blocks.? ", "blocks.1"));
  EXPECT_FALSE(unit_is_compressed("head,blocks.?", "blocks.10"));
  EXPECT_TRUE(unit_is_compressed("blocks.[0-3]", "blocks.2"));
}

TEST(Policy, AGlobMeansTheUnitsOfThatNameInEveryModelOfTheGroup) {
  const std::string second = with_ordinal("lm_head", 1);
  const std::string tenth = with_ordinal("lm_head", 9);
  EXPECT_EQ(with_ordinal("lm_head", 0), "lm_head");
  EXPECT_EQ(second, "lm_head (2)");
  for (const std::string& name : {second, tenth}) {
    EXPECT_FALSE(unit_is_compressed("!lm_head,*", name)) << name;
    EXPECT_TRUE(unit_is_compressed("lm_head", name)) << name;
    EXPECT_TRUE(unit_is_compressed("!head", name)) << name;
  }
  EXPECT_FALSE(unit_is_compressed("!lm_head (2)", second));
  EXPECT_TRUE(unit_is_compressed("!lm_head (2)", tenth));
  EXPECT_TRUE(unit_is_compressed("!lm_head (2)", "lm_head"));
  for (const char* name : {"lm_head (x)", "lm_head ()", "lm_head(2)", "lm_head (2", "lm_head (2) "}) {
    EXPECT_TRUE(unit_is_compressed("!lm_head", name)) << name;
  }
}

TEST(Policy, WhatAMessageCallsAUnitMeansThisUnitAlone) {
  EXPECT_EQ(glob_of("blocks.0"), "blocks.0");
  EXPECT_EQ(glob_of("embed, norm, head"), "embed[,] norm[,] head");
  EXPECT_EQ(glob_of("blocks.0 [2]"), "blocks.0 [[]2]");
  EXPECT_EQ(glob_of(""), "");
  const std::vector<std::string> names = {"embed, norm, head",
                                          "embed",
                                          "norm",
                                          "head",
                                          "blocks.0",
                                          "blocks.0 [2]",
                                          "blocks.0 2",
                                          "policy/embed",
                                          "a*b",
                                          "axb",
                                          "a?b",
                                          "a[b]c",
                                          "abc",
                                          "a]b",
                                          "a\\b",
                                          "a[",
                                          "[",
                                          "[,]",
                                          "[!a]",
                                          "b",
                                          " spaces ",
                                          "spaces",
                                          "!negated",
                                          "a\"quote",
                                          "a,b[c",
                                          "[^x],[]]",
                                          ",",
                                          "a, b (2)"};
  for (const std::string& meant : names) {
    for (const std::string& other : names) {
      const bool is_meant = meant == other;
      EXPECT_EQ(unit_is_compressed(glob_of(meant), other), is_meant) << glob_of(meant) << " of " << other;
      EXPECT_EQ(unit_is_compressed("!" + glob_of(meant), other), !is_meant) << glob_of(meant) << " of " << other;
      EXPECT_EQ(unit_is_compressed("none, " + glob_of(meant) + " ,!blocks.0", other), is_meant && other != "blocks.0");
    }
  }
}

TEST(Policy, WhatStandsInBracketsSeparatesNothing) {
  using Globs = std::vector<std::string>;
  EXPECT_EQ(split_globs(" a , b c,"), (Globs{"a", "b c", ""}));
  EXPECT_EQ(split_globs(""), Globs{""});
  EXPECT_EQ(split_globs("a[,]b,c"), (Globs{"a[,]b", "c"}));
  EXPECT_EQ(split_globs("[!,],[^,],[],],[!],]"), (Globs{"[!,]", "[^,]", "[],]", "[!],]"}));
  EXPECT_EQ(split_globs("a[b,c"), (Globs{"a[b", "c"}));
  EXPECT_EQ(split_globs("a["), Globs{"a["});
}

}  // namespace
}  // namespace isthmus::test
