// The registry of codecs, which has one CodecType for each. CONTRIBUTING.md says how to add a codec.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "isthmus/buffer.h"
#include "isthmus/codec.h"
#include "isthmus/options.h"

namespace isthmus {

class Device;

// Identifies a codec in the header of its packets. 4 stays reserved: codec sparse, which is gone, had it. Ids from
// kFirstOutside on are for codecs outside of Isthmus.
enum class CodecId : uint8_t { kNone = 1, kTagc = 2, kQuant = 3, kFirstOutside = 128 };
const char* to_string(CodecId id);  // the codec's name; "unknown" where none is registered

// An option that a codec reads.
struct CodecOption {
  OptionField field;           // only its name where Isthmus or another codec declares it
  bool shapes_packets = true;  // whether packets depend on its value: Options::codec_settings()
};

// A part of PacketHeader::settings. An error names it if the sender has another value.
struct HeaderPart {
  const char* name;  // "peeling rounds"
  int first_bit;
  int num_bits;
};

// One row of the registry. Any thread may call its functions, with options that passed validate().
struct CodecType {
  CodecId id = CodecId::kFirstOutside;
  const char* name = nullptr;  // the value of option `codec`

  // The options that the codec uses, besides those that every lossy codec has (dense_steps, error_interval).
  std::vector<CodecOption> options = {};

  // The makers behind make_codec() and Device::make_codec(). make_on_device is null for a codec that runs on no device.
  // The codec keeps a reference to the device.
  std::unique_ptr<HostCodec> (*make_on_host)(const Options&, DataType wire_dtype, int ranks_per_node) = nullptr;
  std::unique_ptr<Codec> (*make_on_device)(const Options&, DataType wire_dtype, int ranks_per_node,
                                           Device& device) = nullptr;

  std::vector<HeaderPart> header_parts = {};
  // "values" or "bytes": what the checksum covers, for the error about a wrong checksum. Set by a codec that adds
  // packets up before it has their checksum. Null: packets are checked first, and the error says so.
  const char* checksum_of = nullptr;
};

// All codecs: first those of Isthmus, then outside ones in the order of registration. Any thread may call it.
const std::vector<const CodecType*>& codec_types();
// Throws OptionError that lists all codecs if the name is unknown.
const CodecType& find_codec(const std::string& name);
// {"none", "tagc", "quant"}, sorted by id.
std::vector<std::string> codec_names();

// Adds a codec from outside; `type` must live as long as the process. Every rank calls it alike, from one thread,
// before it uses anything else of Isthmus: once the list was read it does not change. Throws OptionError if the name or
// id is taken, the id is below kFirstOutside, make_on_host is missing, or the call is too late.
void register_codec(const CodecType& type);

}  // namespace isthmus
