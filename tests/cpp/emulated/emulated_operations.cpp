// What an emulated GPU does with memory: each operation is work of a stream, but for reading and writing by the host.
#include <cstring>

#include "tests/cpp/emulated/emulated_gpu.h"

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

void EmulatedGpu::copy(ConstBuffer in, Buffer out, Stream stream) {
  enqueue(stream, "copy", {reads(in), writes(out)},
          [from = memory_->behind(in), to = memory_->behind(out)] { isthmus::convert(from, to); });
}

void EmulatedGpu::clear(Buffer buffer, Stream stream) {
  enqueue(stream, "clear", {writes(buffer)}, [to = memory_->behind(buffer)] {
    if (to.num_elements > 0) {
      std::memset(to.data, 0, static_cast<size_t>(to.bytes()));
    }
  });
}

}  // namespace isthmus::test
