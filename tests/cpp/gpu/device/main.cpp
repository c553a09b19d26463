#include <gtest/gtest.h>

#include <cstdio>
#include <utility>

#include "tests/cpp/gpu/device/tests.h"

namespace isthmus::gpu {
namespace {

class Added final : public ::testing::Test {
 public:
  explicit Added(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override {
    try {
      body_();
    } catch (const NotRun& reason) {
      GTEST_SKIP() << reason.what();
    }
  }

 private:
  const std::function<void()> body_;
};

}  // namespace

void add_test(const char* suite, const std::string& name, std::function<void()> body) {
  ::testing::RegisterTest(suite, name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [body = std::move(body)]() -> ::testing::Test* { return new Added(body); });
}

int run_tests(int argc, char** argv) {
  GTEST_FLAG_SET(filter, "-Large.*");
  ::testing::InitGoogleTest(&argc, argv);
  const bool is_short = argc == 2 && std::string(argv[1]) == "--short";
  if (argc > 1 && !is_short) {
    std::fprintf(stderr, "%s: expected --short and GoogleTest's arguments, not %s\n", argv[0], argv[argc - 1]);
    return 2;
  }
  add_codecs(is_short);
  add_flat(is_short);
  add_batches();
  add_weights(is_short);
  add_arithmetic(is_short);
  add_order(is_short);
  add_faults();
  add_graphs(is_short);
  add_large();
  const int status = RUN_ALL_TESTS();
  return ::testing::UnitTest::GetInstance()->test_to_run_count() == 0 ? 1 : status;
}

}  // namespace isthmus::gpu
