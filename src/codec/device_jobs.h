// What codecs of a device share when they make jobs.
#pragma once

#include <cstdint>

#include "codec/carver.h"
#include "codec/device_arguments.h"
#include "isthmus/packet_header.h"
#include "kernels/block/job.h"

namespace isthmus {

// The multiples of bytes at which a codec's packets and scratch memory begin.
struct Alignment {
  uintptr_t packets;
  uintptr_t scratch;
};

// Throws Error if the memory is too small or does not begin at a multiple of `alignment` bytes.
void check_device_memory(const char* codec, const char* what, ConstBuffer buffer, int64_t needed, uintptr_t alignment);

// The piece as check_<codec>_piece() of the CPU requires it: as float32, though devices also accept 16-bit types.
ConstBuffer widened(ConstBuffer piece);

// Fills in all arguments but the residual.
void add_arguments(kernels::EncodeJobBase& job, const DeviceEncode& encode);
void add_arguments(kernels::DecodeJobBase& job, const DeviceDecode& decode);

// Carves out the scratch memory that jobs of every codec need.
void carve_shared(Carver& carver, kernels::EncodeJobBase& job);
void carve_shared(Carver& carver, kernels::DecodeJobBase& job);
// Carves out memory for the sum where the result has another type, for codecs that do not sum in registers.
void carve_sum(Carver& carver, kernels::DecodeJobBase& job);

// The base of a codec's JobMaker (passes_codec.h), which has
//
//   static constexpr const char* kName
//   static constexpr Alignment kAlignment
//   bool keeps_residual() const
//   EncodeJob plan_encode(int64_t num_elements, PacketContext) const    all that follows from these, except for memory;
//   DecodeJob plan_decode(const DecodeSize&, PacketContext) const       at least header and packet_bytes
//   void check(const DeviceEncode&, int64_t packet_bytes) const         throw Error for wrong types and sizes
//   void check(const DeviceDecode&, int64_t packet_bytes) const
//   static void carve(Carver&, EncodeJob&)                              the codec's own scratch memory
//   static void carve(Carver&, DecodeJob&)
template <typename Maker>
class DeviceJobs {
 public:
  // A codec that reads unit and step only from headers hides it.
  static constexpr bool kReadsContext = true;

  // A codec that keeps all elements hides it.
  static CodecCounts known_counts(int64_t num_elements) {
    CodecCounts counts;
    counts.encoded_elements = num_elements;
    return counts;
  }

  int64_t encode_scratch_bytes(int64_t num_elements) const {
    auto job = maker().plan_encode(num_elements, {});
    return carve_scratch(job, nullptr);
  }
  int64_t decode_scratch_bytes(const DecodeSize& size) const {
    auto job = planned(size, {});
    return carve_scratch(job, nullptr);
  }

  // Throws Error for wrong types, sizes and alignments.
  auto encode_job(const DeviceEncode& encode) const {
    auto job = maker().plan_encode(encode.piece.num_elements, encode.context);
    maker().check(encode, job.packet_bytes);
    check_memory("packet", encode.packet, job.packet_bytes, Maker::kAlignment.packets);
    take_scratch(job, encode.scratch);
    add_arguments(job, encode);
    job.residual = maker().keeps_residual() ? encode.residual.as<float>() : nullptr;
    return job;
  }
  auto decode_job(const DeviceDecode& decode) const {
    auto job = planned(size_of(decode, Maker::kName), decode.context);
    maker().check(decode, job.packet_bytes);
    check_memory("packets", decode.packets, job.num_places() * job.packet_bytes, Maker::kAlignment.packets);
    take_scratch(job, decode.scratch);
    add_arguments(job, decode);
    return job;
  }

 private:
  friend Maker;
  DeviceJobs() = default;

  const Maker& maker() const { return static_cast<const Maker&>(*this); }

  auto planned(const DecodeSize& size, PacketContext context) const {
    auto job = maker().plan_decode(size, context);
    job.num_packets = size.num_packets;
    job.own_place = size.own_place < 0 ? size.num_packets : size.own_place;
    job.to_places = size.to_places;
    job.sum = {nullptr, size.sums_apart ? size.num_elements : 0, DataType::kFloat32};  // for codecs that need it
    return job;
  }

  static void check_memory(const char* what, ConstBuffer buffer, int64_t needed, uintptr_t alignment) {
    check_device_memory(Maker::kName, what, buffer, needed, alignment);
  }

  // Returns the bytes used.
  template <typename Job>
  static int64_t carve_scratch(Job& job, void* memory) {
    Carver carver(memory);
    carve_shared(carver, job);
    Maker::carve(carver, job);
    return carver.bytes();
  }

  template <typename Job>
  static void take_scratch(Job& job, Buffer scratch) {
    check_memory("scratch memory", scratch, carve_scratch(job, scratch.data), Maker::kAlignment.scratch);
  }
};

}  // namespace isthmus
