#include "codec/device_codecs.h"

#include "codec/none_device.h"
#include "codec/tagc_device.h"
#include "isthmus/error.h"

namespace isthmus {

namespace {

// Where the passes of a codec read unit and step.
const kernels::DeviceContext* on_device(PacketContext context) {
  ISTHMUS_CHECK(Error, context.on_device != nullptr, "codecs of a device read unit and step from its memory");
  return context.on_device;
}

// As the codec on CPU has it; the passes would also take more.
void check_none_packets(ConstBuffer packets, int num_packets, int64_t packet_bytes) {
  ISTHMUS_CHECK(Error, packets.bytes() == num_packets * packet_bytes, "codec none: ", packets.bytes(), " bytes for ",
                num_packets, " packets of ", packet_bytes);
}

class NoneDeviceCodec final : public Codec {
 public:
  NoneDeviceCodec(DataType wire_dtype, int ranks_per_node, DeviceLauncher& launcher, kernels::DeviceFault* fault)
      : device_(wire_dtype, ranks_per_node), launcher_(launcher), fault_(fault) {}

  const char* name() const override { return "none"; }
  int64_t packet_bytes(int64_t num_elements) const override { return device_.packet_bytes(num_elements); }
  bool keeps_residual() const override { return false; }
  int64_t encode_scratch_bytes(int64_t /*num_elements*/) const override { return NoneDevice::encode_scratch_bytes(); }
  int64_t decode_scratch_bytes(int64_t /*num_elements*/, int num_packets) const override {
    return NoneDevice::decode_scratch_bytes(num_packets);
  }
  int64_t decode_each_scratch_bytes(int64_t /*num_elements*/, int num_packets) const override {
    return NoneDevice::decode_scratch_bytes(num_packets);
  }

  CodecCounts encode(ConstBuffer piece, Buffer /*residual*/, Buffer packet, PacketContext context,
                     Workspace workspace) override {
    check_none_packets(packet, 1, packet_bytes(piece.num_elements));
    launcher_.encode(device_.encode_job(piece, packet, on_device(context), workspace.scratch), workspace.stream);
    CodecCounts counts;
    counts.encoded_elements = counts.kept_elements = piece.num_elements;
    return counts;
  }

  CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                         Workspace workspace) override {
    check_none_packets(packets, num_packets, packet_bytes(out.num_elements));
    if (num_packets == 0) {
      return {};
    }
    launcher_.decode(device_.decode_job(packets, num_packets, out, on_device(context), fault_, workspace.scratch),
                     workspace.stream);
    return {};
  }

  CodecCounts decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                          Workspace workspace) override {
    check_none_packets(packets, num_packets, packet_bytes(out.num_elements / num_packets));
    launcher_.decode(device_.decode_each_job(packets, num_packets, out, on_device(context), fault_, workspace.scratch),
                     workspace.stream);
    return {};
  }

 private:
  NoneDevice device_;
  DeviceLauncher& launcher_;
  kernels::DeviceFault* fault_;
};

class TagcDeviceCodec final : public Codec {
 public:
  TagcDeviceCodec(const Options& options, DeviceLauncher& launcher, kernels::DeviceCounts* counts,
                  kernels::DeviceFault* fault)
      : device_(options), launcher_(launcher), counts_(counts), fault_(fault) {}

  const char* name() const override { return "tagc"; }
  int64_t packet_bytes(int64_t num_elements) const override { return device_.packet_bytes(num_elements); }
  bool keeps_residual() const override { return true; }
  int64_t encode_scratch_bytes(int64_t num_elements) const override {
    return device_.encode_scratch_bytes(num_elements);
  }
  int64_t decode_scratch_bytes(int64_t num_elements, int num_packets) const override {
    return device_.decode_scratch_bytes(num_elements, num_packets);
  }
  int64_t decode_each_scratch_bytes(int64_t num_elements, int num_packets) const override {
    return device_.decode_each_scratch_bytes(num_elements, num_packets);
  }

  CodecCounts encode(ConstBuffer piece, Buffer residual, Buffer packet, PacketContext context,
                     Workspace workspace) override {
    launcher_.encode(device_.encode_job(piece, residual, packet, on_device(context), counts_, workspace.scratch),
                     workspace.stream);
    CodecCounts counts;
    counts.encoded_elements = piece.num_elements;
    return counts;
  }

  CodecCounts decode_sum(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                         Workspace workspace) override {
    if (num_packets == 0) {
      return {};
    }
    launcher_.decode(device_.decode_job(packets, num_packets, out, on_device(context), fault_, workspace.scratch),
                     workspace.stream);
    return {};
  }

  CodecCounts decode_each(ConstBuffer packets, int num_packets, Buffer out, PacketContext context,
                          Workspace workspace) override {
    launcher_.decode(device_.decode_each_job(packets, num_packets, out, on_device(context), fault_, workspace.scratch),
                     workspace.stream);
    return {};
  }

 private:
  TagcDevice device_;
  DeviceLauncher& launcher_;
  kernels::DeviceCounts* counts_;
  kernels::DeviceFault* fault_;
};

}  // namespace

std::unique_ptr<Codec> make_device_codec(const std::string& name, const Options& options, DataType wire_dtype,
                                         int ranks_per_node, DeviceLauncher& launcher, kernels::DeviceCounts* counts,
                                         kernels::DeviceFault* fault) {
  if (name == "none") {
    return std::make_unique<NoneDeviceCodec>(wire_dtype, ranks_per_node, launcher, fault);
  }
  if (name == "tagc") {
    return std::make_unique<TagcDeviceCodec>(options, launcher, counts, fault);
  }
  throw OptionError(detail::concatenate("codec \"", name, "\" is unknown: expected none or tagc"));
}

}  // namespace isthmus
