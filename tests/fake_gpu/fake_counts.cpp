#include <time.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "fake_runtime.h"

namespace isthmus::fake_gpu {
namespace {

constexpr auto kNumCounts = static_cast<size_t>(Count::kNumCounts);
constexpr std::array<const char*, kNumCounts> kNames = {"synchronizations", "allocations", "nccl_launches"};

struct Launches {
  int64_t number = 0;
  bool is_known = true;  // what they move
  kernels::Moved moved = {};
};

// Never destroyed: memory is freed while the program ends, too.
struct Counts {
  std::mutex mutex;
  std::array<int64_t, kNumCounts> number = {};
  std::map<std::string, Launches> launches;
  std::vector<std::pair<int, int>> communicators;  // size, bound of multiprocessors
};

Counts& counts() {
  static auto* const instance = new Counts;
  return *instance;
}

thread_local int64_t device_ns = 0;
thread_local int work_depth = 0;

int64_t thread_ns() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// JSON. Names are those of types and functions: nothing in them needs to be escaped.
std::string take_text() {
  const std::lock_guard lock(counts().mutex);
  std::string text = "{\"device_ns\": " + std::to_string(std::exchange(device_ns, 0));
  for (size_t i = 0; i < kNumCounts; ++i) {
    text += std::string(", \"") + kNames[i] + "\": " + std::to_string(std::exchange(counts().number[i], 0));
  }
  text += ", \"communicators\": [";
  for (const auto& [size, most_ctas] : std::exchange(counts().communicators, {})) {
    text += (text.back() == '[' ? "[" : ", [") + std::to_string(size) + ", " + std::to_string(most_ctas) + "]";
  }
  text += "], \"launches\": {";
  for (const auto& [name, launches] : std::exchange(counts().launches, {})) {
    text += std::string(text.back() == '{' ? "" : ", ") + "\"" + name + "\": [" + std::to_string(launches.number);
    if (launches.is_known) {
      text += ", " + std::to_string(launches.moved.read) + ", " + std::to_string(launches.moved.written);
    }
    text += "]";
  }
  return text + "}}";
}

}  // namespace

void count(Count what) {
  const std::lock_guard lock(counts().mutex);
  ++counts().number[static_cast<size_t>(what)];
}

void count_launch(const std::string& name, const kernels::Moved* moved) {
  const std::lock_guard lock(counts().mutex);
  Launches& launches = counts().launches[name];
  ++launches.number;
  launches.is_known = launches.is_known && moved != nullptr;
  if (moved != nullptr) {
    launches.moved.read += moved->read;
    launches.moved.written += moved->written;
  }
}

void count_communicator(int size, int most_ctas) {
  const std::lock_guard lock(counts().mutex);
  counts().communicators.emplace_back(size, most_ctas);
}

DeviceWork::DeviceWork() : begin_ns_(work_depth++ == 0 ? thread_ns() : 0) {}

DeviceWork::~DeviceWork() {
  if (--work_depth == 0) {
    device_ns += thread_ns() - begin_ns_;
  }
}

}  // namespace isthmus::fake_gpu

// What was counted since the last call, as JSON: synchronizations, allocations, communicators made,
// launches of NCCL; other launches by name, with bytes read and written where they are known; device_ns, of the calling
// thread. Writes `size` bytes at most, with a zero at the end; returns how many the whole text takes. A text that did
// not fit is lost.
FAKE_API int64_t fake_gpu_take_counts(char* text, int64_t size) {
  const std::string whole = isthmus::fake_gpu::take_text();
  const auto fits = static_cast<size_t>(std::max<int64_t>(size - 1, 0));
  whole.copy(text, fits);
  text[std::min(fits, whole.size())] = '\0';
  return static_cast<int64_t>(whole.size()) + 1;
}
