#include "communicator/units/residual_parts.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "base/stable_hash.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

ResidualPart cut(const ResidualPart& part, int64_t begin, int64_t end) {
  return {part.piece, part.parameter, begin, part.values.slice(begin - part.begin, end - begin)};
}

// Gives `values` memory of zeros, written on `lane`.
DeviceMemory make_zeros(Device& device, const UnitKey& key, Lane lane, Buffer& values) {
  if (values.num_elements == 0) {
    return nullptr;
  }
  DeviceMemory memory;
  try {
    memory = device.allocate(values.bytes());
  } catch (const std::bad_alloc&) {
    throw Error(detail::concatenate("unit \"", key.name, "\": no memory for a residual of ", values.bytes(), " bytes"));
  }
  values.data = memory.get();
  device.clear(values, device.lane(lane));
  return memory;
}

// Copies the elements of a part that `to` has, and returns the others. `to` ascends within each piece and parameter.
std::vector<ResidualPart> deliver(Device& device, Stream stream, const ResidualPart& part,
                                  const std::vector<ResidualPart>& to) {
  std::vector<ResidualPart> left;
  int64_t next = part.begin;
  for (const ResidualPart& place : to) {
    const int64_t begin = std::max(next, place.begin);
    const int64_t end = std::min(part.end(), place.end());
    if (!place.is_beside(part) || begin >= end) {
      continue;
    }
    device.convert(cut(part, begin, end).values, cut(place, begin, end).values, stream);
    if (next < begin) {
      left.push_back(cut(part, next, begin));
    }
    next = end;
  }
  if (next < part.end()) {
    left.push_back(cut(part, next, part.end()));
  }
  return left;
}

// Copies the values into a part of its own.
ParkedPart park(Device& device, Stream stream, const ResidualPart& part) {
  ParkedPart parked{part, device.allocate(part.values.bytes())};
  parked.part.values.data = parked.memory.get();
  device.convert(part.values, parked.part.values, stream);
  return parked;
}

void copy_residual(Device& device, const Residual& from, Residual& to) {
  const Stream stream = device.lane(from.lane);
  if (from.values.data == nullptr) {
    to.values = from.values;
    to.memory = nullptr;
  } else {
    if (to.memory == nullptr || to.values.num_elements != from.values.num_elements) {
      to.memory = device.allocate(from.values.bytes());
      to.values = {to.memory.get(), from.values.num_elements, from.values.dtype};
    }
    device.convert(from.values, to.values, stream);
  }
  to.parked.clear();
  for (const ParkedPart& one : from.parked) {
    if (one.memory != nullptr) {
      to.parked.push_back(park(device, stream, one.part));
    }
  }
}

}  // namespace

Sections::Sections(std::vector<Section> sections) : sections_(std::move(sections)) {
  StableHash hash;
  for (const Section& section : sections_) {
    ISTHMUS_CHECK(
        Error, section.num_elements >= 0 && section.num_elements <= std::numeric_limits<int64_t>::max() - row_elements_,
        "parameter ", section.parameter, " has ", section.num_elements,
        " elements in a row: expected 0 or more, and no overflow");
    hash.add(section.parameter).add(section.num_elements);
    row_elements_ += section.num_elements;
  }
  hash_ = std::max<uint64_t>(hash.value() >> 1, 1);
}

uint64_t UnitKey::hash() const {
  return StableHash().add(num_elements).add(dtype).add(collective).add(layout).add(name).value();
}

UnitKey UnitKey::identity() const {
  UnitKey key = *this;
  if (sections != nullptr) {
    key.num_elements = 0;
    key.layout = 0;
    key.sections = nullptr;
  }
  return key;
}

ResidualSizes residual_sizes(const TierSet& tiers, bool is_flat, const UnitKey& key) {
  const bool is_all_reduce = key.collective == Collective::kAllReduce;
  if (tiers.num_nodes() == 1 || (is_flat && is_all_reduce)) {
    return {};
  }
  const int64_t chunk = tiers.chunk_elements(key.num_elements);
  return {is_flat ? key.num_elements : (tiers.num_nodes() - 1) * chunk, is_all_reduce ? chunk : 0};
}

