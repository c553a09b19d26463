// Tiers over NCCL: GPUs without torch. In the library isthmus_nccl, which is built for CUDA where CMake finds NCCL.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "isthmus/communicator.h"
#include "isthmus/node_map.h"

namespace isthmus {

// How many multiprocessors a tier's operation may occupy, within a node and between nodes. The kernels of all
// communicators of a GPU must fit there at once, or two ranks may wait for each other for ever: the four tiers of a
// group take 48, and leave room for the world's communicator (up to 32, with NVLink 5 up to 64) on GPUs with 100 and
// more. Chosen, not measured. NCCL_MAX_CTAS wins.
inline constexpr int kIntraMaxCtas = 16;
inline constexpr int kInterMaxCtas = 8;

// Gives all ranks the `num_bytes` bytes that rank 0 has at `data`. Every rank calls it equally often.
using NcclBroadcast = std::function<void(void* data, int64_t num_bytes)>;

// All tiers of the calling rank but the flat one, for buffers on the CUDA device `ordinal`; those of one rank are null,
// gathers have their own. `map` is equal on all ranks. Collective over its ranks: rank 0 draws an id for each tier of
// each of them, `broadcast` is called once, and the tiers are made one after the other. Throws TransportError if one
// takes longer than `timeout`; NCCL's unfinished work then remains, and the process should report and end.
//
// Operations are enqueued on the stream that they are given, and can be captured. Sums are taken by NCCL, in the type
// that they are of; float16 is first divided by the lowest power of two that is not below the number of ranks. NCCL has
// no bitwise or: that is an Error. Traffic is counted as over MPI: as if every part went straight to its owner. A ring
// sends as much; what switches or trees add on the way may be less.
//
// Each operation first asks NCCL for errors of earlier ones; failures are TransportErrors that name tier, rank and
// call. NCCL has no limit for operations: one whose peer does not come stays on the stream until abort(), which any
// thread may call, ends it. A caller bounds its waits by Device::done(). An abort closes connections between hosts, by
// which the peers there notice it; peers on the same host must give up by themselves.
Tiers nccl_tiers(int rank, const NodeMap& map, int ordinal, const NcclBroadcast& broadcast,
                 std::chrono::milliseconds timeout = std::chrono::minutes(10));

// The version of the library that is loaded: "2.28.9".
std::string nccl_version();

}  // namespace isthmus
