// NCCL's topology XML, which NCCL_TOPO_FILE takes and NCCL_TOPO_DUMP_FILE gets. The hand-written kind has PCI devices
// with classes only; a dump has <gpu>, <nic>, <net> and <nvlink> elements. A <pci> bridge stands for a whole switch,
// and a <cpu> for a NUMA node with all its host bridges.
#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "topology/pcie.h"
#include "topology/read.h"

namespace isthmus::topology {
namespace {

constexpr long long kMostMbitS = 1'000'000'000, kMostIndex = (1LL << 31) - 1;
constexpr const char* kHidden = "fffffff";  // what NVML says of a switch that a virtual machine cannot see

// Gbit/s in one direction of one NVLink, by compute capability (10 x major + minor). From NVIDIA's data sheets, which
// add both directions of all links: P100 4 links, 160 GB/s; V100 6, 300; A100 12, 600; A40 4, 112.5; H100 18, 900; B200
// and B300 18, 1800.
std::optional<double> nvlink_gbit_s(long long capability) {
  static const std::map<long long, double> speeds = {{60, 160}, {70, 200},  {80, 200}, {86, 112.5},
                                                     {90, 200}, {100, 400}, {103, 400}};
  const auto found = speeds.find(capability);
  return found == speeds.end() ? std::nullopt : std::optional(found->second);
}

// Processors in a mask of 32-bit words, the highest first: "000000ff,ffff0000" -> "16-39". "": no such mask.
std::string cpus_of_mask(std::string mask) {
  static const std::regex kMask("(?:[0-9a-fA-F]{0,8},)*[0-9a-fA-F]{0,8}");
  if (mask.size() > 2304 || !std::regex_match(mask, kMask)) {
    return "";
  }
  std::erase(mask, ',');
  std::string cpus;
  const int end = static_cast<int>(mask.size()) * 4;
  for (int cpu = 0, first = -1; cpu <= end; ++cpu) {
    const bool is_in = cpu < end && (std::stoi(mask.substr((end - 1 - cpu) / 4, 1), nullptr, 16) >> cpu % 4 & 1) != 0;
    if (is_in && first == -1) {
      first = cpu;
    } else if (!is_in && first != -1) {
      cpus += (cpus.empty() ? "" : ",") + std::to_string(first);
      cpus += first == cpu - 1 ? "" : isthmus::detail::concatenate("-", cpu - 1);
      first = -1;
    }
  }
  return cpus;
}

// The first 16 of the 24 bits that are written as 0x030200; "0x03" alone is a class without a subclass.
int class_code(const Element& pci) {
  static const std::regex kClass("(?:0[xX])?([0-9a-fA-F]{1,6})");
  const std::string text = pci.text("class");
  if (text.empty()) {
    return -1;
  }
  std::smatch match;
  const bool is_code = std::regex_match(text, match, kClass);
  require(is_code, pci.line, "<pci> has class='", text.substr(0, 40), "': expected one like 0x030200");
  return std::stoi((match.str(1) + "000").substr(0, 4), nullptr, 16);
}

std::string bus_id_of(const Element& element, const char* attribute) {
  const std::string text = element.text(attribute), bus_id = canonical_bus_id(text);
  require(!bus_id.empty(), element.line, "'", text.substr(0, 40), "' is no PCI bus id: expected one like 0000:07:00.0");
  return bus_id;
}

std::string processor_model(const Element& cpu) {
  std::string model;
  for (const auto& [what, name] : {std::pair("", "vendor"), {"family ", "familyid"}, {"model ", "modelid"}}) {
    const std::string part = cpu.text(name);
    model += part.empty() ? "" : (model.empty() ? "" : " ") + (what + part);
  }
  return model.empty() ? cpu.text("arch") : model;
}

class Reader {
 public:
  Machine machine(const Element& system) {
    system.integer("version", 1, 2, 1);  // 1: NCCL, 2: RCCL
    const std::vector<const Element*> cpus = system.all("cpu");
    std::set<std::string> hosts;
    for (const Element* cpu : cpus) {
      hosts.insert(cpu->text("host_hash"));
    }
    if (hosts.size() > 1) {  // a multi-node NVLink domain
      machine_.note("the file describes " + std::to_string(hosts.size()) + " hosts: the first, host_hash " +
                    cpus[0]->text("host_hash") + ", is read");
    }
    for (const Element* cpu : cpus) {
      if (cpu->text("host_hash") == cpus[0]->text("host_hash")) {
        read_cpu(*cpu);
      }
    }
    return finished();
  }

 private:
  Machine finished() {
    require(machine_.num_devices() != 0, 0, "names neither a GPU nor a NIC");
    bool has_nvlinks = false;
    for (Gpu& gpu : machine_.gpus) {
      has_nvlinks = has_nvlinks || !gpu.nvlinks.empty();
      for (NvLinks& links : gpu.nvlinks) {  // one that has no class may be a GPU of the file still
        links.is_to_switch = links.is_to_switch && gpus_.count(links.peer) == 0;
      }
    }
    finish(machine_);
    machine_.source = "nccl xml";
    if (machine_.numa_nodes.size() > 1) {
      machine_.note("NCCL's files name NUMA nodes, not sockets: each NUMA node is taken for a socket");
    }
    machine_.note("NCCL's files name no host bridges: PHB stands for PHB and NODE");
    if (machine_.gpus.size() > 1 && !has_nvlinks) {
      machine_.note("the file names no NVLinks: GPUs are taken to be joined by PCIe only");
    }
    return std::move(machine_);
  }

