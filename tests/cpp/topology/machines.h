// Made-up machines, and what holds of every machine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "topology/read.h"

namespace isthmus::topology {

// A link for each pair of devices, the same in both directions, and no other device in the PCIe tree.
inline void check(const Machine& machine) {
  const int size = machine.num_devices();
  ASSERT_EQ(machine.links.size(), static_cast<size_t>(size) * size);
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      const Link& link = machine.link(a, b);
      EXPECT_EQ(link.kind == "X", a == b);
      EXPECT_EQ(link.kind, machine.link(b, a).kind);
      EXPECT_GT(link.speed_gbit_s.value_or(1), 0);
    }
  }
  for (int device = 0; device < size; ++device) {
    const Path path = machine.path(device);
    EXPECT_TRUE(path.empty() || path.front()->kind == "host bridge");
  }
}

// The places right below another one.
inline std::vector<const PcieNode*> below(const Machine& machine, const PcieNode* above) {
  std::vector<const PcieNode*> found;
  for (const PcieNode& place : machine.pcie) {
    if (place.above != -1 && &machine.pcie[place.above] == above) {
      found.push_back(&place);
    }
  }
  return found;
}

using Strings = std::vector<std::string>;

inline Machine parse(const std::string& contents) {
  Machine machine = parse_machine(contents, "test");
  check(machine);
  return machine;
}

inline void expect_refused(const std::string& contents, const std::string& what, int line = 0) {
  try {
    parse_machine(contents, "test");
    ADD_FAILURE() << "no error for: " << contents.substr(0, 200);
  } catch (const TopologyError& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what() << "\nexpected: " << what;
    EXPECT_EQ(error.line, line) << error.what();
  }
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

inline bool noted(const Strings& notes, const std::string& text) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const auto& note) { return note.find(text) != std::string::npos; });
}

inline Strings kinds(const Machine& machine) {
  Strings found;
  for (int a = 0; a < machine.num_devices(); ++a) {
    for (int b = a + 1; b < machine.num_devices(); ++b) {
      found.push_back(machine.link(a, b).kind);
    }
  }
  return found;
}

// hwloc's XML of two sockets, each a NUMA node with two processors. pci: what hangs from each; more: below all objects.
inline std::string hwloc_xml(const std::string& first, const std::string& second, const std::string& more = "") {
  const auto sets = [](const char* cpus, const char* nodes) {
    const std::string cpu = cpus, node = nodes;
    return " cpuset=\"" + cpu + "\" complete_cpuset=\"" + cpu + "\" nodeset=\"" + node + "\" complete_nodeset=\"" +
           node + "\"";
  };
  const auto package = [&](int index, const char* cpus, const char* one, const char* other, const std::string& pci) {
    const char* node = index == 0 ? "0x1" : "0x2";
    const std::string id = std::to_string(index);
    std::string text = "<object type=\"Package\" os_index=\"" + id + "\"" + sets(cpus, node) + ">\n";
    text += "<info name=\"CPUModel\" value=\"Some CPU\"/>\n";
    text += "<object type=\"NUMANode\" os_index=\"" + id + "\"" + sets(cpus, node) + "/>\n";
    text += "<object type=\"PU\" os_index=\"" + std::to_string(2 * index) + "\"" + sets(one, node) + "/>\n";
    text += "<object type=\"PU\" os_index=\"" + std::to_string(2 * index + 1) + "\"" + sets(other, node) + "/>\n";
    return text + pci + "</object>\n";
  };
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
         "version=\"2.0\">\n"
         "<object type=\"Machine\" os_index=\"0\" allowed_cpuset=\"0xf\" allowed_nodeset=\"0x3\"" +
         sets("0xf", "0x3") + ">\n" + package(0, "0x3", "0x1", "0x2", first) + package(1, "0xc", "0x4", "0x8", second) +
         "</object>\n" + more + "</topology>\n";
}

// A host bridge with buses first to last; a bridge with these below it; a device with those of the operating system.
inline std::string host_bridge(const std::string& buses, const std::string& inside) {
  return "<object type=\"Bridge\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[" + buses + "]\">\n" + inside +
         "</object>\n";
}
inline std::string bridge(const std::string& bus_id, const std::string& buses, const std::string& inside) {
  return "<object type=\"Bridge\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"0000:[" + buses + "]\" pci_busid=\"" +
         bus_id + "\" pci_type=\"0604 [1000:c010] [0000:0000] b0 00\" pci_link_speed=\"31.507692\">\n" + inside +
         "</object>\n";
}
inline std::string device(const std::string& bus_id, const std::string& type, const std::string& inside = "") {
  return "<object type=\"PCIDev\" pci_busid=\"" + bus_id + "\" pci_type=\"" + type +
         " [0000:0000] 00 00\" pci_link_speed=\"31.507692\">\n" + inside + "</object>\n";
}
inline std::string os_device(const std::string& name, int type, const std::string& infos = "", int gp_index = 0) {
  return "<object type=\"OSDev\" gp_index=\"" + std::to_string(gp_index) + "\" name=\"" + name + "\" osdev_type=\"" +
         std::to_string(type) + "\">\n" + infos + "</object>\n";
}
constexpr int kGpuType = 1, kNetType = 2, kVerbsType = 3;
constexpr const char* kA100 = "0302 [10de:20b2]";
constexpr const char* kInfiniBand = "0207 [15b3:101b]";
constexpr const char* kEthernet = "0200 [15b3:101b]";

// Two sockets, each with a host bridge, a switch, two GPUs and two NICs behind it.
inline std::string eight_devices(const std::string& more = "") {
  const auto half = [](int socket) {
    const std::string base = socket == 0 ? "1" : "8", first = std::to_string(2 * socket),
                      second = std::to_string(2 * socket + 1);
    std::string below;
    below += bridge("0000:" + base + "2:00.0", base + "3-" + base + "3",
                    device("0000:" + base + "3:00.0", kA100, os_device("nvml" + first, kGpuType, "", 11 + 2 * socket)));
    below +=
        bridge("0000:" + base + "2:01.0", base + "4-" + base + "4",
               device("0000:" + base + "4:00.0", kA100, os_device("nvml" + second, kGpuType, "", 12 + 2 * socket)));
    below += bridge("0000:" + base + "2:02.0", base + "5-" + base + "5",
                    device("0000:" + base + "5:00.0", kInfiniBand,
                           os_device("ib" + first, kNetType) + os_device("mlx5_" + first, kVerbsType)));
    below += bridge("0000:" + base + "2:03.0", base + "6-" + base + "6",
                    device("0000:" + base + "6:00.0", kInfiniBand,
                           os_device("ib" + second, kNetType) + os_device("mlx5_" + second, kVerbsType)));
    return host_bridge(base + "0-" + base + "6",
                       bridge("0000:" + base + "0:01.0", base + "1-" + base + "6",
                              bridge("0000:" + base + "1:00.0", base + "2-" + base + "6", below)));
  };
  return hwloc_xml(half(0), half(1), more);
}

}  // namespace isthmus::topology
