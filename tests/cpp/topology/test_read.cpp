// Files of recorded machines, and files that hold none; hwloc's XML.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "machines.h"
#include "topology/read.h"

namespace isthmus::topology {
namespace {

const std::filesystem::path kMachines = std::filesystem::path(ISTHMUS_SOURCE_DIR) / "topology/machines";

// --- files

constexpr const char* kSmall =
    R"(<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>)";

TEST(Files, RecordedMachinesAreRead) {
  int num_read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kMachines)) {
    if (entry.path().filename() != "README.md") {
      const Machine machine = read_machine(entry.path());
      check(machine);
      EXPECT_EQ(machine.name, entry.path().filename().string().substr(0, entry.path().filename().string().find('.')));
      ++num_read;
    }
  }
  EXPECT_EQ(num_read, 8);
}

TEST(Files, SpeedsOfADgxA100) {
  const Machine machine = read_machine(kMachines / "dgx-a100.nccl.xml");
  EXPECT_EQ(machine.link(0, 7).speed_gbit_s, 300 * 8);  // GB/s in one direction
  EXPECT_NEAR(*machine.link(0, 8).speed_gbit_s, 16 * 16 * 128 / 130., .001);
  EXPECT_FALSE(machine.link(0, 12).speed_gbit_s);  // no file has the speed between sockets
}

TEST(Files, TheContentsTellTheFormat) {
  const auto path = std::filesystem::temp_directory_path() / "isthmus_machine.dat";
  for (const std::string before :
       {"", "\n\n  ", "\xEF\xBB\xBF", "<?xml version=\"1.0\"\n encoding=\"UTF-16\"?>\n<!-- > -->\n<?note 1?>"}) {
    std::ofstream(path) << before << kSmall << "<!-- end -->\n";
    const Machine machine = read_machine(path);
    EXPECT_EQ(machine.name + machine.source, "isthmus_machinenccl xml");
    EXPECT_EQ(machine.gpus.size(), 1);
  }
  std::filesystem::remove(path);
}

TEST(Files, ThatHoldNoMachine) {
  for (const auto& [path, what] :
       {std::pair("missing", "missing: cannot be read: No such file"), {"/", "/: cannot be read: Is a directory"}}) {
    try {
      read_machine(path);
      ADD_FAILURE() << path;
    } catch (const TopologyError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(what)) << error.what();
    }
  }
  expect_refused("\xEF\xBB\xBF \n\t\n", "is empty: expected hwloc XML");
  expect_refused(std::string("\x7f"
                             "ELF\x02\x01\x01\0\0\0",
                             10),
                 "is no description of a machine: expected hwloc XML");
  expect_refused("GPU0\nGPU1\n\xff\xfe", "is no description of a machine");
  expect_refused("<system a=\"\x80\"/>", "is no well-formed XML: not well-formed (invalid token)", 1);
  expect_refused("hello", "is no description of a machine");
  expect_refused("{}", "is no description of a machine");
  expect_refused("<", "is no well-formed XML", 1);
  expect_refused("\n<system>\n<cpu>\n</system>", "is no well-formed XML: mismatched tag", 4);
  expect_refused(std::string(kSmall).substr(0, 80), "is no well-formed XML", 1);
  expect_refused(R"(<system version="1" version="2"/>)", "is no well-formed XML: duplicate attribute", 1);
  expect_refused(R"(<system version="1">&other;</system>)", "is no well-formed XML: undefined entity", 1);
  expect_refused(R"(<system version="&other;"/>)", "is no well-formed XML: undefined entity", 1);
  expect_refused(std::string(kSmall) + "<more/>", "is no well-formed XML: junk after document element", 1);
  expect_refused("<html/>", "is XML with root <html>: expected hwloc XML", 1);
  expect_refused("\n<!DOCTYPE system [<!ENTITY one \"1\">]>\n<system version=\"&one;\"/>", "declares XML entities", 2);
  std::string deep;
  for (int i = 0; i < 64; ++i) {
    deep += "<cpu>";
  }
  expect_refused("<system>" + deep, "nest more than 64 deep", 1);
}

// --- hwloc's XML

