#include "codec/tagc/device.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "codec/carver.h"
#include "codec/device_fault.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

using kernels::TagcDecodeJob;
using kernels::TagcEncodeJob;
using kernels::TagcShape;

// num_keys, num_tables: how many packets have keys, and are peeled at once.
kernels::SlabScratch carve_slabs(Carver& carver, const TagcShape& shape, int64_t num_keys, int64_t num_tables) {
  const int64_t slabs = kernels::num_slabs(shape);
  kernels::SlabScratch scratch = {};
  scratch.keys = carver.take<uint32_t>(num_keys * slabs * kernels::slab_words(shape));
  scratch.left = carver.take<uint32_t>(slabs);
  if (!kernels::tables_fit_shared(shape)) {
    scratch.tables = carver.take<uint32_t>(num_tables * slabs * kernels::table_words(shape));
  }
  carver.align();
  return scratch;
}

// Returns the bytes used.
int64_t carve_scratch(TagcEncodeJob& job, void* memory) {
  Carver carver(memory);
  job.state = carver.take<kernels::SelectState>(1);
  carver.align();
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(1));
  carver.align();
  job.rows = carver.take<uint32_t>(4 * job.shape.num_blocks);
  job.tie_counts = carver.take<uint32_t>(job.shape.num_blocks);
  job.peaks = job.shape.scale_bytes() > 0 ? carver.take<uint32_t>(job.shape.num_blocks) : nullptr;
  carver.align();
  job.slabs = carve_slabs(carver, job.shape, 1, 1);
  return carver.bytes();
}

int64_t carve_scratch(TagcDecodeJob& job, void* memory) {
  const int64_t at_once = job.to_places ? job.num_packets : 1;
  Carver carver(memory);
  job.state = carver.take<kernels::DecodeState>(1);
  job.parts.words = carver.take<uint64_t>(kernels::ChecksumParts::num_words(job.num_packets));
  carver.align();
  job.rows = carver.take<uint32_t>(4 * job.shape.num_blocks);
  carver.align();
  job.cells = carver.take<uint32_t>(at_once * job.shape.num_cells());
  carver.align();
  job.slabs = carve_slabs(carver, job.shape, job.num_packets, at_once);
  return carver.bytes();
}

// How the bound of the threshold is guessed: from a sixteenth of the piece, but 64 to 1024 runs of 16 neighbours, and
// with the expected number of kept ones and six standard deviations of it, because neighbours are alike.
void plan_sample(TagcEncodeJob& job) {
  const int64_t total_runs = job.shape.num_elements / 16;
  const int64_t runs = std::min(total_runs, std::clamp<int64_t>(total_runs / 16, 64, kernels::kMaxSampleRuns));
  job.sample_runs = static_cast<uint32_t>(runs);
  if (runs > 0) {
    const double expected =
        static_cast<double>(16 * runs) * static_cast<double>(job.keep) / static_cast<double>(job.shape.num_elements);
    job.sample_keep = static_cast<uint32_t>(expected + 6 * std::sqrt(expected) + 8);
  }
}

TagcEncodeJob plan_encode(const TagcSettings& settings, int64_t num_elements, PacketContext context) {
  ISTHMUS_CHECK(Error, num_elements <= kernels::kMaxDeviceElements, "codec tagc on a device encodes pieces of up to ",
                kernels::kMaxDeviceElements, " elements, not ", num_elements);
  TagcEncodeJob job = {};
  job.shape = settings.shape(num_elements);
  job.layout = tagc_layout(job.shape);
  job.header = header_words(make_tagc_header(job.shape, settings.peel_rounds, context));
  job.keep = static_cast<uint32_t>(settings.keep(num_elements));
  job.max_rounds = settings.peel_rounds;
  plan_sample(job);
  return job;
}

TagcDecodeJob plan_decode(const TagcSettings& settings, const DecodeSize& size, PacketContext context) {
  TagcDecodeJob job = {};
  job.to_places = size.to_places;
  job.shape = settings.shape(size.num_elements);
  job.layout = tagc_layout(job.shape);
  job.header = header_words(make_tagc_header(job.shape, settings.peel_rounds, context));
  job.senders = senders_of(context);
  job.max_rounds = settings.peel_rounds;
  job.num_packets = size.num_packets;
  return job;
}

void check_bytes(const char* what, ConstBuffer buffer, int64_t needed) {
  ISTHMUS_CHECK(Error, buffer.bytes() >= needed, "codec tagc: ", what, " of ", buffer.bytes(), " bytes where ", needed,
                " are needed");
  ISTHMUS_CHECK(Error, reinterpret_cast<uintptr_t>(buffer.data) % 64 == 0, "codec tagc: ", what,
                " does not begin at a multiple of 64 bytes");
}

}  // namespace

int64_t TagcDevice::packet_bytes(int64_t num_elements) const { return tagc_layout(settings_.shape(num_elements)).end; }

int64_t TagcDevice::encode_scratch_bytes(int64_t num_elements) const {
  TagcEncodeJob job = plan_encode(settings_, num_elements, {});
  return carve_scratch(job, nullptr);
}

int64_t TagcDevice::decode_scratch_bytes(const DecodeSize& size) const {
  TagcDecodeJob job = plan_decode(settings_, size, {});
  return carve_scratch(job, nullptr);
}

CodecCounts TagcDevice::known_counts(int64_t num_elements) {
  CodecCounts counts;
  counts.encoded_elements = num_elements;
  return counts;
}

TagcEncodeJob TagcDevice::encode_job(const DeviceEncode& encode) const {
  const ConstBuffer piece = encode.piece;
  TagcEncodeJob job = plan_encode(settings_, piece.num_elements, encode.context);
  const bool is_16_bit = piece.dtype == DataType::kBFloat16 || piece.dtype == DataType::kFloat16;
  const ConstBuffer widened = {piece.data, piece.num_elements, is_16_bit ? DataType::kFloat32 : piece.dtype};
  check_tagc_piece(widened, encode.residual, encode.packet, job.layout.end);
  check_bytes("packet", encode.packet, job.layout.end);
  check_bytes("scratch memory", encode.scratch, carve_scratch(job, encode.scratch.data));
  job.context = encode.context.on_device;
  job.counts = encode.counts;
  job.piece = piece;
  job.residual = encode.residual.as<float>();
  job.packet = encode.packet.as<uint8_t>();
  return job;
}

TagcDecodeJob TagcDevice::decode_job(const DeviceDecode& decode) const {
  TagcDecodeJob job = plan_decode(settings_, size_of(decode, kName), decode.context);
  check_tagc_packets(decode.packets, job.num_packets, decode.out, job.layout.end);
  check_bytes("packets", decode.packets, job.num_packets * job.layout.end);
  check_bytes("scratch memory", decode.scratch, carve_scratch(job, decode.scratch.data));
  job.context = decode.context.on_device;
  job.fault = decode.fault;
  job.packets = decode.packets.as<uint8_t>();
  job.out = decode.out.as<float>();
  return job;
}

}  // namespace isthmus
