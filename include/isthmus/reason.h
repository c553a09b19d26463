// Why something was not compressed: reductions that stayed exact, and weights that crossed whole.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus {

// A reason's name in C++ and in Python, and its text, which statistics show. docs/weights.md lists those of weights in
// this order.
// clang-format off
#define ISTHMUS_REASONS(row)                                                                                         \
  /* Of gradients, in the order in which they are checked; the second to the eighth are callers'. */                \
  row(kCodecNone, CODEC_NONE, "codec none")                                                                          \
  row(kNotPrepared, NOT_PREPARED, "excluded by prepare(units=...)")                                                  \
  row(kMixedCopies, MIXED_COPIES, "some parameters are replicated over another mesh dimension, others are not")      \
  row(kOtherNodes, OTHER_NODES, "groups that reduce copies of the parameters lie on nodes in another way")           \
  row(kUnknownCopies, UNKNOWN_COPIES, "ranks outside of the mesh may hold copies of the parameters")                 \
  row(kFirstBuckets, FIRST_BUCKETS, "first two backward passes with these DDP buckets")                              \
  row(kUnknownSet, UNKNOWN_SET, "which parameters have gradients is not known")                                      \
  row(kMayHoldCopies, MAY_HOLD_COPIES, "unknown parameters, of which ranks outside of the group may hold copies")    \
  row(kOneNode, ONE_NODE, "one node")                                                                                \
  row(kFloat64, FLOAT64, "float64")                                                                                  \
  row(kEmpty, EMPTY, "empty")                                                                                        \
  row(kBadScale, BAD_SCALE, "scale is zero or not finite")  /* a residual cannot be rescaled for it */               \
  row(kFlatAllReduce, FLAT_ALL_REDUCE, "all-reduce in a single tier")                                                \
  row(kTooSmall, TOO_SMALL, "below min_elements")                                                                    \
  row(kExcluded, EXCLUDED, "excluded by policy (units)")                                                             \
  row(kTooManyUnits, TOO_MANY_UNITS, "more than max_units units")                                                    \
  row(kResidualRests, RESIDUAL_RESTS, "a parameter has no gradient, and the residual rests")                         \
  row(kTakesResidual, TAKES_RESIDUAL, "takes the residual along")                                                    \
  row(kWhoseResidual, WHOSE_RESIDUAL, "unknown parameters, and the codec keeps a residual")                          \
  row(kDenseStart, DENSE_START, "dense start")                                                                       \
  /* Of calls that the world backend runs. */                                                                        \
  row(kOneTier, ONE_TIER, "the group is not on several nodes of one size")                                           \
  row(kNotRecognised, NOT_RECOGNISED, "not recognised as a gradient")                                                \
  row(kOtherDevice, OTHER_DEVICE, "input and output on different devices")                                           \
  row(kNoSum, NO_SUM, "not a sum of floating-point numbers")                                                         \
  row(kNotLabelled, NOT_LABELLED, "not labelled, in a backward pass")  /* nor tagged, nor an option */               \
  row(kNotFsdps, NOT_FSDPS, "inside of FSDP's reduction, but not its own")  /* a hook's, or compiled */              \
  row(kOwnReduceScatter, OWN_REDUCE_SCATTER, "in a reduce-scatter of the program's own")                             \
  row(kSparse, SPARSE, "a sparse all-reduce")                                                                        \
  row(kLists, LISTS, "a reduce-scatter of lists")                                                                    \
  /* Of gathers of weights; kTooManyUnits is another one. */                                                         \
  row(kFirstGather, FIRST_GATHER, "the first gather")                                                                \
  row(kNoReplica, NO_REPLICA, "another rank has no replica")                                                         \
  row(kReplicaDiffers, REPLICA_DIFFERS, "a replica had other bits than the others'")                                 \
  row(kReplicasDiffer, REPLICAS_DIFFER, "replicas had other bits on each node")                                      \
  row(kInGraph, IN_GRAPH, "in a CUDA graph")
// clang-format on

#define ISTHMUS_ENUMERATOR(name, python, text) name,
#define ISTHMUS_TEXT(name, python, text) text,
enum class Reason : uint8_t { ISTHMUS_REASONS(ISTHMUS_ENUMERATOR) };
inline constexpr const char* kReasonTexts[] = {ISTHMUS_REASONS(ISTHMUS_TEXT)};
#undef ISTHMUS_ENUMERATOR
#undef ISTHMUS_TEXT

inline const char* to_string(Reason reason) { return kReasonTexts[static_cast<size_t>(reason)]; }

}  // namespace isthmus
