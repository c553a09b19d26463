// The tests on an emulated GPU, whose passes run on groups of emulated threads: test_device_emulated THREADSxGROUPS
// [at-once] [--short] [GoogleTest's arguments]. Barriers and orders that are missing in a pass are seen here, and by
// ThreadSanitizer where threads run at once.
#include "tests/cpp/emulated/emulated_gpu.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "tests/cpp/gpu/device/tests.h"

namespace isthmus::gpu {
namespace {

using test::EmulatedDevice;

EmulatedDevice::Cut cut;

class Emulated final : public Gpu {
 public:
  Emulated() : device_(1, cut) {}
  ~Emulated() override {
    device_.synchronize();
    for (const std::string& complaint : device_.take_complaints()) {
      ADD_FAILURE() << "the emulated GPU complains: " << complaint;
    }
  }

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

std::unique_ptr<Gpu> make_gpu() { return std::make_unique<Emulated>(); }

}  // namespace isthmus::gpu

int main(int argc, char** argv) {
  auto& cut = isthmus::gpu::cut;
  if (argc < 2 || std::sscanf(argv[1], "%ldx%ld", &cut.num_threads, &cut.max_groups) != 2) {
    std::fprintf(stderr, "usage: %s THREADSxGROUPS [at-once] [--short] [GoogleTest's arguments]\n", argv[0]);
    return 2;
  }
  const bool at_once = argc > 2 && std::string(argv[2]) == "at-once";
  cut.threads = at_once ? isthmus::test::EmulatedDevice::Threads::kAtOnce : cut.threads;
  const int taken = at_once ? 2 : 1;
  argv[taken] = argv[0];
  return isthmus::gpu::run_tests(argc - taken, argv + taken);
}
