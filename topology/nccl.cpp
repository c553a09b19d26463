// NCCL's topology XML, which NCCL_TOPO_FILE takes and NCCL_TOPO_DUMP_FILE gets. The hand-written kind has PCI devices
// with classes only; a dump has <gpu>, <nic>, <net> and <nvlink> elements. A <pci> bridge stands for a whole switch,
// and a <cpu> for a NUMA node with all its host bridges.
#include <algorithm>
#include <map>
#include <set>

#include "topology/hwloc.h"
#include "topology/read.h"

namespace isthmus::topology {
namespace {

constexpr long long kMostMbitS = 1'000'000'000, kMostIndex = (1LL << 31) - 1;
constexpr const char* kHidden = "fffffff";  // what NVML says of a switch that a virtual machine cannot see

// Gbit/s in one direction of one NVLink, by compute capability (10 x major + minor). From NVIDIA's data sheets, which
// add both directions of all links: P100 4 links, 160 GB/s; V100 6, 300; A100 12, 600; A40 4, 112.5; H100 18, 900; B200
// and B300 18, 1800.
const std::map<long long, double> kNvLinkGbitS = {{60, 160}, {70, 200},  {80, 200}, {86, 112.5},
                                                  {90, 200}, {100, 400}, {103, 400}};

// The first 16 of the 24 bits that are written as 0x030200; "0x03" alone is a class without a subclass; -1: none.
int class_code(const Element& pci) {
  const std::string text = pci.text("class");
  require(text.empty() || (text.starts_with("0x") && text.size() <= 8), pci.line, "<pci> has class='",
          text.substr(0, 40), "': expected one like 0x030200");
  const auto code = static_cast<int>(pci.integer("class", 0, 0xFFFFFF, -1));
  return code == -1 ? -1 : code << 4 * (8 - text.size()) >> 8;
}

std::string bus_id_of(const Element& element, const char* attribute) {
  const std::string text = element.text(attribute), bus_id = canonical_bus_id(text);
  require(!bus_id.empty(), element.line, "'", text.substr(0, 40), "' is no PCI bus id: expected one like 0000:07:00.0");
  return bus_id;
}

std::string processor_model(const Element& cpu) {
  std::string model = cpu.text("vendor");
  for (const auto& [what, name] : {std::pair(" family ", "familyid"), {" model ", "modelid"}}) {
    model += cpu.text(name).empty() ? "" : what + cpu.text(name);
  }
  return model.empty() ? cpu.text("arch") : printable(model);
}

class Reader {
 public:
  Machine machine(const Element& system) {
    system.integer("version", 1, 2, 1);  // 1: NCCL, 2: RCCL
    std::map<std::string, std::vector<const Element*>> hosts;
    const std::vector<const Element*> cpus = system.all("cpu");
    for (const Element* cpu : cpus) {
      hosts[cpu->text("host_hash")].push_back(cpu);
    }
    const std::string host = cpus.empty() ? "" : cpus[0]->text("host_hash");
    if (hosts.size() > 1) {  // a multi-node NVLink domain
      machine_.note("the file describes " + std::to_string(hosts.size()) + " hosts: the first, host_hash " + host +
                    ", is read");
    }
    for (const Element* cpu : hosts[host]) {
      read_cpu(*cpu);
    }
    require(machine_.num_devices() != 0, 0, "names neither a GPU nor a NIC");
    bool has_nvlinks = false;
    for (Gpu& gpu : machine_.gpus) {
      has_nvlinks = has_nvlinks || !gpu.nvlinks.empty();
      for (NvLinks& links : gpu.nvlinks) {  // one that has no class may be a GPU of the file still
        links.is_to_switch &= std::ranges::find(machine_.gpus, links.peer, &Gpu::bus_id) == machine_.gpus.end();
      }
    }
    finish(machine_);
    machine_.source = "nccl xml";
    if (machine_.numa_nodes.size() > 1) {
      machine_.note("NCCL's files name NUMA nodes, not sockets: each NUMA node is taken for a socket");
    }
    machine_.note("NCCL's files name no host bridges: PHB stands for PHB and NODE");
    if (machine_.gpus.size() > 1 && !has_nvlinks) {
      machine_.note(kNoNvLinks);
    }
    return std::move(machine_);
  }

 private:
  // A NUMA node with all that hangs from it.
  void read_cpu(const Element& cpu) {
    const int index = static_cast<int>(cpu.integer("numaid", -1, kMostNumaNodes - 1, -1));
    const int bridge = machine_.add({"host bridge", "", -1, {}, {}});
    if (index < 0) {
      machine_.note("a NUMA node has no number: its devices are in none");
    } else {
      require(numbers_.insert(index).second, cpu.line, "NUMA node ", index, " is given twice");
      machine_.numa_nodes.push_back({index, index, numbers_of(set_of_mask(cpu.text("affinity")).get())});
      machine_.sockets.push_back({index, processor_model(cpu)});
      machine_.pcie[bridge].numa_node = index;
    }
    for (const Element* nic : cpu.all("nic")) {
      read_nets(*nic, machine_.add({"nic", "", bridge, {}, {}}), -1, -1);
    }
    for (const Element* pci : cpu.all("pci")) {
      read_pci(*pci, bridge);
    }
  }

