// hwloc's XML: what lstopo writes.
#include <algorithm>
#include <cmath>
#include <map>

#include "topology/hwloc.h"
#include "topology/read.h"

namespace isthmus::topology {
namespace {

// hwloc's reader is made for what hwloc writes. There everything with processors has four sets of them and of NUMA
// nodes, each within that of the object that it is in; processors may have no memory, memory no processors, and those
// of a package may all be switched off. Anything else is refused before hwloc sees it.

Bitmap set_of(const Element& element, const std::string& name) {
  const std::string text = element.text(name), type = element.text("type");
  Bitmap set = set_of_mask(text);
  const int size = hwloc_bitmap_weight(set.get());
  const bool is_zero = !text.empty() && text.find_first_not_of("0x,") == text.npos;
  const bool is_memory = type == "NUMANode" || type == "MemCache", is_of_nodes = name.ends_with("nodeset");
  const bool may_be_empty =
      type != "Machine" && (is_memory ? !is_of_nodes : is_of_nodes || (type != "PU" && name == "cpuset"));
  require(size > 0 || (is_zero && may_be_empty), element.line, "<object type='", type.substr(0, 20), "'> has ", name,
          "='", text.substr(0, 40), "': expected a set of processors, such as 0x0000000f");
  return set;
}

// parent: the nearest object around it that has sets; nullptr: none.
void check(const Element& element, const Element* parent) {
  const std::string type = element.text("type");
  element.integer("os_index", 0, 1 << 20, 0);
  const bool is_io = type == "Bridge" || type == "PCIDev" || type == "OSDev" || type == "Misc";
  const bool has_sets = element.tag == "object" && !is_io;
  for (const char* name : {"cpuset", "complete_cpuset", "nodeset", "complete_nodeset"}) {
    if (has_sets) {
      const Bitmap set = set_of(element, name);
      const bool is_inside = parent == nullptr || hwloc_bitmap_isincluded(set.get(), set_of(*parent, name).get()) != 0;
      require(is_inside, element.line, "<object type='", type.substr(0, 20), "'> has a ", name,
              " beyond that of the object that it is in");
    }
  }
  for (const Element& child : element.children) {
    if (child.tag == "object") {
      check(child, has_sets ? &element : parent);
    }
  }
}

// The links that a bandwidth stands for. Of NVLinks the generation tells how many: 25, 20 or 50 GB/s each.
FastLinks links_of(Machine& machine, const std::string& kind, hwloc_uint64_t mb_s) {
  require(mb_s * 8. / 1000 <= kMostGbitS, 0, kind, " links have ", mb_s, " MB/s: that is absurd");
  const double gbit_s = static_cast<double>(mb_s) * 8 / 1000;
  if (kind != "NV") {
    // hwloc 2 writes 100 GB/s of every XGMI link.
    return {kind, "", false, 1, kind == "XGMI" && mb_s == 100'000 ? std::nullopt : std::optional(gbit_s)};
  }
  constexpr hwloc_uint64_t kMostOfOne = 18;
  for (const hwloc_uint64_t one : {25'000, 20'000, 50'000}) {
    if (mb_s % one == 0 && mb_s / one <= kMostOfOne) {
      return {kind, "", false, static_cast<int>(mb_s / one), static_cast<double>(one) * 8 / 1000};
    }
  }
  const int count =
      std::clamp(static_cast<int>(std::lround(static_cast<double>(mb_s) / 25'000)), 1, static_cast<int>(kMostOfOne));
  machine.note(std::to_string(mb_s) + " MB/s is no multiple of a known NVLink: taken for " + std::to_string(count) +
               " links");
  return {kind, "", false, count, gbit_s / count};
}

}  // namespace

// hwloc's matrices of bandwidths in MB/s, between GPUs or parts of them, and from GPUs to switches.
void read_fast_links(Machine& machine, hwloc_topology_t topology) {
  std::map<std::string, Gpu*> gpu_at;
  for (Gpu& gpu : machine.gpus) {
    gpu_at.emplace(gpu.bus_id, &gpu);
  }
  bool has_any = false;
  for (const auto& [name, kind] :
       {std::pair("NVLinkBandwidth", "NV"), {"XGMIBandwidth", "XGMI"}, {"XeLinkBandwidth", "XeLink"}}) {
    hwloc_distances_s* matrix = nullptr;
    unsigned count = 1;
    if (hwloc_distances_get_by_name(topology, name, &count, &matrix, 0) != 0 || count == 0) {
      continue;
    }
    has_any = true;
    std::vector<std::string> ids;
    for (unsigned i = 0; i < matrix->nbobjs; ++i) {
      hwloc_obj_t object = matrix->objs[i];
      while (object != nullptr && object->type == HWLOC_OBJ_OS_DEVICE) {
        object = object->parent;
      }
      const bool is_pci = object != nullptr && object->type == HWLOC_OBJ_PCI_DEVICE;
      ids.push_back(is_pci ? bus_id(object) : "");  // processors of POWER have NVLinks, too
    }
    for (unsigned i = 0; i < matrix->nbobjs; ++i) {
      for (unsigned j = 0; j < matrix->nbobjs && gpu_at.count(ids[i]) != 0; ++j) {
        const hwloc_uint64_t mb_s = matrix->values[i * matrix->nbobjs + j];
        if (i != j && mb_s != 0 && !ids[j].empty() && ids[i] != ids[j]) {
          FastLinks& links = gpu_at[ids[i]]->fast_links.emplace_back(links_of(machine, kind, mb_s));
          links.peer = ids[j];
          links.is_to_switch = gpu_at.count(ids[j]) == 0;
        }
      }
    }
    hwloc_distances_release(topology, matrix);
  }
  if (!has_any && machine.gpus.size() > 1) {
    machine.note(kNoFastLinks);
  }
}

Machine parse_hwloc(const std::string& contents, const Element& root) {
  const std::string version = root.text("version");
  require(
      version.starts_with("2."), root.line, "is hwloc XML of version '", version.empty() ? "1" : version.substr(0, 20),
      "': expected 2, as lstopo of hwloc 2 writes it (also of an older file: lstopo --input OLD.xml NEW.xml), and that "
      "of hwloc 3 with --export-xml-flags 2");
  check(root, nullptr);
  const Topology topology = new_topology();
  const std::string text = contents.substr(contents.find('<'));
  const bool is_read =
      hwloc_topology_set_xmlbuffer(topology.get(), text.c_str(), static_cast<int>(text.size()) + 1) == 0 &&
      hwloc_topology_load(topology.get()) == 0;
  require(is_read, 0, "hwloc ", hwloc_version(), " cannot read it: it is damaged, or was not written by hwloc");
  Machine machine = read_objects(topology.get(), {});
  ISTHMUS_CHECK(TopologyError, machine.num_devices() != 0,
                "names neither a GPU nor a NIC: lstopo --no-io leaves them out");
  machine.source = "hwloc xml";
  read_fast_links(machine, topology.get());
  finish(machine);
  machine.note("PCIe speeds are those of the moment when lstopo ran: an idle GPU slows its link down");
  return machine;
}

}  // namespace isthmus::topology
