// What a machine is: sockets, NUMA nodes, GPUs, NICs, the PCIe tree, and how far its devices are apart. And its rails:
// which NIC each local index should use, and its speed out of the node.
//
// Readers fill in what their source says; finish() does the rest. Text that is empty, a number that is absent: the
// source does not say it. Speeds are those of one direction in Gbit/s (10^9 bits).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "isthmus/error.h"

namespace isthmus::topology {

// More GPUs or NICs than this are an error: no machine has them, and pairs of devices grow with the square.
constexpr int kMostDevices = 256;
constexpr int kMostNumaNodes = 1024;
constexpr int kMostFastLinks = 72;     // of a GPU; today's have 18
constexpr double kMostGbitS = 10'000;  // faster than any link; drivers say so of what they do not know

// A description of a machine cannot be used. The text says it with the value that is wrong and what is allowed.
class TopologyError : public Error {
 public:
  // line: where in the file, from 1 on; 0: nowhere in particular.
  explicit TopologyError(const std::string& what, int line_of_file = 0) : Error(what), line(line_of_file) {}
  int line;
};

// Throws all parts as one text, unless `holds`. line: as of a TopologyError.
template <typename... Parts>
void require(bool holds, int line, const Parts&... parts) {
  if (!holds) {
    throw TopologyError(detail::concatenate(parts...), line);
  }
}

// A processor package. model: its marketing name, or what the source says of vendor, family and model.
struct Socket {
  int index = 0;
  std::string model;
};

// Memory and the processors next to it. cpus: numbers of logical processors, such as "0-55,112-167".
struct NumaNode {
  int index = 0;
  std::optional<int> socket;
  std::string cpus;
};

// Links between GPUs that are faster than PCIe: "NV", NVIDIA's NVLink; "XGMI", AMD's; "XeLink", Intel's.
// Those of a GPU that lead to one place: another GPU, by its bus id, or a switch. gbit_s: of one of them.
struct FastLinks {
  std::string kind = "NV";
  std::string peer;
  bool is_to_switch = false;
  int count = 1;
  std::optional<double> gbit_s;
};
inline bool is_fast(const std::string& kind) { return kind.starts_with("NV") || kind == "XGMI" || kind == "XeLink"; }

// A GPU or a NIC. place: in the PCIe tree; -1: it is in none.
struct Device {
  int index = -1;
  std::string bus_id;
  std::optional<int> numa_node;
  int place = -1;
};

// index: what CUDA or nvidia-smi calls it; -1 while no source says it. fabric: cluster and clique of a multi-node
// NVLink domain, as NVML names it: GPUs of equal ones reach each other over NVLink. c2c_gbit_s: of the links to the
// processor of its own package (Grace), beside which its PCIe link is a stub.
struct Gpu : Device {
  std::string model;
  std::optional<std::pair<std::string, int>> fabric;
  std::vector<FastLinks> fast_links;
  std::optional<double> c2c_gbit_s;
};

// One port of a network adapter. name: of the verbs device (mlx5_0) or else of the interface (eth0). kind:
// "infiniband", "roce", "ethernet", "efa" or "unknown".
struct Nic : Device {
  std::string name;
  std::string kind = "unknown";
  std::optional<double> speed_gbit_s;
  bool speaks_rdma() const { return kind == "infiniband" || kind == "roce" || kind == "efa"; }
};

// The best path between two devices. kind: how far they are apart: "X" (itself), "NV12", "XGMI", "XeLink", "PIX",
// "PXB", "PHB", "NODE" or "SYS", as in docs/topology.md. speed_gbit_s: of all its fast links, or of the slowest PCIe
// link on the way.
struct Link {
  std::string kind;
  std::optional<double> speed_gbit_s;
};

// A place of the PCIe tree. kind: "host bridge", "switch", "gpu" or "nic", which may be several ports of one adapter.
// Ports of a switch are folded into it. above: in the machine's list; -1 for a host bridge. link_speed_gbit_s: of the
// link towards the root. numa_node: a host bridge's.
struct PcieNode {
  std::string kind;
  std::string bus_id;
  int above = -1;
  std::optional<double> link_speed_gbit_s;
  std::optional<int> numa_node;
};

// The places from the top of a tree down to a device; none for one that is not in it.
using Path = std::vector<const PcieNode*>;

// source: where the description came from. links: of all devices with all, a row after the other; GPUs come before
// NICs, each by rising index. pcie: whatever is above another place comes before it; places without devices are of no
// account. notes: what was assumed, one sentence each, for people.
struct Machine {
  std::string name;
  std::string source;
  std::vector<Socket> sockets;
  std::vector<NumaNode> numa_nodes;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  std::vector<Link> links;
  std::vector<PcieNode> pcie;
  std::vector<std::string> notes;

  int num_devices() const { return static_cast<int>(gpus.size() + nics.size()); }
  const Device& device(int number) const;
  // "GPU0", "NIC3".
  std::string id(int device) const;
  const Link& link(int a, int b) const { return links[a * num_devices() + b]; }
  Path path(int device) const;
  // Returns the number of the place.
  int add(const PcieNode& place);
  // Unless it is there.
  void note(const std::string& text);
};

// Numbers devices: as their source does where all have a number of their own, else by bus id. Devices get the NUMA node
// of their host bridge, and links, unless they have some. Sockets and NUMA nodes are sorted.
void finish(Machine& machine);

// How many places two paths begin with in common.
size_t num_shared(const Path& a, const Path& b);

// Without blanks at its ends, and with a question mark for whatever is no printable ASCII.
std::string printable(const std::string& text);

// The canonical form of a bus id, "0000:07:00.0"; "" for what is none.
std::string canonical_bus_id(const std::string& text);

// The ranks with this local index, and the NICs that they should use. gpu, nics: places in the machine's lists; gpu -1:
// none. distance: from the GPU to the NICs. num_sharing: ranks of the node that use the first of them, this one
// included. speed_gbit_s: at most, over all of them, while all ranks send and receive.
struct Rail {
  int local_index = 0;
  int gpu = -1;
  std::vector<int> nics;
  std::string distance;
  int num_sharing = 1;
  std::optional<double> speed_gbit_s;
};

// One a rank; none where the machine has no NIC.
struct Rails {
  std::vector<Rail> rails;
  std::vector<std::string> notes;
};

// Pairs ranks with NICs, by the rules of docs/topology.md. ranks_per_node: by default one a GPU, or one where there is
// no GPU. Throws TopologyError where there are more ranks than GPUs, or none.
Rails find_rails(const Machine& machine, std::optional<int> ranks_per_node = {});

// Machines without fast links between all GPUs have islands, which can be nodes. gpus: places in the machine's list.
// by: what joins those of one: "NVLink", "XGMI" or "XeLink", else a "PCIe switch", else a "NUMA node"; "": nothing
// joins any two. distance: of the farthest two GPUs of different islands. gbit_s: what a GPU sends to other islands at
// most, while all do; links between sockets are not in it.
struct Islands {
  std::vector<std::vector<int>> gpus;
  std::string by;
  std::string distance;
  std::optional<double> gbit_s;
};
Islands find_islands(const Machine& machine);

// The places of the NICs that rails run over: those with RDMA, if any, and among these none that is far slower than the
// best.
std::vector<int> rail_nics(const Machine& machine);

}  // namespace isthmus::topology
