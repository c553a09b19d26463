#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>

#include "fake_runtime.h"

namespace isthmus::fake_gpu {
namespace {

std::mutex mutex;
std::FILE* file = nullptr;  // null: nothing is traced

template <typename... Values>
void write(const char* format, Values... values) {
  const std::lock_guard lock(mutex);
  if (file != nullptr) {
    std::fprintf(file, format, values...);
  }
}

size_t this_thread() { return std::hash<std::thread::id>()(std::this_thread::get_id()); }

}  // namespace

void trace_work(const std::string& name, cudaStream_t stream, const std::vector<test::MemoryUse>& uses) {
  std::string text;
  for (const test::MemoryUse& use : uses) {
    if (!use.empty() && use.kind != test::MemoryUse::Kind::kAdd) {  // additions may meet each other
      text += (text.empty() ? "[" : ", [") + std::to_string(use.begin) + ", " + std::to_string(use.end) + ", " +
              (use.kind == test::MemoryUse::Kind::kRead ? "false]" : "true]");
    }
  }
  write("{\"name\": \"%s\", \"stream\": %zu, \"thread\": %zu, \"uses\": [%s]}\n", name.c_str(),
        reinterpret_cast<size_t>(stream), this_thread(), text.c_str());
}

void trace_record(cudaEvent_t event, cudaStream_t stream) {
  write("{\"record\": %zu, \"stream\": %zu}\n", reinterpret_cast<size_t>(event), reinterpret_cast<size_t>(stream));
}

void trace_wait(cudaStream_t stream, cudaEvent_t event) {
  write("{\"wait\": %zu, \"stream\": %zu}\n", reinterpret_cast<size_t>(event), reinterpret_cast<size_t>(stream));
}

void trace_query(cudaEvent_t event) {
  write("{\"query\": %zu, \"thread\": %zu}\n", reinterpret_cast<size_t>(event), this_thread());
}

void trace_synchronize(const char* with, const void* handle) {
  write("{\"host\": \"%s\", \"handle\": %zu}\n", with, reinterpret_cast<size_t>(handle));
}

}  // namespace isthmus::fake_gpu

using namespace isthmus::fake_gpu;

// Writes to this file from now on, a line of JSON for each call in the order of calls: work (name, stream, thread,
// and the memory that it uses: begin, end, whether it writes), {"record", "stream"}, {"wait", "stream"}, {"host",
// "handle"}, {"query", "thread"}.
// Null: no more.
FAKE_API void fake_gpu_trace(const char* path) {
  const std::lock_guard lock(mutex);
  if (file != nullptr) {
    std::fclose(file);
  }
  file = path == nullptr ? nullptr : std::fopen(path, "w");
}
// Adds a line of the caller's: torch's kernels, which Python runs.
FAKE_API void fake_gpu_trace_line(const char* line) { write("%s\n", line); }
