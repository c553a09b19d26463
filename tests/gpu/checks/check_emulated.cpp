// The checks on an emulated GPU, whose passes run on groups of emulated threads: check_emulated THREADSxGROUPS
// [at-once] [arguments of the checks]. Barriers and orders that are missing in a pass are seen here, and by
// ThreadSanitizer where threads run at once.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "tests/cpp/emulated/emulated_gpu.h"
#include "tests/gpu/checks/suites.h"

namespace isthmus::gpu {
namespace {

using test::EmulatedDevice;

class Emulated final : public Gpu {
 public:
  explicit Emulated(EmulatedDevice::Cut cut) : device_(1, cut) {}
  ~Emulated() override {
    device_.synchronize();
    for (const std::string& complaint : device_.take_complaints()) {
      std::printf("the emulated GPU complains: %s\n", complaint.c_str());
      std::exit(1);
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
}  // namespace isthmus::gpu

int main(int argc, char** argv) {
  isthmus::test::EmulatedDevice::Cut cut;
  if (argc < 2 || std::sscanf(argv[1], "%ldx%ld", &cut.num_threads, &cut.max_groups) != 2) {
    std::fprintf(stderr, "usage: %s THREADSxGROUPS [at-once] [what to check]\n", argv[0]);
    return 2;
  }
  const bool at_once = argc > 2 && std::string(argv[2]) == "at-once";
  cut.threads = at_once ? isthmus::test::EmulatedDevice::Threads::kAtOnce : cut.threads;
  const int taken = at_once ? 2 : 1;
  return isthmus::gpu::check_main(argc - taken, argv + taken,
                                  [cut] { return std::make_unique<isthmus::gpu::Emulated>(cut); });
}
