// What an emulated GPU does with memory: each operation is work of a stream, but for reading and writing by the host.
#define ISTHMUS_KERNEL_NAMESPACE emulated

#include <algorithm>
#include <cstring>

#include "codec/gpu_device.h"
#include "isthmus/error.h"
#include "kernels/elementwise/run_passes.h"
#include "tests/cpp/emulated/emulated_gpu.h"
#include "tests/cpp/emulated/emulated_launcher.h"

namespace isthmus::test {

void EmulatedGpu::read(ConstBuffer from, Buffer to_host) {
  complain_in_capture("the host reads the device's memory");
  check_uses("read", {reads(from)});
  synchronize();
  isthmus::convert(memory_->behind(from), to_host);
}

void EmulatedGpu::write(ConstBuffer from_host, Buffer to) {
  complain_in_capture("the host writes the device's memory");
  check_uses("write", {writes(to)});
  synchronize();
  isthmus::convert(from_host, memory_->behind(to));
}

// Elements of one type are copied, as on CUDA.
void EmulatedGpu::copy_to_host(ConstBuffer from, Buffer to_host, Stream stream) {
  complain_in_capture("a copy to the host");
  enqueue(stream, "copy to the host", {reads(from)},
          [source = memory_->behind(from), to_host] { isthmus::convert(source, to_host); });
}

void EmulatedGpu::convert(ConstBuffer in, Buffer out, Stream stream) {
  enqueue(stream, "convert", {reads(in), writes(out)}, [this, from = memory_->behind(in), to = memory_->behind(out)] {
    if (from.dtype == to.dtype) {
      isthmus::convert(from, to);
    } else {
      launcher_->on_executor([&](auto& executor) { kernels::emulated::convert(executor, from, to); });
    }
  });
}

void EmulatedGpu::convert_scaled(ConstBuffer in, double scale, Buffer out, Stream stream) {
  enqueue(
      stream, "convert, scaled", {reads(in), writes(out)},
      [this, from = memory_->behind(in), scale, to = memory_->behind(out)] {
        launcher_->on_executor([&](auto& executor) { kernels::emulated::convert_scaled(executor, from, scale, to); });
      });
}

void EmulatedGpu::clear(Buffer buffer, Stream stream) {
  enqueue(stream, "clear", {writes(buffer)}, [to = memory_->behind(buffer)] {
    if (to.num_elements > 0) {
      std::memset(to.data, 0, static_cast<size_t>(to.bytes()));
    }
  });
}

void EmulatedGpu::multiply(Buffer values, double factor, Stream stream) {
  ISTHMUS_CHECK(Error, values.dtype == DataType::kFloat32, "multiply: elements of ", to_string(values.dtype),
                ", which must be float32");
  enqueue(stream, "multiply", {writes(values)}, [this, to = memory_->behind(values), factor] {
    launcher_->on_executor([&](auto& executor) { kernels::emulated::multiply(executor, to, factor); });
  });
}

void EmulatedGpu::add(ConstBuffer values, Buffer sum, Stream stream) {
  enqueue(stream, "add", {reads(values), writes(sum)},
          [this, from = memory_->behind(values), to = memory_->behind(sum)] {
            launcher_->on_executor([&](auto& executor) { kernels::emulated::add(executor, from, to); });
          });
}

void EmulatedGpu::add_squared_error(ConstBuffer given, ConstBuffer decoded, const std::shared_ptr<SquaredError>& error,
                                    Workspace workspace) {
  launcher_->add_squared_error(make_squared_error_job(given, decoded, error.get(), workspace.scratch), error,
                               workspace.stream);
}

void EmulatedGpu::set_contexts(kernels::DeviceContext* contexts, int count, PacketContext value, Stream stream) {
  auto* behind = static_cast<kernels::DeviceContext*>(memory_->behind(contexts));
  enqueue(stream, "set contexts", {writes(contexts, count * static_cast<int64_t>(sizeof(*contexts)))},
          [behind, count, value] {
            std::fill_n(behind, count, kernels::DeviceContext{value.unit_hash, value.step});
          });
}

void EmulatedGpu::next_step(kernels::DeviceContext* context, Stream stream) {
  auto* behind = static_cast<kernels::DeviceContext*>(memory_->behind(context));
  enqueue(stream, "next step", {writes(context, sizeof(*context))}, [behind] { ++behind->step; });
}

}  // namespace isthmus::test
