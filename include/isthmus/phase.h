// What a collective is doing, for reports about faults.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus {

// clang-format off
#define ISTHMUS_PHASES(row)                                    \
  row(kIdle, "idle")                                           \
  row(kBuffers, "buffers")                                     \
  row(kPlan, "plan")                                           \
  row(kPack, "pack")                                           \
  row(kIntraReduceScatter, "intra reduce-scatter")             \
  row(kEncode, "encode")                                       \
  row(kInterExchange, "inter exchange")                        \
  row(kExchange, "exchange")  /* of a tier that a GPU uses */  \
  row(kDecode, "decode")                                       \
  row(kEncodeResult, "encode result")                          \
  row(kDecodeResult, "decode result")                          \
  row(kCompareWeights, "compare weights")                      \
  row(kInterHeaders, "inter all-gather of headers")            \
  row(kDecodeWeights, "decode weights")                        \
  row(kInterAllGather, "inter all-gather")                     \
  row(kIntraAllGather, "intra all-gather")                     \
  row(kUnpack, "unpack")                                       \
  row(kFlatReduceScatter, "flat reduce-scatter")               \
  row(kFlatSketch, "flat sketch reduce-scatter")               \
  row(kFlatIndex, "flat index all-reduce")
// clang-format on

#define ISTHMUS_ENUMERATOR(name, text) name,
#define ISTHMUS_TEXT(name, text) text,
enum class Phase : uint8_t { ISTHMUS_PHASES(ISTHMUS_ENUMERATOR) };
inline constexpr const char* kPhaseTexts[] = {ISTHMUS_PHASES(ISTHMUS_TEXT)};
#undef ISTHMUS_ENUMERATOR
#undef ISTHMUS_TEXT
#undef ISTHMUS_PHASES

inline const char* to_string(Phase phase) { return kPhaseTexts[static_cast<size_t>(phase)]; }

}  // namespace isthmus