TEST(Hwloc, SwitchesGpusAndNics) {
  const Machine machine = parse(eight_devices());
  EXPECT_EQ(machine.source, "hwloc xml");
  EXPECT_EQ(machine.sockets.size(), 2);
  EXPECT_EQ(machine.sockets[1].model, "Some CPU");
  EXPECT_EQ(machine.numa_nodes[1].cpus, "2-3");
  EXPECT_EQ(machine.numa_nodes[1].socket, 1);
  ASSERT_EQ(machine.num_devices(), 8);
  EXPECT_EQ(machine.gpus[2].bus_id + machine.gpus[2].model, "0000:83:00.0NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(machine.gpus[2].numa_node, 1);
  EXPECT_EQ(machine.nics[3].name + machine.nics[3].kind, "mlx5_3infiniband");
  EXPECT_EQ(machine.link(0, 1).kind, "PIX");
  EXPECT_EQ(machine.link(0, 4).kind, "PIX");
  EXPECT_EQ(machine.link(0, 6).kind, "SYS");
  EXPECT_NEAR(*machine.link(0, 4).speed_gbit_s, 252.06, .01);
  const Path path = machine.path(0);
  ASSERT_EQ(path.size(), 3);
  EXPECT_EQ(path[1]->bus_id, "0000:11:00.0");  // the switch; the processor's port is no place
  EXPECT_TRUE(noted(machine.notes, "the file names no NVLinks"));
}

TEST(Hwloc, SwitchesInTwoLevels) {
  const std::string gpu_behind =
      bridge("0000:12:00.0", "13-15",
             bridge("0000:13:00.0", "14-15", bridge("0000:14:00.0", "15-15", device("0000:15:00.0", kA100))));
  const std::string nic_behind =
      bridge("0000:12:01.0", "16-16", device("0000:16:00.0", kEthernet, os_device("mlx5_0", kVerbsType)));
  const Machine machine = parse(hwloc_xml(
      host_bridge("10-16", bridge("0000:10:01.0", "11-16", bridge("0000:11:00.0", "12-16", gpu_behind + nic_behind))),
      ""));
  EXPECT_EQ(machine.link(0, 1).kind, "PXB");
  EXPECT_EQ(machine.nics[0].kind, "roce");
}

TEST(Hwloc, PortsOfOneAdapter) {
  const std::string infos =
      R"(<info name="Port1State" value="4"/><info name="Port2State" value="4"/><info name="Port3State" value="1"/>)";
  const std::string first = host_bridge(
      "10-11",
      bridge("0000:10:01.0", "11-11",
             device("0000:11:00.0", kInfiniBand, os_device("mlx4_0", kVerbsType, infos) + os_device("ib0", kNetType)) +
                 device("0000:11:00.1", kEthernet, os_device("eth1", kNetType)) + device("0000:11:00.2", kEthernet)));
  const Machine machine = parse(hwloc_xml(first, ""));
  Strings names;
  for (const Nic& nic : machine.nics) {
    names.push_back(nic.name);
  }
  EXPECT_EQ(names, (Strings{"mlx4_0", "mlx4_0:2", "", "eth1"}));
  EXPECT_EQ(machine.link(0, 3).kind, "PIX");
  EXPECT_EQ(machine.path(0), machine.path(3));
  EXPECT_TRUE(noted(machine.notes, "left out: mlx4_0:3 (down)"));
}

std::string nvlinks(const std::string& values) {
  return "<distances2 type=\"OSDev\" nbobjs=\"4\" kind=\"9\" name=\"NVLinkBandwidth\" indexing=\"gp\">\n"
         "<indexes length=\"12\">11 12 13 14 </indexes>\n<u64values length=\"" +
         std::to_string(values.size()) + "\">" + values + "</u64values>\n</distances2>\n";
}

TEST(Hwloc, NvLinksAreCountedByTheirBandwidth) {
  const Machine machine =
      parse(eight_devices(nvlinks("0 50000 25000 0 50000 0 0 31000 25000 0 0 600000 0 31000 600000 0 ")));
  EXPECT_EQ(machine.link(0, 1).kind, "NV2");
  EXPECT_EQ(machine.link(0, 1).speed_gbit_s, 400);
  EXPECT_EQ(machine.link(0, 2).kind, "NV1");
  EXPECT_EQ(machine.link(0, 3).kind, "SYS");
  EXPECT_EQ(machine.link(1, 3).kind, "NV1");
  EXPECT_EQ(machine.link(2, 3).kind, "NV12");
  EXPECT_EQ(machine.link(2, 3).speed_gbit_s, 4800);
  EXPECT_TRUE(noted(machine.notes, "31000 MB/s is no multiple of a known NVLink: taken for 1 links"));
  const Machine power = read_machine(kMachines / "power8-p100.hwloc.xml");
  EXPECT_EQ(kinds(power), (Strings{"NV2", "SYS", "SYS", "SYS", "SYS", "NV2"}));
  EXPECT_EQ(power.link(0, 1).speed_gbit_s, 2 * 160);
  expect_refused(eight_devices(nvlinks("0 99999999 0 0 99999999 0 0 0 0 0 0 0 0 0 0 0 ")),
                 "NV links have 99999999 MB/s: that is absurd");
}

TEST(Hwloc, GpusOfOthersAndMachinesWithoutPcie) {
  const Machine amd = parse(hwloc_xml(
      host_bridge("10-11", bridge("0000:10:01.0", "11-11",
                                  device("0000:11:00.0", "1200 [1002:74a1]",
                                         os_device("rsmi0", kGpuType, R"(<info name="GPUModel" value="MI300X"/>)")))),
      ""));
  EXPECT_EQ(amd.gpus[0].model, "MI300X");
  const std::string intel =
      device("0000:11:00.0", "1200 [8086:1020]") + device("0000:12:00.0", kEthernet, os_device("eth0", kNetType));
  const Machine other = parse(hwloc_xml(host_bridge("10-12", bridge("0000:10:01.0", "11-12", intel)), ""));
  EXPECT_TRUE(other.gpus.empty());
  EXPECT_TRUE(noted(other.notes, "left out: the accelerator at 0000:11:00.0"));
  expect_refused(hwloc_xml("", ""), "names neither a GPU nor a NIC: lstopo --no-io");
}

TEST(Hwloc, DamagedFilesAndOtherVersions) {
  expect_refused(replaced(eight_devices(), "version=\"2.0\"", "version=\"3.0\""),
                 "and that of hwloc 3 with --export-xml-flags 2", 3);
  expect_refused(replaced(eight_devices(), "version=\"2.0\"", "version=\"two\""), "is hwloc XML of version 'two'", 3);
  expect_refused("<topology/>", "is hwloc XML of version '1': expected 2", 1);
  expect_refused("<topology version=\"2.0\"/>", "cannot read it");
  expect_refused(eight_devices().substr(0, 3000), "is no well-formed XML", 45);
  expect_refused(replaced(eight_devices(), "type=\"PU\"", "type=\"Pu\" cpuset=\"\""), "duplicate attribute", 8);
  expect_refused(replaced(eight_devices(), "os_index=\"3\"", "os_index=\"4294967295\""),
                 "os_index='4294967295': expected an integer", 49);
  expect_refused(replaced(eight_devices(), "complete_cpuset=\"0xc\"", "complete_cpuset=\"none\""),
                 "has complete_cpuset='none'", 45);
  expect_refused(replaced(eight_devices(), "cpuset=\"0x4\"", "cpuset=\"0xf...f\""),
                 "has cpuset='0xf...f': expected a set", 48);
  expect_refused(replaced(eight_devices(), "cpuset=\"0x4\"", "cpuset=\"0x1\""),
                 "has a cpuset beyond that of the object that it is in", 48);
  std::string devices;
  for (int i = 0; i < 70; ++i) {
    devices += "<object type=\"Bridge\">";
  }
  for (int i = 0; i < 70; ++i) {
    devices += "</object>";
  }
  expect_refused(hwloc_xml(devices, ""), "elements nest more than 64 deep", 10);
  const std::string inner = device("0000:11:00.1", kA100);
  expect_refused(hwloc_xml(host_bridge("11-11", device("0000:11:00.0", kEthernet, inner)), ""),
                 "has a PCI device below another one");
}

}  // namespace
}  // namespace isthmus::topology
