// A fixed group of ranks that move bytes: one tier.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/buffer.h"

namespace isthmus {

// Bytes that one rank handed to a transport for other ranks. Counted at that point, without protocol headers.
struct Traffic {
  int64_t sent_bytes = 0;             // to any other rank of the tier
  int64_t inter_node_sent_bytes = 0;  // the part of sent_bytes whose receiver sits on another node

  Traffic& operator+=(Traffic more) {
    sent_bytes += more.sent_bytes;
    inter_node_sent_bytes += more.inter_node_sent_bytes;
    return *this;
  }
  Traffic operator-(Traffic before) const {
    return {sent_bytes - before.sent_bytes, inter_node_sent_bytes - before.inter_node_sent_bytes};
  }
};

// How a tier sums values of one type.
struct SumType {
  DataType dtype;      // of the sum, and what it is taken in
  double divisor = 1;  // each summand is divided by it first, so that no sum overflows: a power of two
};

// Completion of one operation. CPU: wait() blocks until the operation is done. GPU: an operation runs on the stream
// that it was given; wait(stream) orders any other stream behind it, and never blocks the host. wait() throws
// TransportError if the operation failed, timed out or was aborted.
class Handle {
 public:
  virtual ~Handle() = default;
  virtual void wait(Stream stream = {}) = 0;
};
using HandlePtr = std::unique_ptr<Handle>;

// All operations are collective: every rank of the tier calls the same ones in the same order, with equal sizes and
// types, from one thread at a time. Buffers stay alive and untouched (inputs) or unread (outputs) until Handle::wait
// returned. Several operations may be under way at once; they are waited for in the order in which they were started.
// Zero-element operations are allowed. abort() may come from any thread.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual SumType sum_type(DataType in) const { return {accumulate_dtype(in)}; }

  // Operations started between these two may all start at the end, as one (an NCCL group). end_group() is called even
  // if one of them throws.
  virtual void begin_group() {}
  virtual void end_group() {}

  // Throws the TransportError of an operation that failed on its stream, if that is known by now. Does not wait.
  virtual void throw_if_failed() {}
  // For how long after an operation has failed on its stream that may not be known yet.
  virtual std::chrono::milliseconds failure_delay() const { return {}; }

  // out = sum over ranks of part rank() of `in`, which has size() equal parts, each divided by the divisor.
  // out.dtype is that of sum_type(in.dtype) and the sum is taken in it, in an order that does not depend on timing.
  // `out` does not overlap `in`.
  virtual HandlePtr reduce_scatter(ConstBuffer in, Buffer out, Stream stream) = 0;

  // Part p of `in` goes to rank p; part p of `out` comes from rank p. Types are equal. Part rank() is not exchanged:
  // that part of `out` is unspecified afterwards.
  virtual HandlePtr all_to_all(ConstBuffer in, Buffer out, Stream stream) = 0;

  // Part p of `out` becomes rank p's `in`, part rank() included. `in` may be that very part of `out`.
  virtual HandlePtr all_gather(ConstBuffer in, Buffer out, Stream stream) = 0;

  // out[p] becomes rank p's `in`, whose bytes that rank alone decides; all are of kByte, and out[p] has just as many.
  // out[rank()] stays as it is.
  virtual HandlePtr all_gather_uneven(ConstBuffer in, const std::vector<Buffer>& out, Stream stream) = 0;

  // One step around the ring of ranks: `in` goes to the next rank, and `out` comes from the one before. There are
  // several, and their buffers have one size and type.
  virtual HandlePtr pass_on(ConstBuffer in, Buffer out, Stream stream) = 0;

  // Compares what the ranks of the tier reduce next: wait() throws PacketError, which names this rank's unit and the
  // ranks that have another hash. It is not counted as traffic. Null on a GPU, where the host would have to wait:
  // Device::refuse_other_units() does it there.
  virtual HandlePtr compare_units(uint64_t /*hash*/, const std::string& /*unit*/) { return nullptr; }

  // all_gather() that is not counted as traffic, for that comparison on a GPU.
  virtual HandlePtr all_gather_uncounted(ConstBuffer /*in*/, Buffer /*out*/, Stream /*stream*/) { return nullptr; }

  // What this rank sent since construction.
  virtual Traffic traffic() const = 0;

  // Seconds that the host has waited for messages of each other rank since the last call, by its global rank. Empty
  // where this is not measured.
  virtual std::map<int, double> take_waits() { return {}; }

  // Makes pending and later operations of this rank fail with TransportError, and the peers' as well. May wait for the
  // GPU, on which operations of other tiers that nobody aborts may run for ever: those of one GPU are aborted at once.
  virtual void abort() = 0;
};

}  // namespace isthmus
