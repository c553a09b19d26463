// The registry of codecs: one CodecType each. CONTRIBUTING.md says how to add a codec.
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

class Device;

// Identifies a codec in the header of its packets. 4 stays reserved: it was the id of codec sparse, which is gone. Ids
// from kFirstOutside on are for codecs outside of Isthmus.
enum class CodecId : uint8_t { kNone = 1, kTagc = 2, kQuant = 3, kFirstOutside = 128 };
const char* to_string(CodecId id);  // the codec's name; "unknown" where none is registered

// An option that a codec looks at.
struct CodecOption {
  OptionField field;           // its name alone where another codec, or Isthmus itself, declares it
  const char* only = "";       // with which other option: "tiers=flat"; empty: always
  bool shapes_packets = true;  // whether its value decides how packets are made: Options::codec_settings()
};

// A part of PacketHeader::settings that an error names if the sender has another value.
struct HeaderPart {
  const char* name;  // "cell type"
  int first_bit;
  int num_bits;
};

// One row of the registry. Functions may be called from any thread, with options that validate() has seen.
struct CodecType {
  CodecId id = CodecId::kFirstOutside;
  const char* name = nullptr;  // the value of option `codec`

  // The options that it uses, without those of every lossy codec (dense_steps, error_interval).
  std::vector<CodecOption> options = {};

  // As make_codec() and Device::make_codec(). make_on_device: null where there is none for devices. The codec refers to
  // the device.
  std::unique_ptr<HostCodec> (*make_on_host)(const Options&, DataType wire_dtype, int ranks_per_node) = nullptr;
  std::unique_ptr<Codec> (*make_on_device)(const Options&, DataType wire_dtype, int ranks_per_node,
                                           Device& device) = nullptr;

  std::vector<HeaderPart> header_parts = {};
  // "values" or "bytes": names the checksummed data in the error of a packet whose checksum differs. For a codec that
  // adds packets up before it has their checksum; null: packets are checked first, and the error says so.
  const char* checksum_of = nullptr;
  // The text of a fault that decoding on a device found, if it is of a kind of this codec alone; else null.
  const char* (*fault_text)(uint32_t kind) = nullptr;
};

// All codecs: those of Isthmus, then those from outside as they were registered. From any thread.
const std::vector<const CodecType*>& codec_types();
// Throws OptionError, which names all codecs, for an unknown name.
const CodecType& find_codec(const std::string& name);
// {"none", "tagc", "quant"}: by id.
std::vector<std::string> codec_names();

// Adds a codec from outside. `type` stays alive as long as the process. Called on every rank alike, from one thread,
// before anything else of Isthmus is used: a list that was read does not change. Throws OptionError if the name or the
// id is taken, the id is below kFirstOutside, make_on_host is missing, or it is called too late.
void register_codec(const CodecType& type);

}  // namespace isthmus
