#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "topology/read.h"

namespace isthmus::topology {
namespace {

// NVML's binary interface: the parts of nvml.h that are used.
struct PciInfo {
  char legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  int type, result;
  union {
    double real;
    unsigned number;
    unsigned long long large;
  } value;
};
struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};
using Device = void*;
constexpr unsigned kFabricVersion = sizeof(FabricInfo) | 2U << 24;
constexpr unsigned kNvLinkSpeed = 90, kC2cCount = 170, kC2cSpeed = 172;  // fields; speeds in MB/s
constexpr unsigned kSwitch = 2, kFabricCompleted = 3, kEnabled = 1;
// One NVLink in one direction by its version, where the driver does not say: NVIDIA's data sheets.
constexpr std::array<double, 6> kNvLinkGbitS = {0, 160, 200, 200, 200, 400};

class Nvml {
 public:
  explicit Nvml(void* library) : library_(library) {}

  // The result of a function; a value that NVML has not where the library lacks it.
  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    return function == nullptr ? -1 : function(arguments...);
  }

  // What a function writes; "": nothing.
  template <typename... Arguments>
  std::string text(const char* name, Arguments... arguments) const {
    char written[97] = {};
    const int result = call(name, arguments..., static_cast<char*>(written), static_cast<unsigned>(sizeof written - 1));
    return result == 0 ? printable(written) : "";
  }

  std::string error(int result) const {
    const auto text = reinterpret_cast<const char* (*)(int)>(dlsym(library_, "nvmlErrorString"));
    return text == nullptr ? "error " + std::to_string(result) : text(result);
  }

  Gpu gpu(int index, Device device) const {
    Gpu found;
    found.index = index;
    PciInfo pci{};
    if (call("nvmlDeviceGetPciInfo_v3", device, &pci) == 0) {
      found.bus_id = bus_id(pci);
    }
    found.model = text("nvmlDeviceGetName", device);
    for (unsigned link = 0; link < kMostFastLinks; ++link) {
      unsigned state = 0;
      if (call("nvmlDeviceGetNvLinkState", device, link, &state) == 0 && state == kEnabled) {
        found.fast_links.push_back(nvlink(device, link));
      }  // else it is not there, switched off, or beyond what this GPU has
    }
    double c2c_mb_s = 0;
    for (unsigned link = 0; link < std::min<unsigned>(field(device, kC2cCount), kMostFastLinks); ++link) {
      c2c_mb_s += field(device, kC2cSpeed, link);  // 0: it is switched off
    }
    if (c2c_mb_s > 0) {
      found.c2c_gbit_s = c2c_mb_s * 8 / 1000;
    }
    FabricInfo fabric{};
    fabric.version = kFabricVersion;
    const bool answered = call("nvmlDeviceGetGpuFabricInfoV", device, &fabric) == 0;
    // One node's NVSwitches have no cluster id.
    const bool named = std::ranges::any_of(fabric.cluster, [](auto byte) { return byte != 0; });
    if (answered && fabric.state == kFabricCompleted && fabric.status == 0 && named) {
      found.fabric.emplace(uuid(fabric.cluster), static_cast<int>(fabric.clique));
    }
    return found;
  }

 private:
  // The value of one of nvml.h's fields; 0: it has none. scope: which link, where the field is one of links.
  unsigned field(Device device, unsigned which, unsigned scope = 0) const {
    FieldValue asked{};
    asked.field = which;
    asked.scope = scope;
    const bool answered = call("nvmlDeviceGetFieldValues", device, 1, &asked) == 0 && asked.result == 0;
    return answered ? asked.value.number : 0;
  }

  // As Linux writes it; all ones: no device.
  static std::string bus_id(const PciInfo& pci) {
    const std::string text(pci.bus_id, strnlen(pci.bus_id, sizeof pci.bus_id));
    return text.starts_with("FFFFFFFF") || text.starts_with("ffffffff") ? "" : canonical_bus_id(text);
  }

  FastLinks nvlink(Device device, unsigned number) const {
    FastLinks link;
    PciInfo peer{};
    unsigned type = 0, version = 0;
    if (call("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, number, &peer) == 0) {
      link.peer = bus_id(peer);
    }
    link.is_to_switch = call("nvmlDeviceGetNvLinkRemoteDeviceType", device, number, &type) == 0 && type == kSwitch;
    const double gbit_s = field(device, kNvLinkSpeed) * 8 / 1000.0;
    if (gbit_s > 0 && gbit_s <= kMostGbitS) {
      link.gbit_s = gbit_s;
    } else if (call("nvmlDeviceGetNvLinkVersion", device, number, &version) == 0 &&
               version - 1 < kNvLinkGbitS.size() - 1) {
      link.gbit_s = kNvLinkGbitS[version];
    }
    return link;
  }

  static std::string uuid(const unsigned char* bytes) {
    std::string text;
    for (int i = 0; i < 16; ++i) {
      constexpr const char* kDigits = "0123456789abcdef";
      text += i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
      text += {kDigits[bytes[i] >> 4], kDigits[bytes[i] & 15]};
    }
    return text;
  }

  void* library_;
};

void read_all(const Nvml& nvml, NvmlFacts& facts) {
  unsigned count = 0;
  nvml.call("nvmlDeviceGetCount_v2", &count);
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    const int result = nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &device);
    if (result == 0) {
      facts.gpus.push_back(nvml.gpu(static_cast<int>(index), device));
    } else {
      facts.notes.push_back("NVML: GPU " + std::to_string(index) + " left out: " + nvml.error(result));
    }
  }
  facts.driver = nvml.text("nvmlSystemGetDriverVersion");
}

}  // namespace

NvmlFacts read_nvml(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {{}, "", "NVML: NVML Shared Library Not Found", {}};
  }
  NvmlFacts facts;
  const Nvml nvml(handle);
  if (const int result = nvml.call("nvmlInit_v2"); result != 0) {
    facts.missing = "NVML: " + nvml.error(result);
  } else {
    read_all(nvml, facts);
    nvml.call("nvmlShutdown");
  }
  dlclose(handle);
  return facts;
}

}  // namespace isthmus::topology
