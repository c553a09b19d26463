#include "tests/gpu/support/checks.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>

namespace isthmus::gpu {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      result += ' ';
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string to_json(const Figures& figures) {
  std::string text;
  for (const auto& [name, value] : figures) {
    char number[32];
    std::snprintf(number, sizeof(number), "%.6g", value);
    text += (text.empty() ? "" : ", ") + quoted(name) + ": " + number;
  }
  return "{" + text + "}";
}

}  // namespace

void require(bool condition, const std::string& what) {
  if (!condition) {
    throw std::runtime_error(what);
  }
}

void Checks::run(const std::string& name, const std::function<void()>& body) {
  measure(name, [&] {
    body();
    return Figures{};
  });
}

void Checks::measure(const std::string& name, const std::function<Figures()>& body) {
  const auto is_in_name = [&](const std::string& text) { return name.find(text) != std::string::npos; };
  if (!only_.empty() && std::none_of(only_.begin(), only_.end(), is_in_name)) {
    return;
  }
  ran_ = true;
  const auto begin = std::chrono::steady_clock::now();
  const char* result = "ok";
  std::string detail;
  Figures figures;
  try {
    figures = body();
  } catch (const NotRun& reason) {
    result = "not run";
    detail = reason.what();
  } catch (const std::exception& error) {
    result = "failed";
    detail = error.what();
    failed_ = true;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("{\"check\": %s, \"result\": \"%s\", \"seconds\": %.3f, \"detail\": %s, \"figures\": %s}\n",
              quoted(name).c_str(), result, seconds, quoted(detail).c_str(), to_json(figures).c_str());
  std::fflush(stdout);
}

}  // namespace isthmus::gpu