  // A NUMA node with all that hangs from it.
  void read_cpu(const Element& cpu) {
    const int index = static_cast<int>(cpu.integer("numaid", -1, kMostNumaNodes - 1, -1));
    const int bridge = machine_.add({"host bridge", "", -1, {}, {}});
    if (index < 0) {
      machine_.note("a NUMA node has no number: its devices are in none");
    } else {
      require(numbers_.insert(index).second, cpu.line, "NUMA node ", index, " is given twice");
      machine_.numa_nodes.push_back({index, index, cpus_of_mask(cpu.text("affinity"))});
      machine_.sockets.push_back({index, processor_model(cpu)});
      machine_.pcie[bridge].numa_node = index;
    }
    for (const Element* nic : cpu.all("nic")) {
      read_nets(*nic, machine_.add({"nic", "", bridge, {}, {}}), -1, -1);
    }
    for (const Element* pci : cpu.all("pci")) {
      read_pci(*pci, bridge, 2);
    }
  }

  void read_pci(const Element& pci, int above, int depth) {
    require(depth <= kMostPcieLevels, pci.line, "PCIe devices nest more than ", kMostPcieLevels, " deep");
    const std::string bus_id = bus_id_of(pci, "busid");
    const auto [first, is_new] = line_of_.emplace(bus_id, pci.line);
    require(is_new, pci.line, "bus id ", bus_id, " is given twice, first in line ", first->second);
    const int place =
        machine_.add({"switch", bus_id, above, pcie_gbit_s({pci.text("link_speed"), pci.text("link_width")}), {}});
    const int code = class_code(pci), vendor = static_cast<int>(pci.integer("vendor", 0, 0xFFFF, -1));
    const auto gpus = pci.all("gpu"), nics = pci.all("nic");
    if (!gpus.empty() || (code != -1 && is_gpu(code, vendor))) {
      machine_.pcie[place].kind = "gpu";
      machine_.gpus.push_back(gpu(pci, gpus.empty() ? nullptr : gpus[0], bus_id, vendor));
      machine_.gpus.back().place = place;
      gpus_.insert(bus_id);
    } else if (!nics.empty() || (code != -1 && is_nic(code))) {
      machine_.pcie[place].kind = "nic";
      const size_t before = machine_.nics.size();
      if (!nics.empty()) {
        read_nets(*nics[0], place, code, vendor);
      }
      if (machine_.nics.size() == before) {
        add_nic(place).kind = nic_kind(code, vendor, "", code == 0x0207);
      }
    }
    for (const Element* child : pci.all("pci")) {
      read_pci(*child, place, depth + 1);
    }
  }

  // A GPU that <gpu> describes, or one that is known by its class only.
  static Gpu gpu(const Element& pci, const Element* element, const std::string& bus_id, int vendor) {
    Gpu found;
    found.bus_id = bus_id;
    found.model = gpu_model(vendor, static_cast<int>(pci.integer("device", 0, 0xFFFF, -1)));
    if (element == nullptr) {
      return found;
    }
    found.index = static_cast<int>(element->integer("dev", 0, kMostIndex, -1));
    const long long capability = element->integer("sm", 0, 999, -1);
    if (found.model.empty() && capability != -1) {
      found.model =
          "GPU of compute capability " + std::to_string(capability / 10) + "." + std::to_string(capability % 10);
    }
    int total = 0;
    for (const Element* nvlink : element->all("nvlink")) {
      std::string target = nvlink->text("target"), target_class = nvlink->text("tclass");
      std::transform(target.begin(), target.end(), target.begin(), [](unsigned char one) { return std::tolower(one); });
      target = target.starts_with(kHidden) ? kHidden : bus_id_of(*nvlink, "target");
      const int count = static_cast<int>(nvlink->integer("count", 1, kMostNvLinks, 1));
      require(target != bus_id, nvlink->line, "<nvlink> of ", bus_id, " leads to itself");
      if (target_class != "0x068001") {  // POWER's processors have NVLinks, too
        found.nvlinks.push_back({target, !target_class.starts_with("0x03"), count, nvlink_gbit_s(capability)});
        total += count;
      }
      require(total <= kMostNvLinks, nvlink->line, bus_id, " has more than ", kMostNvLinks, " NVLinks");
    }
    return found;
  }

  void read_nets(const Element& nic, int place, int code, int vendor) {
    for (const Element* net : nic.all("net")) {
      Nic& port = add_nic(place);
      port.name = net->text("name");
      const auto mbit_s = static_cast<double>(net->integer("speed", -kMostMbitS, kMostMbitS, 0));
      port.speed_gbit_s = mbit_s > 0 ? std::optional(mbit_s / 1000) : std::nullopt;
      // NCCL names sockets after interfaces (eth0, ens5), and devices of verbs or plugins otherwise (mlx5_0).
      const bool speaks_verbs = !(port.name.starts_with("eth") || port.name.starts_with("en") ||
                                  port.name.starts_with("bond") || port.name.starts_with("ib"));
      port.kind = nic_kind(code, vendor, port.name, speaks_verbs);
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
  std::set<std::string> gpus_;
  std::map<std::string, int> line_of_;
};

}  // namespace

Machine parse_nccl(const Element& system) { return Reader().machine(system); }

}  // namespace isthmus::topology
