// Checks of a collective's arguments. Each throws Error.
#pragma once

#include "isthmus/buffer.h"
#include "isthmus/error.h"
#include "isthmus/unit.h"

namespace isthmus {

inline void check_unit(const UnitKey& unit, Collective collective, ConstBuffer data) {
  ISTHMUS_CHECK(Error, unit.num_elements == data.num_elements && unit.dtype == data.dtype, "unit \"", unit.name,
                "\" has ", unit.num_elements, " elements of ", to_string(unit.dtype), ", but its gradient has ",
                data.num_elements, " of ", to_string(data.dtype));
  ISTHMUS_CHECK(Error, unit.collective == collective, "unit \"", unit.name, "\" is one of ", to_string(unit.collective),
                ", but is reduced by ", to_string(collective));
}

inline void check_reduce_scatter(int num_ranks, ConstBuffer gradient, ConstBuffer shard, const UnitKey& unit) {
  ISTHMUS_CHECK(Error, gradient.dtype != DataType::kByte && gradient.dtype == shard.dtype, "reduce_scatter of ",
                to_string(gradient.dtype), " into ", to_string(shard.dtype), ": expected one floating type");
  ISTHMUS_CHECK(Error, gradient.num_elements == shard.num_elements * num_ranks, "reduce_scatter of ",
                gradient.num_elements, " elements over ", num_ranks, " ranks into ", shard.num_elements, ": expected ",
                num_ranks, " chunks of the shard's size");
  check_unit(unit, Collective::kReduceScatter, gradient);
}

inline void check_all_reduce(ConstBuffer data, const UnitKey& unit) {
  ISTHMUS_CHECK(Error, data.dtype != DataType::kByte, "all_reduce of ", to_string(data.dtype),
                ": expected a floating type");
  check_unit(unit, Collective::kAllReduce, data);
}

inline void check_all_gather(int num_ranks, ConstBuffer shard, ConstBuffer gathered) {
  ISTHMUS_CHECK(Error, shard.dtype == gathered.dtype, "all_gather of ", to_string(shard.dtype), " into ",
                to_string(gathered.dtype), ": expected one type");
  ISTHMUS_CHECK(Error, gathered.num_elements == shard.num_elements * num_ranks, "all_gather of ", shard.num_elements,
                " elements over ", num_ranks, " ranks into ", gathered.num_elements, ": expected ", num_ranks,
                " chunks of the shard's size");
}

}  // namespace isthmus
