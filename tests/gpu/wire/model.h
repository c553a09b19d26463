// How long operations of NCCL take over links of chosen speeds. Python sets it, by ctypes (tests/gpu/rehearsal).
#pragma once

#include <cstdint>

extern "C" {

// The machines and links. Communicators of all ranks are rings, through every node at the node's speed; those of
// `ranks_of_node` ranks are inside a node; those of `num_nodes` ranks are one of the rails that share a node's speed.
struct WireModel {
  int32_t ranks_of_node;
  int32_t num_nodes;
  double intra_bytes_per_s;  // of a rank, in each direction
  double node_bytes_per_s;   // between nodes, of a node, in each direction
  double latency_s;          // of an operation
  int32_t num_blocks;        // of an operation, where its communicator's configuration has no lower bound
  int32_t is_on;             // 0: operations do nothing at all
};

// What operations added up to since it was last asked. By link: inside a node, between nodes.
struct WireTotals {
  int64_t operations[2];
  int64_t bytes[2];  // that a rank sent
  double hold_s[2];
  int64_t kernels[2];  // operations that start together are one
};

// A communicator that was made. most_blocks: its configuration's bound of multiprocessors; 0: none.
struct WireCommunicator {
  int32_t size;
  int32_t most_blocks;
};

void wire_set_model(const WireModel* model);
void wire_take_totals(WireTotals* totals);
// Writes the first `most` communicators of the process; returns how many there are.
int32_t wire_communicators(WireCommunicator* communicators, int32_t most);
// The priority of streams that Isthmus makes from now on, whatever it asks for; 1: what it asks for.
void wire_set_lane_priority(int priority);
}
