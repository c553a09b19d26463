#pragma once

namespace isthmus::torch_backend {

// Features that only some world backends have.
struct WorldAbilities {
  bool premultiplied_sums = false;  // ReduceOp::PREMUL_SUM
  bool all_to_all_of_lists = false;
  bool coalesced_gathers = false;
  bool groups = false;  // calls between its startCoalescing() and endCoalescing() start together
};

}  // namespace isthmus::torch_backend
