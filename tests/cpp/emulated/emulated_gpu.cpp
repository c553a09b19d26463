#include "tests/cpp/emulated/emulated_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "kernels/weights/weight_coder.h"
#include "tests/cpp/emulated/emulated_launcher.h"

namespace isthmus::test {

struct EmulatedGpu::StreamState {
  StreamState(int stream_number, std::string stream_name, uint32_t seed)
      : number(stream_number), name(std::move(stream_name)), thread(seed) {}

  const int number;
  const std::string name;
  EmulatedStream thread;
  std::shared_ptr<EmulatedGraph> capture;  // null: what is enqueued is done
};

// What was captured: the work of each stream, and where streams wait for each other.
class EmulatedGraph {
 public:
  using Work = EmulatedStream::Work;
  enum class Step : uint8_t { kWork, kSetMark, kWaitForMark };
  struct Node {
    int stream;
    Step step;
    Work work;
    size_t mark;
  };
  struct NamedUse {
    std::string what;
    MemoryUse use;
  };

  uint64_t id = 0;
  int origin = 0;
  std::set<int> streams;
  std::vector<Node> nodes;
  std::vector<NamedUse> uses;
  size_t num_marks = 0;
  StreamOrder order;
  bool is_complete = false;
};

// Holds the place in a stream where it was last recorded.
struct EmulatedGpu::Event final : isthmus::Event {
  std::shared_ptr<Mark> mark;              // where it was not captured
  std::shared_ptr<EmulatedGraph> capture;  // where it was
  size_t mark_in_graph = 0;
  StreamOrder::Clock clock;

