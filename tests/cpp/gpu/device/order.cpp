// Streams and events of a device: what is ordered comes after, what is not asked for does not wait.
#include <chrono>
#include <thread>

#include "tests/cpp/gpu/device/tests.h"

namespace isthmus::gpu {
namespace {

constexpr int64_t kManyElements = 8 << 20;

void wait_until(const std::function<bool()>& condition, const std::string& what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    require(std::chrono::steady_clock::now() < deadline, what + ": not within 20 s");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

HostArray ones(int64_t num_elements) {
  return {std::vector<float>(static_cast<size_t>(num_elements), 1), DataType::kFloat32};
}

// Two lanes that change the same values by turns: without the order between them some change would be lost.
void check_ping_pong(Gpu& gpu, int64_t num_elements) {
  Device& device = gpu.device();
  const DeviceArray values(device, ones(num_elements).view());
  for (int i = 0; i < 50; ++i) {
    const auto here = static_cast<Lane>(i % kNumLanes);
    const auto next = static_cast<Lane>((i + 1) % kNumLanes);
    device.multiply(values.buffer(), i % 2 == 0 ? 4 : .5, device.lane(here));
    device.order(device.lane(here), device.lane(next));
  }
  const HostArray result = values.get();  // 4 and a half, 25 times each: 2^25
  for (int64_t i = 0; i < num_elements; ++i) {
    require(result.view().as<float>()[i] == 0x1p25F, "element " + std::to_string(i) + " is wrong");
  }
}

void check_events(Gpu& gpu, int64_t num_elements) {
  Device& device = gpu.device();
  const Stream lane = device.lane(Lane::kInter);
  const Stream own = gpu.make_stream();
  const DeviceArray from(device, ones(num_elements).view());
  const DeviceArray to(device, num_elements, DataType::kFloat64);
  const DeviceArray copy(device, num_elements, DataType::kFloat32);
  const EventPtr begin = device.make_event();
  const EventPtr end = device.make_event();
  device.wait(end, own);  // never recorded: waits for nothing
  device.record(begin, lane);
  device.convert(from.buffer(), to.buffer(), lane);
  device.record(end, lane);
  device.wait(end, own);
  device.convert(to.buffer(), copy.buffer(), own);
  require(first_difference(copy.get().view(), ones(num_elements).view()) < 0, "did not wait for the event");
  wait_until([&] { return device.done(begin) && device.done(end); }, "the events are done");
  const std::optional<double> seconds = device.seconds_between(begin, end);
  require(seconds.has_value() && *seconds >= 0 && *seconds < 10, "no time between two events that have passed");
  require(device.capture(own) == 0, "a stream is said to be captured");
}

void check_lanes(Gpu& gpu) {
  Device& device = gpu.device();
  for (int i = 0; i < kNumLanes; ++i) {
    for (int j = 0; j < i; ++j) {
      require(device.lane(static_cast<Lane>(i)).handle != device.lane(static_cast<Lane>(j)).handle,
              "two lanes are one stream");
    }
  }
}

}  // namespace

void add_order(bool is_short) {
  const int64_t num_elements = is_short ? 1025 : kManyElements;
  add_test("Device", "lanes are streams of their own", [] { check_lanes(*make_gpu()); });
  add_test("Device", "lanes by turns", [=] { check_ping_pong(*make_gpu(), num_elements); });
  add_test("Device", "events", [=] { check_events(*make_gpu(), num_elements); });
}

}  // namespace isthmus::gpu