  void read_pci(const Element& pci, int above) {
    const std::string bus_id = bus_id_of(pci, "busid");
    const auto [first, is_new] = line_of_.emplace(bus_id, pci.line);
    require(is_new, pci.line, "bus id ", bus_id, " is given twice, first in line ", first->second);
    const int code = class_code(pci), vendor = static_cast<int>(pci.integer("vendor", 0, 0xFFFF, -1));
    const auto gpus = pci.all("gpu"), nics = pci.all("nic");
    const bool is_a_gpu = !gpus.empty() || is_gpu(code, vendor), is_a_nic = !nics.empty() || is_nic(code);
    const char* const kind = is_a_gpu ? "gpu" : is_a_nic ? "nic" : "switch";
    const int place =
        machine_.add({kind, bus_id, above, pcie_gbit_s({pci.text("link_speed"), pci.text("link_width")}), {}});
    if (is_a_gpu) {
      add_gpu(place, pci, gpus.empty() ? pci : *gpus[0], vendor);
    } else if (is_a_nic) {
      const size_t before = machine_.nics.size();
      if (!nics.empty()) {
        read_nets(*nics[0], place, code, vendor);
      }
      if (machine_.nics.size() == before) {
        add_nic(place).kind = nic_kind(code, vendor, "", code == 0x0207);
      }
    }
    for (const Element* child : pci.all("pci")) {
      read_pci(*child, place);
    }
  }

  // element: <gpu>; <pci> itself for a GPU that is known by its class only.
  void add_gpu(int place, const Element& pci, const Element& element, int vendor) {
    Gpu& gpu = machine_.gpus.emplace_back();
    gpu.bus_id = machine_.pcie[place].bus_id;
    gpu.place = place;
    gpu.model = gpu_model(vendor, static_cast<int>(pci.integer("device", 0, 0xFFFF, -1)));
    gpu.index = static_cast<int>(element.integer("dev", 0, kMostIndex, -1));
    const long long capability = element.integer("sm", 0, 999, -1);
    if (gpu.model.empty() && capability != -1) {
      gpu.model = isthmus::detail::concatenate("GPU of compute capability ", capability / 10, ".", capability % 10);
    }
    const auto speed = kNvLinkGbitS.find(capability);
    int total = 0;
    for (const Element* nvlink : element.all("nvlink")) {
      std::string target = nvlink->text("target"), target_class = nvlink->text("tclass");
      const bool is_hidden = target.starts_with(kHidden) || target.starts_with("FFFFFFF");
      target = is_hidden ? kHidden : bus_id_of(*nvlink, "target");
      const int count = static_cast<int>(nvlink->integer("count", 1, kMostNvLinks, 1));
      require(target != gpu.bus_id, nvlink->line, "<nvlink> of ", gpu.bus_id, " leads to itself");
      if (target_class != "0x068001") {  // POWER's processors have NVLinks, too
        gpu.nvlinks.push_back({target, !target_class.starts_with("0x03"), count, {}});
        gpu.nvlinks.back().gbit_s = speed == kNvLinkGbitS.end() ? std::nullopt : std::optional(speed->second);
        total += count;
      }
      require(total <= kMostNvLinks, nvlink->line, gpu.bus_id, " has more than ", kMostNvLinks, " NVLinks");
    }
  }

  void read_nets(const Element& nic, int place, int code, int vendor) {
    for (const Element* net : nic.all("net")) {
      Nic& port = add_nic(place);
      port.name = net->text("name");
      const auto mbit_s = static_cast<double>(net->integer("speed", -kMostMbitS, kMostMbitS, 0));
      port.speed_gbit_s = mbit_s > 0 ? std::optional(mbit_s / 1000) : std::nullopt;
      // NCCL names sockets after interfaces (eth0, ens5), and devices of verbs or plugins otherwise (mlx5_0).
      const auto starts = [&](const char* start) { return port.name.starts_with(start); };
      const bool is_interface = starts("eth") || starts("en") || starts("bond") || starts("ib");
      port.kind = nic_kind(code, vendor, port.name, !is_interface);
      port.index = static_cast<int>(net->integer("dev", 0, kMostIndex, -1));
    }
  }

  Nic& add_nic(int place) {
    Nic& nic = machine_.nics.emplace_back();
    nic.bus_id = machine_.pcie[place].bus_id;
    nic.place = place;
    return nic;
  }

  Machine machine_;
  std::set<int> numbers_;
  std::map<std::string, int> line_of_;
};

}  // namespace

Machine parse_nccl(const Element& system) { return Reader().machine(system); }

}  // namespace isthmus::topology
