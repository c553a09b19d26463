// Tiers over NCCL: library isthmus_nccl, built for CUDA where CMake finds NCCL. The torch backend has the same tiers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "isthmus/communicator.h"
#include "isthmus/node_map.h"

namespace isthmus {

// The number of multiprocessors that one operation may occupy, within a node and between nodes. The kernels of all
// communicators on a GPU must fit at once, or two ranks may wait for each other for ever. A group's four tiers take 48,
// which leaves room for the world's communicator (up to 32, with NVLink 5 up to 64) on GPUs with 100 and more. The
// values were chosen, not measured. NCCL_MAX_CTAS overrides them. The flat tier of the torch backend takes 8 more.
inline constexpr int kIntraMaxCtas = 16;
inline constexpr int kInterMaxCtas = 8;

// Sends the `num_bytes` bytes at rank 0's `data` to all ranks, which all call it equally often.
using NcclBroadcast = std::function<void(void* data, int64_t num_bytes)>;

// Makes all tiers of the calling rank but the flat one, for buffers on the CUDA device `ordinal`. Tiers of one rank are
// null, and gathers have their own tiers. `map` is equal on all ranks. Collective over its ranks: rank 0 draws an id
// for every tier, `broadcast` is called once, and the tiers are made one after another. If one takes longer than
// `timeout`, it throws TransportError; NCCL's unfinished work remains, and the process should report and end.
//
// Operations are enqueued on the given stream and can be captured. NCCL sums in the type of the values; float16 is
// first divided by the lowest power of two that is not below the number of ranks. Traffic is
// counted as over MPI, as if each part went straight to its owner. A ring sends as much; what switches or trees add may
// be less.
//
// Each operation first asks NCCL for errors of earlier ones. Failures throw TransportError that names tier, rank and
// call. NCCL has no time limit: an operation whose peer never comes stays on the stream until any thread calls abort().
// Callers bound their waits with Device::done(). An abort closes connections between hosts, by which peers there notice
// it; peers on the same host must give up by themselves.
Tiers nccl_tiers(int rank, const NodeMap& map, int ordinal, const NcclBroadcast& broadcast,
                 std::chrono::milliseconds timeout = std::chrono::minutes(10));

}  // namespace isthmus
