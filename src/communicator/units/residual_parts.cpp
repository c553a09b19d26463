#include "communicator/units/residual_parts.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/stable_hash.h"
#include "isthmus/error.h"

namespace isthmus {
namespace {

ResidualPart cut(const ResidualPart& part, int64_t begin, int64_t end) {
  return {part.piece, part.parameter, begin, part.values.slice(begin - part.begin, end - begin)};
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

std::vector<ResidualPart> parts_of(Buffer residual, const std::vector<ResidualStretch>& stretches,
                                   const Sections& sections) {
  std::vector<ResidualPart> parts;
  for (const ResidualStretch& stretch : stretches) {
    int64_t section_begin = 0;
    for (const Section& section : sections.all()) {
      const int64_t begin = std::max(stretch.begin, section_begin);
      const int64_t end = std::min(stretch.begin + stretch.num_elements, section_begin + section.num_elements);
      if (begin < end) {
        parts.push_back({stretch.piece, section.parameter, begin - section_begin,
                         residual.slice(stretch.offset + begin - stretch.begin, end - begin)});
      }
      section_begin += section.num_elements;
    }
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return parts;
}

bool overlap(const ResidualPart& part, const std::vector<ResidualPart>& others) {
  return std::any_of(others.begin(), others.end(), [&part](const ResidualPart& other) {
    return other.is_beside(part) && std::max(other.begin, part.begin) < std::min(other.end(), part.end());
  });
}

ParkedPart park(Device& device, Stream stream, const ResidualPart& part) {
  ParkedPart parked{part, device.allocate(part.values.bytes())};
  parked.part.values.data = parked.memory.get();
  device.convert(part.values, parked.part.values, stream);
  return parked;
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

void multiply(Device& device, const Residual& residual, double factor) {
  const auto multiply_values = [&](Buffer values) {
    if (values.data != nullptr) {
      device.multiply(values, factor, device.lane(residual.lane));
    }
  };
  multiply_values(residual.values);
  for (const ParkedPart& one : residual.parked) {
    multiply_values(one.part.values);
  }
}

}  // namespace isthmus
