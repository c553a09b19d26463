// A unit as whoever reduces or gathers it holds it: an object of a process group.
#pragma once

#include <c10/util/Exception.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "isthmus/device.h"
#include "isthmus/unit.h"

namespace isthmus::torch_backend {

struct CallShape {
  int64_t num_elements = 0;  // of the whole input of a reduction, or of what a gather puts out
  DataType dtype = DataType::kFloat32;
  Collective collective = Collective::kReduceScatter;
  auto operator<=>(const CallShape&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees one
};

class UnitRegistry;

// One for each process group, however often and in however many shapes it is reduced and gathered: the core's units of
// these shapes live as long as it does. Any thread may call any method.
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

  // The reduction of its gradient by a call of this shape. sections, with_gradients: see UnitCall. Where they have
  // another size than the input the elements are in an unknown order.
  Reduction reduction(const CallShape& shape, bool on_gpu, const std::shared_ptr<const Sections>& sections = nullptr,
                      const std::shared_ptr<const Sections>& with_gradients = nullptr);
  UnitPtr gathered(const CallShape& shape, bool on_gpu) { return of_shape(shape, 0, on_gpu); }

  // The core's units so far.
  std::vector<UnitPtr> all() const;
  // Lets go of their state. What is under way keeps it until it is done.
  void clear();

 private:
  struct Shaped {
    CallShape shape;
    uint64_t layout;
    bool on_gpu;
    UnitPtr unit;
  };
  UnitPtr of_shape(const CallShape& shape, uint64_t layout_of_call, bool on_gpu);

  const std::shared_ptr<UnitRegistry> registry_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Shaped> units_;
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
};

// The call that the calling thread makes; null: nobody tells.
inline const UnitCall*& told_call() {
  thread_local const UnitCall* call = nullptr;
  return call;
}

}  // namespace isthmus::torch_backend
