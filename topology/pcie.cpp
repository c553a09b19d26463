// PCIe's names and numbers: link speeds, classes of devices.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>

#include "topology/hwloc.h"

namespace isthmus::topology {
namespace {

constexpr double kMostGtS = 128, kMostLanes = 32;  // the fastest generation that is planned (7), and the widest link
constexpr int kAmd = 0x1002, kAmazon = 0x1D0F, kIntel = 0x8086;

// The number that a text begins with; 0: none, or too large a one.
double number(const std::string& text, double most) {
  const bool is_number = !text.empty() && text[0] >= '0' && text[0] <= '9';
  const double value = is_number ? std::strtod(text.c_str(), nullptr) : 0;
  return value <= most ? value : 0;
}

double lesser_known(double one, double other) { return one == 0 || other == 0 ? one + other : std::min(one, other); }

}  // namespace

std::optional<double> pcie_gbit_s(const LinkEnd& one, const LinkEnd& other) {
  const double gt_s = lesser_known(number(one.speed, kMostGtS), number(other.speed, kMostGtS));
  const double lanes = lesser_known(number(one.width, kMostLanes), number(other.width, kMostLanes));
  if (gt_s == 0 || lanes == 0) {
    return std::nullopt;
  }
  // 8b/10b encoding up to generation 2, 128b/130b up to 5, flow control units from 6 on.
  const double lane_gbit_s = gt_s <= 5 ? gt_s * 8 / 10 : gt_s < 64 ? gt_s * 128 / 130 : gt_s * 242 / 256;
  return std::round(lane_gbit_s * lanes * 1000) / 1000;
}

bool is_gpu(int class_code, int vendor, int device) {
  if (class_code >> 8 == 0x12) {  // processing accelerator
    return vendor == kAmd;
  }
  if (class_code >> 8 != 0x03) {
    return false;
  }
  switch (vendor) {
    case kNvidia:
      return true;
    case kAmd:
      return device < 0x4000 || device > 0x5FFF;  // Radeons of before 2007, which boards still have as consoles
    case kIntel:
      return class_code == 0x0380;  // Data Center GPUs; 0x0300 is a processor's own
    default:
      return vendor == -1 && class_code != 0x0380;
  }
}

std::string gpu_model(int vendor, int device) {
  // From the public list of PCI ids.
  static const std::map<int, const char*> models = {
      {0x15F9, "Tesla P100-SXM2-16GB"},
      {0x1DB1, "Tesla V100-SXM2-16GB"},
      {0x1DB5, "Tesla V100-SXM2-32GB"},
      {0x1EB8, "Tesla T4"},
      {0x20B0, "NVIDIA A100-SXM4-40GB"},
      {0x20B2, "NVIDIA A100-SXM4-80GB"},
      {0x2237, "NVIDIA A10G"},
      {0x2330, "NVIDIA H100 80GB HBM3"},
      {0x2335, "NVIDIA H200"},
      {0x2342, "NVIDIA GH200 480GB"},
      {0x2348, "NVIDIA GH200 144G HBM3e"},
      {0x26B9, "NVIDIA L40S"},
      {0x27B8, "NVIDIA L4"},
      {0x2901, "NVIDIA B200"},
      {0x2941, "NVIDIA GB200"},
      {0x2E12, "NVIDIA GB10"},
      {0x31C2, "NVIDIA GB300"},
  };
  const auto found = models.find(device);
  return vendor == kNvidia && found != models.end() ? found->second : "";
}

bool has_c2c(int vendor, int device) { return gpu_model(vendor, device).starts_with("NVIDIA G"); }

std::string nic_kind(int class_code, int vendor, const std::string& name, bool speaks_verbs) {
  if (vendor == kAmazon) {
    return speaks_verbs || name.empty() ? "efa" : "ethernet";
  }
  if (class_code == 0x0207) {
    return "infiniband";
  }
  static const std::pair<const char*, const char*> starts[] = {
      {"roce", "roce"}, {"bnxt_re", "roce"}, {"ib", "infiniband"}, {"rdma", "efa"},
      {"efa", "efa"},   {"eth", "ethernet"}, {"en", "ethernet"},
  };
  for (const auto& [start, kind] : starts) {
    if (name.starts_with(start)) {
      return kind;
    }
  }
  return class_code != 0x0200 ? "unknown" : speaks_verbs ? "roce" : "ethernet";
}

bool is_made_by_software(const std::string& interface) {
  static const std::regex names(
      "(docker|veth|virbr|vnet|br-|cni|cali|flannel|cilium|lxc|kube-|tunl?[0-9]|tap|wg[0-9]|vxlan|tailscale|dummy).*");
  return std::regex_match(interface, names);
}

}  // namespace isthmus::topology
