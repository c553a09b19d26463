// A communicator that finds units by their keys, and holds them.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "isthmus/communicator.h"

namespace isthmus::test {

// A Reduction of the unit with this key.
struct KeyedReduction {
  UnitKey key;
  double scale = 1;
  std::optional<Reason> why_exact = {};
  std::shared_ptr<const Sections> sections = nullptr;
  std::optional<Stream> input_stream = {};
};

class KeyedCommunicator : public Communicator {
 public:
  using Communicator::Communicator;

  UnitPtr held(const UnitKey& key) {
    UnitPtr& unit = held_[key];
    unit = unit != nullptr ? unit : make_unit(key);
    return unit;
  }
  void let_go() { held_.clear(); }
  void let_go(const UnitKey& key) { held_.erase(key); }
  void load(const UnitState& state) { held_[state.key] = units().load(state); }

  EventPtr reduce_scatter(ConstBuffer gradient, Buffer shard, const KeyedReduction& reduction, Stream stream = {}) {
    return Communicator::reduce_scatter(gradient, shard, of(reduction), stream);
  }
  EventPtr all_reduce(Buffer data, const KeyedReduction& reduction, Stream stream = {}) {
    return Communicator::all_reduce(data, of(reduction), stream);
  }
  WeightGatherPtr gather_weights(ConstBuffer shard, Buffer gathered, const UnitKey& key, Stream stream = {}) {
    return Communicator::gather_weights(shard, gathered, held(key), stream);
  }

 private:
  Reduction of(const KeyedReduction& reduction) {
    return {held(reduction.key), reduction.scale, reduction.why_exact, reduction.sections, reduction.input_stream};
  }

  std::map<UnitKey, UnitPtr> held_;
};

}  // namespace isthmus::test