// A reduce-scatter's residual has whole rows, and an all-reduce's has chunks of the only row, those of other nodes by
// node. Sections are as long as the rows, which GradientRecogniser checks.
std::vector<ResidualPart> parts_of(const TierSet& tiers, const UnitKey& key, Buffer residual, bool of_result) {
  std::vector<ResidualPart> parts;
  if (residual.num_elements == 0) {
    return parts;
  }
  const int64_t row = key.sections->row_elements();
  // What the residual has from `offset` on is the row from `first` on, up to `last`.
  const auto add = [&](int64_t piece, int64_t first, int64_t last, int64_t offset) {
    int64_t section_begin = 0;
    for (const Section& section : key.sections->all()) {
      const int64_t begin = std::max(first, section_begin);
      const int64_t end = std::min(last, section_begin + section.num_elements);
      if (begin < end) {
        parts.push_back(
            {piece, section.parameter, begin - section_begin, residual.slice(offset + begin - first, end - begin)});
      }
      section_begin += section.num_elements;
    }
  };
  const int64_t chunk = tiers.chunk_elements(key.num_elements);
  const auto add_chunk = [&](int owner, int64_t offset) {
    add(0, owner * chunk, std::min((owner + 1) * chunk, row), offset);
  };
  if (key.collective == Collective::kReduceScatter) {
    for (int64_t piece = 0; row > 0 && piece < residual.num_elements / row; ++piece) {
      add(piece, 0, row, piece * row);
    }
  } else if (of_result) {
    add_chunk(tiers.rank(), 0);
  } else {
    const std::vector<int> rail = tiers.map().rail_ranks(tiers.map().local_index(tiers.rank()));
    int64_t offset = 0;
    for (const int owner : rail) {
      if (owner != tiers.rank()) {
        add_chunk(owner, offset);
        offset += chunk;
      }
    }
  }
  std::ranges::stable_sort(parts, {}, &ResidualPart::begin);
  return parts;
}

bool overlap(const ResidualPart& part, const std::vector<ResidualPart>& others) {
  return std::any_of(others.begin(), others.end(), [&part](const ResidualPart& other) {
    return other.is_beside(part) && std::max(other.begin, part.begin) < std::min(other.end(), part.end());
  });
}

void move_parts(Device& device, Stream stream, const std::vector<ResidualPart>& from,
                const std::vector<ResidualPart>& to, std::vector<ParkedPart>& parked) {
  std::vector<ParkedPart> later;
  const auto move = [&](const ResidualPart& part) {
    for (const ResidualPart& left : deliver(device, stream, part, to)) {
      later.push_back(park(device, stream, left));
    }
  };
  for (const ResidualPart& part : from) {
    move(part);
  }
  for (ParkedPart& part : parked) {
    if (overlap(part.part, to)) {
      move(part.part);
    } else {
      later.push_back(std::move(part));
    }
  }
  parked = std::move(later);
}

void copy_residuals(Device& device, const Residuals& from, Residuals& to) {
  to.key = from.key;
  to.scale = from.scale;
  copy_residual(device, from.pieces, to.pieces);
  copy_residual(device, from.result, to.result);
}

int64_t Residual::bytes() const {
  int64_t bytes = memory != nullptr ? values.bytes() : 0;
  for (const ParkedPart& one : parked) {
    bytes += one.memory != nullptr ? one.part.values.bytes() : 0;
  }
  return bytes;
}

void Residual::make(Device& device, const UnitKey& key, int64_t num_elements) {
  values = {nullptr, num_elements, DataType::kFloat32};
  memory = make_zeros(device, key, lane, values);
  if (num_elements > 0 && guard == nullptr) {
    constexpr int64_t kBytes = sizeof(ResidualGuard);
    guard = std::static_pointer_cast<ResidualGuard>(device.allocate(kBytes));
    device.clear({guard.get(), kBytes, DataType::kByte}, device.lane(lane));
  }
}

void Residual::revive(Device& device, const UnitKey& key) {
  memory = memory == nullptr ? make_zeros(device, key, lane, values) : memory;
  for (ParkedPart& one : parked) {
    one.memory = one.memory == nullptr ? make_zeros(device, key, lane, one.part.values) : one.memory;
  }
}

void Residual::multiply(Device& device, double factor) const {
  const auto multiply_values = [&](Buffer some) {
    if (some.data != nullptr) {
      device.multiply(some, factor, device.lane(lane));
    }
  };
  multiply_values(values);
  for (const ParkedPart& one : parked) {
    multiply_values(one.part.values);
  }
}

}  // namespace isthmus