  bool was_recorded() const { return mark != nullptr || capture != nullptr; }
};

EmulatedGpu::EmulatedGpu(uint32_t seed, std::optional<EmulatedDevice::Cut> cut)
    : launcher_(std::make_unique<Launcher>(*this, cut)), seed_(seed) {
  add_stream("default");
  for (const char* name :
       {"intra", "encode", "inter", "decode", "gather inter", "gather intra", "encode weights", "decode weights"}) {
    lanes_.push_back(add_stream(name));
  }
}

EmulatedGpu::~EmulatedGpu() {
  finish_all_work();
  if (open_ranges_ != 0) {
    complain(std::to_string(open_ranges_) + " ranges were begun and not ended");
  }
  for (const std::string& complaint : take_complaints()) {
    ADD_FAILURE() << complaint;
  }
}

Stream EmulatedGpu::add_stream(const std::string& stream_name) {
  const auto number = static_cast<int>(streams_.size());
  streams_.push_back(std::make_unique<StreamState>(number, stream_name, seed_ + static_cast<uint32_t>(number)));
  return {streams_.back().get()};
}

Stream EmulatedGpu::make_stream() { return add_stream("caller " + std::to_string(streams_.size())); }

EmulatedGpu::StreamState& EmulatedGpu::state_of(Stream stream) {
  return stream.handle == nullptr ? *streams_.front() : *static_cast<StreamState*>(stream.handle);
}

void EmulatedGpu::complain(const std::string& text) {
  const std::lock_guard lock(mutex_);
  complaints_.push_back(text);
}

std::vector<std::string> EmulatedGpu::take_complaints() {
  const std::lock_guard lock(mutex_);
  return std::exchange(complaints_, {});
}

void EmulatedGpu::complain_in_capture(const std::string& what) {
  if (num_running_captures_ > 0) {
    complain(what + " while a graph is captured");
  }
}

void EmulatedGpu::check_uses(const std::string& what, const std::vector<MemoryUse>& uses) {
  for (const MemoryUse& use : uses) {
    if (const std::string objection = memory_->objection(use); !objection.empty()) {
      complain("\"" + what + "\" " + objection);
    }
  }
}

void EmulatedGpu::complain_about(const std::vector<std::string>& conflicts) {
  for (const std::string& conflict : conflicts) {
    complain(conflict);
  }
}

void EmulatedGpu::enqueue(Stream stream, const std::string& what, const std::vector<MemoryUse>& uses, Work work) {
  StreamState& state = state_of(stream);
  const std::string where = what + (open_ranges_ > 0 ? " in " + ranges_.back() : "") + ", " + state.name;
  check_uses(where, uses);
  if (state.capture == nullptr) {
    complain_about(order_.add(state.number, where, uses));
    state.thread.push(std::move(work));
    return;
  }
  complain_about(state.capture->order.add(state.number, where, uses));
  state.capture->nodes.push_back({state.number, EmulatedGraph::Step::kWork, std::move(work), 0});
  for (const MemoryUse& use : uses) {
    state.capture->uses.push_back({where, use});
  }
}

void EmulatedGpu::synchronize(Stream stream) {
  complain_in_capture("the host waits for a stream");
  StreamState& state = state_of(stream);
  state.thread.push_mark()->wait();
  order_.host_waits_for(state.number);
}

void EmulatedGpu::finish_all_work() {
  std::vector<std::shared_ptr<Mark>> marks;
  for (const auto& state : streams_) {
    marks.push_back(state->thread.push_mark());
  }
  for (const auto& mark : marks) {
    mark->wait();
  }
  if (!memory_->ends_are_intact()) {
    complain("something was written past the end of a block of memory");
  }
}

void EmulatedGpu::synchronize() {
  complain_in_capture("the host waits for the device");
  finish_all_work();
  for (const auto& state : streams_) {
    order_.host_waits_for(state->number);
  }
  memory_->poison_freed();
}

void EmulatedGpu::slow_down(Stream stream, std::chrono::microseconds pause) {
  state_of(stream).thread.slow_down(pause);
}

// Events.

EventPtr EmulatedGpu::make_event() { return std::make_shared<Event>(); }

void EmulatedGpu::record(const EventPtr& event, Stream stream) {
  auto& recorded = dynamic_cast<Event&>(*event);
  StreamState& state = state_of(stream);
  recorded.capture = state.capture;
  recorded.mark = nullptr;
  if (state.capture != nullptr) {
    recorded.mark_in_graph = state.capture->num_marks++;
    recorded.clock = state.capture->order.now(state.number);
    state.capture->nodes.push_back({state.number, EmulatedGraph::Step::kSetMark, nullptr, recorded.mark_in_graph});
    return;
  }
  recorded.clock = order_.now(state.number);
  recorded.mark = state.thread.push_mark();
}

void EmulatedGpu::wait(const EventPtr& event, Stream stream) {
  if (event == nullptr) {
    complain("stream " + state_of(stream).name + " waits for no event");
    return;
  }
  const auto& recorded = dynamic_cast<Event&>(*event);
  if (!recorded.was_recorded()) {
    return;
  }
  StreamState& state = state_of(stream);
  if (recorded.capture != nullptr) {
    join(state, recorded);
    return;
  }
  if (state.capture != nullptr) {
    complain("in a capture, stream " + state.name + " waits for an event from outside");
    return;
  }
  order_.wait(state.number, recorded.clock);
  state.thread.push_wait(recorded.mark);
}

// A stream that waits for an event of a capture becomes part of it.
void EmulatedGpu::join(StreamState& state, const Event& event) {
  if (event.capture->is_complete) {
    complain("stream " + state.name + " waits for an event of a capture that has ended");
    return;
  }
  if (state.capture != nullptr && state.capture != event.capture) {
    complain("in a capture, stream " + state.name + " waits for an event of another capture");
    return;
  }
  state.capture = event.capture;
  state.capture->streams.insert(state.number);
  state.capture->order.wait(state.number, event.clock);
  state.capture->nodes.push_back({state.number, EmulatedGraph::Step::kWaitForMark, nullptr, event.mark_in_graph});
}

void EmulatedGpu::order(Stream before, Stream after) {
  const EventPtr event = make_event();
  record(event, before);
  wait(event, after);
}

bool EmulatedGpu::done(const EventPtr& event) {
  const auto& recorded = dynamic_cast<const Event&>(*event);
  return recorded.mark == nullptr || recorded.mark->time().has_value();
}

std::optional<double> EmulatedGpu::seconds_between(const EventPtr& begin, const EventPtr& end) {
  const auto& first = dynamic_cast<const Event&>(*begin);
  const auto& second = dynamic_cast<const Event&>(*end);
  if (first.mark == nullptr || second.mark == nullptr) {
    return std::nullopt;
  }
  const auto first_time = first.mark->time();
  const auto second_time = second.mark->time();
  if (!first_time.has_value() || !second_time.has_value()) {
    return std::nullopt;
  }
  return std::chrono::duration<double>(*second_time - *first_time).count();
}

// Graphs.

uint64_t EmulatedGpu::capture(Stream stream) {
  const StreamState& state = state_of(stream);
  return state.capture == nullptr ? 0 : state.capture->id;
}

void EmulatedGpu::begin_capture(Stream stream) {
  StreamState& state = state_of(stream);
  auto graph = std::make_shared<EmulatedGraph>();
  graph->id = ++num_captures_;
  graph->origin = state.number;
  graph->streams.insert(state.number);
  state.capture = std::move(graph);
  ++num_running_captures_;
}

std::shared_ptr<EmulatedGraph> EmulatedGpu::end_capture(Stream stream) {
  std::shared_ptr<EmulatedGraph> graph = state_of(stream).capture;
  for (const int number : graph->streams) {
    StreamState& joined = *streams_[static_cast<size_t>(number)];
    if (!graph->order.is_after(graph->origin, number)) {
      complain("stream " + joined.name + " was not joined when the capture ended");
    }
    joined.capture = nullptr;
  }
  graph->is_complete = true;
  --num_running_captures_;
  return graph;
}

void EmulatedGpu::replay(const std::shared_ptr<EmulatedGraph>& graph, Stream stream) {
  StreamState& state = state_of(stream);
  std::vector<MemoryUse> uses;
  for (const auto& [what, use] : graph->uses) {
    check_uses("replay of " + what, {use});
    uses.push_back(use);
  }
  complain_about(order_.add(state.number, "replay of a graph", uses));
  std::vector<std::shared_ptr<Mark>> marks(graph->num_marks);
  std::generate(marks.begin(), marks.end(), [] { return std::make_shared<Mark>(); });
  const std::shared_ptr<Mark> begin = state.thread.push_mark();
  for (const int number : graph->streams) {
    std::unique_ptr<EmulatedStream>& thread = graph_streams_[number];
    if (thread == nullptr) {
      thread = std::make_unique<EmulatedStream>(seed_ + 100 + static_cast<uint32_t>(number));
    }
    thread->push_wait(begin);
  }
  for (const EmulatedGraph::Node& node : graph->nodes) {
    EmulatedStream& thread = *graph_streams_[node.stream];
    switch (node.step) {
      case EmulatedGraph::Step::kWork:
        thread.push(node.work);
        break;
      case EmulatedGraph::Step::kSetMark:
        thread.push([mark = marks[node.mark]] { mark->set(); });
        break;
      case EmulatedGraph::Step::kWaitForMark:
        thread.push_wait(marks[node.mark]);
        break;
    }
  }
  for (const int number : graph->streams) {
    state.thread.push_wait(graph_streams_[number]->push_mark());
  }
}

// Codecs.

PassesOfDevice EmulatedGpu::passes() { return {*launcher_, launcher_->counts()}; }

kernels::DeviceCounts EmulatedGpu::read_counts() {
  finish_all_work();
  return launcher_->read_counts();
}

void EmulatedGpu::throw_if_faulted() { throw_if_any_reported(launcher_->fault_seen_by_host()); }

void EmulatedGpu::begin_range(const char* range_name) {
  ranges_.emplace_back(range_name);
  ++open_ranges_;
}

void EmulatedGpu::end_range() {
  if (--open_ranges_ < 0) {
    complain("a range ended that was not begun");
  }
}

}  // namespace isthmus::test
