// A unit as whoever reduces or gathers it holds it: an object of a process group.
#pragma once

#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/device.h"
#include "isthmus/unit.h"

namespace isthmus::torch_backend {

class UnitRegistry;

// One for each process group, however often and in however many sizes it is reduced and gathered: the core's units of
// these sizes live as long as it does. Any thread may call any method.
class UnitHandle {
 public:
  UnitHandle(std::string name_, uint64_t layout_, std::optional<Reason> why_exact_, std::string parameters_,
             std::shared_ptr<UnitRegistry> registry);

  // Equal on all ranks.
  const std::string name;                 // as in UnitKey; nothing in it differs between groups
  const uint64_t layout;                  // see UnitKey; of calls without sections; 0: unknown
  const std::optional<Reason> why_exact;  // why it must stay exact; nothing: it need not
  const std::string parameters;           // of people and checkpoints: the layout as text; "": unknown

  bool is_of(const UnitRegistry& registry) const { return registry_.get() == &registry; }
  int num_ranks() const;  // of its group

  // The core's unit of its calls with this key, which has its name.
  UnitPtr of_calls(const UnitKey& key, bool on_gpu);

  // The core's units so far.
  std::vector<UnitPtr> all() const;
  // Lets go of their state. What is under way keeps it until it is done.
  void clear();

 private:
  const std::shared_ptr<UnitRegistry> registry_;
  mutable std::mutex mutex_;                     // guards what follows
  std::array<std::vector<UnitPtr>, 2> units_{};  // on the CPU and on GPUs
};

using UnitHandlePtr = std::shared_ptr<UnitHandle>;

// A call of a unit, as its caller tells of it. Bound for Python, which makes one once and enters it around each call.
struct UnitCall {
  UnitHandlePtr unit;
  // Where rows of parameters are reduced (FSDP2): those that are trained, and those that have gradients. Null: all.
  std::shared_ptr<const Sections> sections = nullptr;
  std::shared_ptr<const Sections> with_gradients = nullptr;
  std::optional<Reason> why_exact = {};  // of this call
  bool in_halves = false;                // a gather, whose Work is waited for in an order that is equal on all ranks
  // On a GPU, whose present work makes the input. Nothing: that of the current stream.
  std::optional<Stream> input_stream = {};
  const UnitCall* outer = nullptr;  // that it stands in

  // The reduction of an input of this size and type; its scale is 1. Where the sections have another size than the
  // input, the elements are in an unknown order. key: name and layout do not matter.
  Reduction reduction(UnitKey key, bool on_gpu) const;
};

// The call that the calling thread makes; null: nobody tells. See UnitRegistry::told().
inline thread_local const UnitCall* told_call = nullptr;

}  // namespace isthmus::torch_backend
