// NCCL's topology XML, which NCCL_TOPO_FILE takes and NCCL_TOPO_DUMP_FILE gets. The hand-written kind has PCI devices
// with classes only; a dump has <gpu>, <nic>, <net> and <nvlink> elements. A <pci> bridge stands for a whole switch,
// and a <cpu> for a NUMA node with all its host bridges.
#include <algorithm>
#include <map>
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
  size_t in_word = 0;
  for (const char one : mask) {
    in_word = one == ',' ? 0 : in_word + 1;
    if ((one != ',' && std::isxdigit(static_cast<unsigned char>(one)) == 0) || in_word > 8 || mask.size() > 2304) {
      return "";
    }
  }
  std::erase(mask, ',');
  const auto has = [&](int cpu) {
    const int digit = static_cast<int>(mask.size()) - 1 - cpu / 4;
    return digit >= 0 && (std::stoi(std::string(1, mask[digit]), nullptr, 16) >> cpu % 4 & 1) != 0;
  };
  std::string cpus;
  for (int cpu = 0; cpu < static_cast<int>(mask.size()) * 4; ++cpu) {
    if (has(cpu)) {
      const int first = cpu;
      while (has(cpu + 1)) {
        ++cpu;
      }
      cpus += (cpus.empty() ? "" : ",") + std::to_string(first) + (cpu == first ? "" : "-" + std::to_string(cpu));
    }
  }
  return cpus;
}

// The first 16 of the 24 bits that are written as 0x030200; "0x03" alone is a class without a subclass.
int class_code(const Element& pci) {
  std::string digits = pci.text("class");
  const std::string text = digits;
  if (digits.empty()) {
    return -1;
  }
  digits = digits.substr(digits.starts_with("0x") || digits.starts_with("0X") ? 2 : 0);
  const bool is_hexadecimal = digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  require(!digits.empty() && digits.size() <= 6 && is_hexadecimal, pci.line, "<pci> has class='", text.substr(0, 40),
          "': expected one like 0x030200");
  digits.resize(std::max<size_t>(digits.size(), 4), '0');
  return std::stoi(digits.substr(0, 4), nullptr, 16);
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
        links.is_to_switch = links.is_to_switch && line_of_gpu_.count(links.peer) == 0;
      }
    }
    const auto by_index = [](const auto& a, const auto& b) { return a.index < b.index; };
    std::sort(machine_.numa_nodes.begin(), machine_.numa_nodes.end(), by_index);
    std::sort(machine_.sockets.begin(), machine_.sockets.end(), by_index);
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
    PcieNode bridge{"host bridge", "", {}, {}, {}, {}};
    if (index < 0) {
      machine_.note("a NUMA node has no number: its devices are in none");
    } else {
      require(numbers_.insert(index).second, cpu.line, "NUMA node ", index, " is given twice");
      machine_.numa_nodes.push_back({index, index, cpus_of_mask(cpu.text("affinity"))});
      machine_.sockets.push_back({index, processor_model(cpu)});
      bridge.numa_node = index;
    }
    for (const Element* nic : cpu.all("nic")) {
      bridge.children.push_back({"nic", "", nets(*nic, "", -1, -1), {}, {}, {}});
    }
    for (const Element* pci : cpu.all("pci")) {
      read_pci(*pci, bridge, 2);
    }
    machine_.pcie.push_back(std::move(bridge));
  }

  void read_pci(const Element& pci, PcieNode& parent, int depth) {
    require(depth <= kMostPcieLevels, pci.line, "PCIe devices nest more than ", kMostPcieLevels, " deep");
    PcieNode place{
        "switch", bus_id_of(pci, "busid"), {}, pcie_gbit_s({pci.text("link_speed"), pci.text("link_width")}), {}, {}};
    const auto [first, is_new] = line_of_.emplace(place.bus_id, pci.line);
    require(is_new, pci.line, "bus id ", place.bus_id, " is given twice, first in line ", first->second);
    const int code = class_code(pci), vendor = static_cast<int>(pci.integer("vendor", 0, 0xFFFF, -1));
    const auto gpus = pci.all("gpu"), nics = pci.all("nic");
    if (!gpus.empty() || (code != -1 && is_gpu(code, vendor))) {
      place.kind = "gpu";
      place.devices = {static_cast<int>(machine_.gpus.size())};
      machine_.gpus.push_back(gpu(pci, gpus.empty() ? nullptr : gpus[0], place.bus_id, vendor));
      line_of_gpu_.emplace(place.bus_id, pci.line);
    } else if (!nics.empty() || (code != -1 && is_nic(code))) {
      place.kind = "nic";
      place.devices = nics.empty() ? std::vector<int>() : nets(*nics[0], place.bus_id, code, vendor);
      if (place.devices.empty()) {
        place.devices = {add({-1, "", place.bus_id, nic_kind(code, vendor, "", code == 0x0207), {}, {}})};
      }
    }
    for (const Element* child : pci.all("pci")) {
      read_pci(*child, place, depth + 1);
    }
    parent.children.push_back(std::move(place));
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

  std::vector<int> nets(const Element& nic, const std::string& bus_id, int code, int vendor) {
    std::vector<int> places;
    for (const Element* net : nic.all("net")) {
      const std::string name = net->text("name");
      const long long mbit_s = net->integer("speed", -kMostMbitS, kMostMbitS, 0);
      // NCCL names sockets after interfaces (eth0, ens5), and devices of verbs or plugins otherwise (mlx5_0).
      bool speaks_verbs = true;
      for (const char* start : {"eth", "en", "bond", "ib"}) {
        speaks_verbs = speaks_verbs && !name.starts_with(start);
      }
      const int index = static_cast<int>(net->integer("dev", 0, kMostIndex, -1));
      places.push_back(add({index,
                            name,
                            bus_id,
                            nic_kind(code, vendor, name, speaks_verbs),
                            mbit_s > 0 ? std::optional(static_cast<double>(mbit_s) / 1000) : std::nullopt,
                            {}}));
    }
    return places;
  }

  int add(const Nic& nic) {
    machine_.nics.push_back(nic);
    return static_cast<int>(machine_.nics.size()) - 1;
  }

  Machine machine_;
  std::set<int> numbers_;
  std::map<std::string, int> line_of_, line_of_gpu_;
};

}  // namespace

Machine parse_nccl(const Element& system) { return Reader().machine(system); }

}  // namespace isthmus::topology
