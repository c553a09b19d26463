// What Isthmus knows of each codec: one CodecType for each, in one registry. CONTRIBUTING.md says how to add a codec.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/codec.h"
#include "isthmus/options.h"

namespace isthmus {

struct PassesOfDevice;  // what runs the passes of a codec on a device: src/codec/passes_codec.h

// Of a codec, in the header of its packets. From kFirstOutside on they are free for codecs from outside of Isthmus.
enum class CodecId : uint8_t { kNone = 1, kTagc = 2, kQuant = 3, kSparse = 4, kFirstOutside = 128 };
const char* to_string(CodecId id);  // the codec's name; "unknown" where none is registered

// An option that a codec looks at.
struct CodecOption {
  OptionField field;           // its name alone where another codec, or Isthmus itself, declares it
  const char* only = "";       // with which other option: "tiers=flat"; empty: always
  bool shapes_packets = true;  // whether its value decides how packets are made: Options::codec_settings()
  bool set_by_auto = false;    // whether `auto` chooses its value
};

// A way to use a codec that `auto` may choose.
struct CodecCandidate {
  std::string label;                               // "quant 4 bit", for people; of no other candidate
  std::function<void(Options&)> choose = nullptr;  // sets all of it but the codec; null: there is no more
};

// A part of PacketHeader::settings that the error of a packet from a sender with another value names.
struct HeaderPart {
  const char* name;  // "cell type"
  int first_bit;
  int num_bits;
};

// One row of the registry. Functions may be called from any thread, with options that validate() has seen.
struct CodecType {
  CodecId id = CodecId::kFirstOutside;
  const char* name = nullptr;  // the value of option `codec`

  // All that it looks at but what every lossy codec is subject to (own_piece, dense_steps, ramp_steps, error_interval).
  std::vector<CodecOption> options = {};

  // As make_codec() and Device::make_codec(). make_on_device: null where there is none for devices.
  std::unique_ptr<Codec> (*make_on_host)(const Options&, DataType wire_dtype, int ranks_per_node) = nullptr;
  std::unique_ptr<Codec> (*make_on_device)(const Options&, DataType wire_dtype, int ranks_per_node,
                                           const PassesOfDevice& device) = nullptr;

  // Bits of each element that crosses, without headers. dtype: of the tensor that is reduced.
  double (*wire_bits)(DataType dtype, const Options& options) = nullptr;
  // The relative squared error to expect of one packet, or a bound on it where it depends on the values. Of a codec
  // with residual: of what is not sent yet.
  double (*prior_error)(const Options& options) = nullptr;

  // How it is brought in over ramp_steps: stages before the last, in which everything is as the options ask, and the
  // options of stage 0 ... num_stages - 1. Null: at once.
  int (*num_stages)(const Options& options) = nullptr;
  Options (*at_stage)(const Options& options, int stage) = nullptr;

  // From the least error to the largest; null: `auto` never chooses it. Of `none`, `auto` knows.
  std::vector<CodecCandidate> (*candidates)() = nullptr;

  std::vector<HeaderPart> header_parts = {};
  // "values" or "bytes": what the checksum is of, in the error of a packet that has another one. Of a codec that adds a
  // packet up before it knows; null: a packet is checked first, and the error says so.
  const char* checksum_of = nullptr;
  // What decoding on a device found wrong: of the kinds of kernels/block/device.h, those of this codec alone. Null for
  // others.
  const char* (*fault_text)(uint32_t kind) = nullptr;
};

// All codecs: those of Isthmus, then those from outside as they were registered. From any thread.
const std::vector<const CodecType*>& codec_types();
// Throws OptionError, which names all codecs, where there is none of that name.
const CodecType& find_codec(const std::string& name);
// {"none", "tagc", "quant", "sparse"}: by id.
std::vector<std::string> codec_names();

// Adds a codec from outside. `type` stays alive as long as the process. On every rank alike, from one thread, before
// anything else of Isthmus is used: a list that was read does not change. Throws OptionError where the name (`auto` is
// one) or the id is taken, the id is below kFirstOutside, a maker, wire_bits or prior_error is missing, or it is too
// late.
void register_codec(const CodecType& type);

}  // namespace isthmus
