// A transport that lets a test look at, damage or fail what passes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/communicator.h"
#include "isthmus/transport.h"

namespace isthmus::test {

// Passes everything on. before(operation, in) runs before an operation, after(operation, out) when it is done;
// operation is "reduce_scatter", "all_to_all", "all_gather", "all_gather_uneven" (`out`: of
// one other rank) or "pass_on". Either may be empty, and either may throw. on_abort() runs before an abort(). Where
// `at_wait` is set an all-gather begins when it is waited for, after at_wait().
class HookedTransport final : public Transport {
 public:
  using Before = std::function<void(const std::string& operation, ConstBuffer in)>;
  using After = std::function<void(const std::string& operation, Buffer out)>;

  HookedTransport(std::shared_ptr<Transport> transport, Before before, After after, std::function<void()> on_abort = {},
                  std::function<void()> at_wait = {})
      : transport_(std::move(transport)),
        before_(std::move(before)),
        after_(std::move(after)),
        on_abort_(std::move(on_abort)),
        at_wait_(std::move(at_wait)) {}

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream stream) override {
    return hooked("reduce_scatter", in, out, [&] { return transport_->reduce_scatter(in, out, stream); });
  }
  HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream stream) override {
    return hooked("all_to_all", in, out, [&] { return transport_->all_to_all(in, out, stream); });
  }
  HandlePtr all_gather(ConstBuffer in, Buffer out, Stream stream) override {
    const auto gather = [=, this] {
      return hooked("all_gather", in, out, [&] { return transport_->all_gather(in, out, stream); });
    };
    return at_wait_ ? std::make_unique<Late>([=, this] {
      at_wait_();
      gather()->wait();
    })
                    : gather();
  }
  HandlePtr all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) override {
    const Buffer other = out[rank() == 0 ? 1 : 0];  // one of them
    return hooked("all_gather_uneven", in, other, [&] { return transport_->all_gather_uneven(in, out, stream); });
  }
  HandlePtr pass_on(ConstBuffer in, Buffer out, Stream stream) override {
    return hooked("pass_on", in, out, [&] { return transport_->pass_on(in, out, stream); });
  }
  // From now on throw_if_failed() calls this, and failure_delay() returns that.
  void tell_failures(std::function<void()> throw_if_failed, std::chrono::milliseconds delay) {
    throw_if_failed_ = std::move(throw_if_failed);
    delay_ = delay;
  }
  void throw_if_failed() override { throw_if_failed_(); }
  std::chrono::milliseconds failure_delay() const override { return delay_; }
  HandlePtr compare_units(uint64_t hash, const std::string& unit) override {
    return transport_->compare_units(hash, unit);
  }
  Traffic traffic() const override { return transport_->traffic(); }
  void abort() override {
    if (on_abort_) {
      on_abort_();
    }
    transport_->abort();
  }

 private:
  // An operation that begins when it is waited for.
  class Late final : public Handle {
   public:
    explicit Late(std::function<void()> run) : run_(std::move(run)) {}
    void wait(Stream /*stream*/) override { run_(); }

   private:
    const std::function<void()> run_;
  };

  // In-process operations are done when they return.
  template <typename Operation>
  HandlePtr hooked(const char* name, ConstBuffer in, Buffer out, const Operation& operation) {
    if (before_) {
      before_(name, in);
    }
    HandlePtr handle = operation();
    if (after_) {
      after_(name, out);
    }
    return handle;
  }

  std::shared_ptr<Transport> transport_;
  Before before_;
  After after_;
  std::function<void()> on_abort_;
  std::function<void()> at_wait_;
  std::function<void()> throw_if_failed_ = [] {};
  std::chrono::milliseconds delay_{};
};

// Hooks of one kind of operation.
template <typename Action>
HookedTransport::Before before(const std::string& name, const Action& action) {
  return [=](const std::string& operation, ConstBuffer in) {
    if (operation == name) {
      action(in);
    }
  };
}
template <typename Action>
HookedTransport::After after(const std::string& name, const Action& action) {
  return [=](const std::string& operation, Buffer out) {
    if (operation == name) {
      action(out);
    }
  };
}

// The bytes that a hook may change before they are sent.
inline std::byte* bytes_of(ConstBuffer in) { return static_cast<std::byte*>(const_cast<void*>(in.data)); }

// For a World: one tier of `hooked_rank` passes both hooks what it does.
inline auto hook(int hooked_rank, std::shared_ptr<Transport> Tiers::*tier, HookedTransport::Before before_hook,
                 HookedTransport::After after_hook) {
  return [=](int rank, Tiers tiers) {
    if (rank == hooked_rank) {
      tiers.*tier = std::make_shared<HookedTransport>(tiers.*tier, before_hook, after_hook);
    }
    return tiers;
  };
}

}  // namespace isthmus::test
