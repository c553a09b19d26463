// The functions of libisthmus_cuda that launch kernels: the same passes, each run by one group of one thread. How
// passes are cut into groups changes no result; tests/cpp/emulated_device.h is for whether that is so.
#define ISTHMUS_KERNEL_NAMESPACE fake

#include <cstring>
#include <memory>
#include <utility>

#include "fake_runtime.h"
#include "kernels/cuda_codecs.h"
#include "kernels/cuda_values.h"
#include "kernels/none_sequence.h"
#include "kernels/tagc_sequence.h"
#include "kernels/values_sequence.h"

namespace isthmus::fake_gpu {
namespace {

// See kernels/group.h for what the members mean.
class OneThread {
 public:
  explicit OneThread(std::byte* shared_memory) : shared_(shared_memory) {}

  static constexpr int64_t thread() { return 0; }
  static constexpr int64_t size() { return 1; }
  static constexpr int64_t group_number() { return 0; }
  static constexpr int64_t num_groups() { return 1; }
  template <typename T>
  T& shared() const {
    return *reinterpret_cast<T*>(shared_);
  }

  static void sync() {}
  static bool any(bool condition) { return condition; }
  static uint64_t sum(uint64_t value) { return value; }
  static uint32_t exclusive_sum(uint32_t value, uint32_t& total) {
    total = value;
    return 0;
  }

  static bool is_last(uint32_t&) { return true; }
  static void publish(uint32_t& word, uint32_t value) { word = value; }

  template <typename Word>
  static Word fetch_or(Word& word, Word operand) {
    return std::exchange(word, word | operand);
  }
  template <typename Word>
  static Word fetch_add(Word& word, Word operand) {
    return std::exchange(word, word + operand);
  }
  static uint32_t fetch_max(uint32_t& word, uint32_t operand) { return std::exchange(word, std::max(word, operand)); }
  static uint32_t fetch_min(uint32_t& word, uint32_t operand) { return std::exchange(word, std::min(word, operand)); }
  static void apply_xor(uint32_t& word, uint32_t operand) { word ^= operand; }

 private:
  std::byte* shared_;
};

// See kernels/tagc_sequence.h.
class Executor {
 public:
  explicit Executor(void* stream) { check_stream(static_cast<cudaStream_t>(stream), "launch"); }

  void clear(void* memory, int64_t bytes) { std::memset(memory, 0, bytes); }

  template <typename Pass>
  void run(const Pass& pass, int64_t, int64_t shared_bytes) {
    constexpr int kGarbage = 0xa5;
    const auto shared = std::make_unique<std::byte[]>(shared_bytes);
    std::memset(shared.get(), kGarbage, shared_bytes);
    OneThread group(shared.get());
    pass(group);
  }
};

}  // namespace
}  // namespace isthmus::fake_gpu

#pragma GCC visibility push(default)
namespace isthmus::kernels {

using fake_gpu::Executor;

void cuda_encode_tagc(const TagcEncodeJob& job, void* stream) {
  Executor executor(stream);
  fake::encode_tagc(executor, job);
}

void cuda_decode_tagc(const TagcDecodeJob& job, void* stream) {
  Executor executor(stream);
  fake::decode_tagc(executor, job);
}

void cuda_encode_none(const NoneEncodeJob& job, void* stream) {
  Executor executor(stream);
  fake::encode_none(executor, job);
}

void cuda_decode_none(const NoneDecodeJob& job, void* stream) {
  Executor executor(stream);
  fake::decode_none(executor, job);
}

void cuda_set_context(DeviceContext* context, DeviceContext value, void* stream) {
  const Executor executor(stream);
  *context = value;
}

void cuda_next_step(DeviceContext* context, void* stream) {
  const Executor executor(stream);
  ++context->step;
}

void cuda_convert(ConstBuffer in, Buffer out, void* stream) {
  Executor executor(stream);
  fake::convert(executor, in, out);
}

void cuda_convert_scaled(ConstBuffer in, double scale, Buffer out, void* stream) {
  Executor executor(stream);
  fake::convert_scaled(executor, in, scale, out);
}

void cuda_multiply(Buffer values, double factor, void* stream) {
  Executor executor(stream);
  fake::multiply(executor, values, factor);
}

void cuda_end_step(DeviceCounts* counts, bool is_skipped, void* stream) {
  Executor executor(stream);
  fake::end_step(executor, counts, is_skipped);
}

}  // namespace isthmus::kernels
#pragma GCC visibility pop
