// Ranges of torch's profilers around phases, and how a profiler sees the thread that works for the one it watches.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace isthmus::torch_backend {

// Null where nobody watches.
inline thread_local std::vector<std::unique_ptr<at::RecordFunction>> open_ranges;

// Ranges of the calling thread. They nest.
inline void begin_range(const char* name) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  auto& range =
      open_ranges.emplace_back(callbacks ? std::make_unique<at::RecordFunction>(std::move(*callbacks)) : nullptr);
  if (range != nullptr) {
    range->before(name);
  }
}

inline void end_range() { open_ranges.pop_back(); }

// The profilers that watch a thread: torch keeps them in its thread-local state.
class Profilers {
 public:
  // Of the calling thread; nothing where none runs.
  static std::optional<Profilers> here() {
    const bool runs = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr;
    return runs ? std::optional(Profilers()) : std::nullopt;
  }

  // While this object is there they watch the thread that made it, too.
  class Guard {
   public:
    explicit Guard(const Profilers& profilers) : state_(profilers.state_) {
      at::set_record_function_tls_(profilers.callbacks_);
    }
    ~Guard() { at::set_record_function_tls_(before_); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    c10::DebugInfoGuard state_;
    at::RecordFunctionTLS before_ = at::get_record_function_tls_();
  };

 private:
  Profilers() = default;

  std::shared_ptr<c10::ThreadLocalDebugInfo> state_ = c10::ThreadLocalDebugInfo::current();
  at::RecordFunctionTLS callbacks_ = at::get_record_function_tls_();
};

}  // namespace isthmus::torch_backend
