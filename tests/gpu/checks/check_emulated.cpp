// The checks on an emulated GPU: not for what they say of it, which tests/cpp says better, but to see that they hold
// where everything is right.
#include <exception>
#include <memory>

#include "tests/cpp/emulated/emulated_gpu.h"
#include "tests/gpu/checks/check_main.h"

namespace isthmus::gpu {
namespace {

class Emulated final : public Gpu {
 public:
  Device& device() override { return device_; }
  Stream make_stream() override { return device_.make_stream(); }
  void synchronize() override { device_.synchronize(); }
  std::function<void()> capture(Stream stream, const std::function<void()>& work) override {
    device_.begin_capture(stream);
    work();
    return [this, graph = device_.end_capture(stream), stream] { device_.replay(graph, stream); };
  }
  int64_t free_bytes() override { return 0; }

 private:
  test::EmulatedGpu device_;
};

}  // namespace
}  // namespace isthmus::gpu

int main(int argc, char** argv) {
  return isthmus::gpu::check_main(argc, argv, [] { return std::make_unique<isthmus::gpu::Emulated>(); });
}
