// PCIe's names and numbers: bus ids, link speeds, classes of devices. vendor, class_code (16 bits, such as 0x0302): -1
// where unknown.
#pragma once

#include <optional>
#include <string>

namespace isthmus::topology {

// The canonical form of a bus id, "0000:07:00.0"; "" for what is none.
std::string canonical_bus_id(const std::string& text);

// One end of a PCIe link: speed and width, as sysfs and NCCL have them: "16.0 GT/s PCIe", "8 GT/s"; "16".
struct LinkEnd {
  std::string speed, width;
};

// The speed of a link in one direction, which both ends support; if one end's is unknown, the other's. Whatever is no
// number of a link, as "Unknown" and 255 lanes, is unknown.
std::optional<double> pcie_gbit_s(const LinkEnd& one, const LinkEnd& other = {});

// Whether a device computes. Consoles of the board's controller do not.
bool is_gpu(int class_code, int vendor);
// The name of a GPU by its PCI ids; "": unknown.
std::string gpu_model(int vendor, int device);
inline bool is_nic(int class_code) { return class_code >> 8 == 0x02; }
// The protocol of a NIC, from its class, its maker, and the name of its device.
std::string nic_kind(int class_code, int vendor, const std::string& name, bool speaks_verbs);

}  // namespace isthmus::topology
