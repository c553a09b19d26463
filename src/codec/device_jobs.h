// What codecs of a device share when they make jobs: the arguments, the layout of scratch memory, and the steps that
// all codecs have. All memory is the device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "codec/packet_sizes.h"
#include "isthmus/codec.h"
#include "isthmus/error.h"
#include "isthmus/packet_header.h"
#include "kernels/block/device.h"
#include "kernels/block/job.h"

namespace isthmus {

// The arguments of Codec::encode_pieces(). Piece, residual and packet are those of the first place; those of the other
// places lie `steps` apart. The job holds the packet's header. If context.on_device is set, the job reads unit and step
// there when it runs.
struct DeviceEncode {
  ConstBuffer piece;
  Buffer residual;  // empty where the codec keeps none
  Buffer packet;
  PacketContext context;
  kernels::DeviceCounts* counts = nullptr;  // the codec adds its counts here
  Buffer scratch;                           // contents do not matter
  int64_t num_pieces = 1;                   // how many pieces are encoded
  int64_t left_out = 1;                     // the place of the piece that is not encoded; num_pieces: none
  kernels::PieceSteps steps = {};
};

// The arguments that decode_shard() has and decode_each() has not.
struct DeviceShard {
  ConstBuffer own;
  int64_t own_place = 0;  // as in kernels::DecodeJobBase
  double scale = 1;
};

// The arguments of Codec::decode_each() or decode_shard(). With neither set, packets are added to `out`.
struct DeviceDecode {
  ConstBuffer packets;
  int64_t num_packets = 1;
  Buffer out;
  bool to_places = false;  // packet i overwrites the i-th of num_packets equal parts of `out`
  PacketContext context;
  kernels::DeviceFault* fault = nullptr;
  Buffer scratch;  // contents do not matter
  std::optional<DeviceShard> shard = std::nullopt;
};

inline kernels::PacketSenders senders_of(const PacketContext& context) {
  return {.first = context.sender, .packets_of_each = context.packets_of_sender};
}

// What determines the scratch memory that a decoding needs.
struct DecodeSize {
  int64_t num_elements;  // of each packet
  int64_t num_packets = 1;
  bool to_places = false;
  bool sums_apart = false;  // the result's type differs from the type of sums
  int64_t own_place = -1;   // as in kernels::DecodeJobBase; -1: there is none
};

// How many packets lie one after another, with those that are left out.
inline int64_t num_places(const DeviceDecode& decode) {
  const bool one_is_left_out = decode.shard && decode.shard->own_place < decode.num_packets;
  return one_is_left_out ? decode.num_packets + 1 : decode.num_packets;
}

// Throws Error if `out` cannot be cut into equal places.
inline DecodeSize size_of(const DeviceDecode& decode, const char* codec) {
  if (!decode.to_places) {
    DecodeSize size = {decode.out.num_elements, decode.num_packets};
    if (decode.shard) {
      size.sums_apart = decode.out.dtype != accumulate_dtype(decode.out.dtype);
      size.own_place = decode.shard->own_place;
    }
    return size;
  }
  ISTHMUS_CHECK(Error, decode.num_packets > 0 && decode.out.num_elements % decode.num_packets == 0, "codec ", codec,
                ": ", decode.out.num_elements, " elements are no equal places for ", decode.num_packets, " packets");
  return {decode.out.num_elements / decode.num_packets, decode.num_packets, true};
}

// Cuts scratch memory into arrays. Without memory it only adds up the bytes needed.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  // Begins at a multiple of the elements' alignment, if the memory begins at one.
  template <typename T>
  T* take(int64_t count) {
    align(alignof(T));
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += count * static_cast<int64_t>(sizeof(T));
    return array;
  }
  // Makes the next array begin at a multiple of `alignment` bytes.
  void align(int64_t alignment = 64) { bytes_ = round_up(bytes_, alignment); }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  int64_t bytes_ = 0;
};

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

// The base of a codec's JobMaker, which makes its jobs without touching a device or allocating. It has
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
  // Whether the device reads unit and step. A codec that reads them only from headers hides it.
  static constexpr bool kReadsContext = true;

  // What the host knows of an encoding beforehand. A codec that keeps all elements hides it.
  static CodecCounts known_counts(int64_t num_elements) { return {.encoded_elements = num_elements}; }

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

kernels::HeaderWords header_words(const PacketHeader& header);

// Throws the PacketError that the CPU would have thrown, if `fault` reports one. `fault` is a copy in host memory.
void throw_if_reported(const kernels::DeviceFault& fault);

}  // namespace isthmus
