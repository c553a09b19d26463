// NCCL's topology XML, which NCCL_TOPO_FILE takes and NCCL_TOPO_DUMP_FILE gets. The hand-written kind has PCI devices
// with classes only; a dump has <gpu>, <nic>, <net> and <nvlink> elements. A <pci> bridge stands for a whole switch,
// and a <cpu> for a NUMA node with all its host bridges. RCCL writes the same, with <xgmi> for <nvlink>.
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
// The same of one XGMI link, by AMD's name of the GPU, and as RCCL of before ROCm 6 wrote it. From AMD's data sheets,
// which add both directions: MI50 92 GB/s, MI100 92, MI250X 100, MI300X 128, MI355X 153.6.
const std::map<std::string, double> kXgmiGbitS = {{"906", 368}, {"908", 368}, {"90a", 400}, {"910", 400},
                                                  {"940", 512}, {"941", 512}, {"942", 512}, {"950", 614.4}};

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
    bool has_fast_links = false;
    for (Gpu& gpu : machine_.gpus) {
      has_fast_links = has_fast_links || !gpu.fast_links.empty();
      for (FastLinks& links : gpu.fast_links) {  // one that has no class may be a GPU of the file still
        links.is_to_switch &= std::ranges::find(machine_.gpus, links.peer, &Gpu::bus_id) == machine_.gpus.end();
      }
    }
    if (!left_out_.empty()) {
      machine_.note("left out: " + left_out_.substr(2) + " (made by software)");
    }
    finish(machine_);
    machine_.source = "nccl xml";
    if (machine_.numa_nodes.size() > 1) {
      machine_.note("NCCL's files name NUMA nodes, not sockets: each NUMA node is taken for a socket");
    }
    machine_.note("NCCL's files name no host bridges: PHB stands for PHB and NODE");
    if (machine_.gpus.size() > 1 && !has_fast_links) {
      machine_.note(kNoFastLinks);
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
    const int code = class_code(pci), vendor = static_cast<int>(pci.integer("vendor", 0, 0xFFFF, -1));
    const int device = static_cast<int>(pci.integer("device", 0, 0xFFFF, -1));
    const auto gpus = pci.all("gpu"), nics = pci.all("nic");
    const bool is_a_gpu = !gpus.empty() || is_gpu(code, vendor, device), is_a_nic = !nics.empty() || is_nic(code);
    if (is_a_gpu || is_a_nic) {  // RCCL's files give bus ids of bridges twice
      const auto [first, is_new] = line_of_.emplace(bus_id, pci.line);
      require(is_new, pci.line, "bus id ", bus_id, " is given twice, first in line ", first->second);
    }
    const char* const kind = is_a_gpu ? "gpu" : is_a_nic ? "nic" : "switch";
    const int place =
        machine_.add({kind, bus_id, above, pcie_gbit_s({pci.text("link_speed"), pci.text("link_width")}), {}});
    if (is_a_gpu) {
      add_gpu(place, gpus.empty() ? pci : *gpus[0], vendor, device);
    } else if (is_a_nic) {
      const Element& nic = nics.empty() ? pci : *nics[0];
      read_nets(nic, place, code, vendor);
      if (nic.all("net").empty()) {
        add_nic(place).kind = nic_kind(code, vendor, "", code == 0x0207);
      }
    }
    for (const Element* child : pci.all("pci")) {
      read_pci(*child, place);
    }
  }

  // element: <gpu>; <pci> itself for a GPU that is known by its class only.
  void add_gpu(int place, const Element& element, int vendor, int device) {
    Gpu& gpu = machine_.gpus.emplace_back();
    gpu.bus_id = machine_.pcie[place].bus_id;
    gpu.place = place;
    gpu.model = gpu_model(vendor, device);
    gpu.index = static_cast<int>(element.integer("dev", 0, kMostIndex, -1));
    const std::string gcn = element.text("gcn"), amd = gcn.substr(gcn.starts_with("gfx") ? 3 : 0);
    // Of other makers' GPUs it is the number of compute units.
    const bool is_capability = gcn.empty() && (vendor == kNvidia || vendor == -1);
    const long long capability = is_capability ? element.integer("sm", 0, 999, -1) : -1;
    if (gpu.model.empty() && capability != -1) {
      gpu.model = isthmus::detail::concatenate("GPU of compute capability ", capability / 10, ".", capability % 10);
    } else if (gpu.model.empty() && !amd.empty()) {
      gpu.model = "AMD gfx" + (amd == "910" ? "90a" : amd);
    }
    const auto nvlink = kNvLinkGbitS.find(capability);
    const auto xgmi = kXgmiGbitS.find(amd);
    add_links(gpu, element, "nvlink", "NV",
              nvlink == kNvLinkGbitS.end() ? std::nullopt : std::optional(nvlink->second));
    add_links(gpu, element, "xgmi", "XGMI", xgmi == kXgmiGbitS.end() ? std::nullopt : std::optional(xgmi->second));
    double c2c_mb_s = 0;
    for (const Element* c2c : element.all("c2c")) {
      c2c_mb_s +=
          static_cast<double>(c2c->integer("bw", 0, kMostMbitS / 8, 0) * c2c->integer("count", 1, kMostFastLinks, 1));
    }
    if (const double gbit_s = c2c_mb_s * 8 / 1000; gbit_s > 0 && gbit_s <= kMostGbitS) {
      gpu.c2c_gbit_s = gbit_s;
    } else if (has_c2c(vendor, device)) {
      machine_.pcie[place].link_speed_gbit_s.reset();
    }
  }

  void add_links(Gpu& gpu, const Element& element, const char* tag, const char* kind, std::optional<double> gbit_s) {
    int total = 0;
    for (const Element* link : element.all(tag)) {
      std::string target = link->text("target"), target_class = link->text("tclass");
      const bool is_hidden = target.starts_with(kHidden) || target.starts_with("FFFFFFF");
      target = is_hidden ? kHidden : bus_id_of(*link, "target");
      const int count = static_cast<int>(link->integer("count", 1, kMostFastLinks, 1));
      total += count;
      require(total <= kMostFastLinks, link->line, gpu.bus_id, " has more than ", kMostFastLinks, " links");
      if (target == gpu.bus_id) {
        machine_.note("left out: links of a GPU that lead to itself");
      } else if (target_class != "0x068001") {  // POWER's processors have NVLinks, too
        const bool is_to_gpu = target_class.starts_with("0x03") || target_class.starts_with("0x12");
        gpu.fast_links.push_back({kind, target, !is_to_gpu, count, gbit_s});
      }
    }
  }

  // NCCL gives what is on no PCIe bus to the first <cpu> that a rank saw, and so, of several ranks, to several.
  void read_nets(const Element& nic, int place, int code, int vendor) {
    const std::string& bus_id = machine_.pcie[place].bus_id;
    for (const Element* net : nic.all("net")) {
      const std::string name = net->text("name");
      const int index = static_cast<int>(net->integer("dev", 0, kMostIndex, -1));
      const auto mbit_s = static_cast<double>(net->integer("speed", -kMostMbitS, kMostMbitS, 0));
      const auto same = std::ranges::find_if(
          machine_.nics, [&](const Nic& other) { return !name.empty() && other.name == name && other.index == index; });
      if (bus_id.empty() && is_made_by_software(name)) {
        left_out_ += left_out_.find(name) == std::string::npos ? ", " + name : "";
        continue;
      }
      if (same != machine_.nics.end()) {
        same->place = same->bus_id.empty() ? -1 : same->place;
        continue;
      }
      Nic& port = add_nic(place);
      port.name = name;
      port.index = index;
      if (mbit_s / 1000 > kMostGbitS) {
        machine_.note(isthmus::detail::concatenate("a NIC's speed of ", static_cast<long long>(mbit_s / 1000),
                                                   " Gbit/s is more than any link has: taken for unknown"));
      } else if (mbit_s > 0) {
        port.speed_gbit_s = mbit_s / 1000;
      }
      // NCCL names sockets after interfaces (eth0, ens5), and devices of verbs or plugins otherwise (mlx5_0).
      const auto starts = [&](const char* start) { return name.starts_with(start); };
      const bool is_interface = starts("eth") || starts("en") || starts("bond") || starts("ib");
      port.kind = nic_kind(code, vendor, name, !is_interface);
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
  std::string left_out_;
  std::map<std::string, int> line_of_;
};

}  // namespace

Machine parse_nccl(const Element& system) { return Reader().machine(system); }

}  // namespace isthmus::topology
