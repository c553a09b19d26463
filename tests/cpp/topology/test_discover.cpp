// The machine that is running: hwloc reads a made-up one, beside made-up trees of /sys and a made-up NVML.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "machines.h"
#include "made_up_nvml.h"
#include "topology/read.h"

namespace isthmus::topology {
namespace {

using Nics = std::vector<std::tuple<std::string, std::string, double>>;  // name, kind, speed

// hwloc reads `xml` and takes it for this machine.
class Discover : public testing::Test {
 protected:
  ~Discover() override {
    std::filesystem::remove_all(folder_);
    unsetenv("HWLOC_XMLFILE");
    unsetenv("HWLOC_THISSYSTEM");
  }

  Machine found(const std::string& xml, const NvmlFacts& nvml = missing()) {
    write("machine.xml", xml);
    setenv("HWLOC_XMLFILE", (folder_ / "machine.xml").c_str(), 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    Machine machine = discover(nvml, (folder_ / "sys").string());
    check(machine);
    return machine;
  }

  // One host bridge with these devices, each behind a port of its own.
  Machine found_devices(const std::vector<std::string>& devices, const NvmlFacts& nvml = missing()) {
    std::string ports;
    for (size_t i = 0; i < devices.size(); ++i) {
      const std::string bus = "0" + std::to_string(i + 1);
      ports += bridge("0000:00:0" + std::to_string(i + 1) + ".0", bus + "-" + bus, devices[i]);
    }
    return found(hwloc_xml(host_bridge("00-09", ports), ""), nvml);
  }

  static NvmlFacts missing() {
    NvmlFacts facts;
    facts.missing = "NVML: not asked";
    return facts;
  }

  void write(const std::string& path, const std::string& value) const {
    std::filesystem::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << value << "\n";
  }
  void net(const std::string& name, const std::string& speed, const std::string& type = "1",
           const std::string& state = "up") const {
    for (const auto& [attribute, value] : {std::pair("speed", speed), {"type", type}, {"operstate", state}}) {
      write("sys/class/net/" + name + "/" + attribute, value);
    }
  }
  void verbs(const std::string& name, const std::string& layer, const std::string& rate = "200 Gb/sec (4X HDR)",
             const std::string& state = "4: ACTIVE", int ports = 1, const std::string& node_type = "1: CA") const {
    const std::string device = "sys/class/infiniband/" + name + "/";
    write(device + "node_type", node_type);
    for (int port = 1; port <= ports; ++port) {
      for (const auto& [attribute, value] : {std::pair("link_layer", layer), {"rate", rate}, {"state", state}}) {
        write(device + "ports/" + std::to_string(port) + "/" + attribute, value);
      }
    }
  }
  void link(const std::string& bus_id, const std::string& speed, const std::string& width) const {
    write("sys/bus/pci/devices/" + bus_id + "/max_link_speed", speed);
    write("sys/bus/pci/devices/" + bus_id + "/max_link_width", width);
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("isthmus_discover_" + std::to_string(getpid()));
};

Nics nics_of(const Machine& machine) {
  Nics found;
  for (const Nic& nic : machine.nics) {
    found.emplace_back(nic.name, nic.kind, nic.speed_gbit_s.value_or(0));
  }
  return found;
}

std::string nic(const std::string& bus_id, const std::string& devices) { return device(bus_id, kEthernet, devices); }
std::string net_device(const std::string& name) { return os_device(name, kNetType); }
std::string verbs_device(const std::string& name) { return os_device(name, kVerbsType); }

TEST_F(Discover, ANodeWithInfiniBand) {
  for (int number = 0; number < 4; ++number) {
    verbs("mlx5_" + std::to_string(number), "InfiniBand");
    net("ib" + std::to_string(number), "200000", "32");
  }
  const Machine machine = found(eight_devices());
  EXPECT_EQ(machine.source, "discovery");
  EXPECT_EQ(nics_of(machine), (Nics{{"mlx5_0", "infiniband", 200},
                                    {"mlx5_1", "infiniband", 200},
                                    {"mlx5_2", "infiniband", 200},
                                    {"mlx5_3", "infiniband", 200}}));
  EXPECT_EQ(machine.gpus[3].bus_id, "0000:84:00.0");
  EXPECT_EQ(machine.gpus[3].numa_node, 1);
  EXPECT_EQ(find_rails(machine).rails[3].nics, std::vector{3});
  EXPECT_TRUE(noted(machine.notes, "NVML: not asked") && noted(machine.notes, "without NVML, NVLinks are unknown"));
  EXPECT_FALSE(noted(machine.notes, "left out"));
}

TEST_F(Discover, ALinkIsAsFastAsBothEndsCan) {
  for (const auto& [speed, width, port_speed, port_width, expected] :
       {std::tuple("16.0 GT/s PCIe", "16", "8.0 GT/s PCIe", "8", 63.015),
        {"5.0 GT/s PCIe", "8", "16 GT/s", "16", 32.},
        {"Unknown", "255", "16.0 GT/s PCIe", "16", 252.062},
        {"", "", "Unknown", "0", 0.},
        {"16.0 GT/s PCIe", "", "", "", 0.}}) {
    link("0000:01:00.0", speed, width);
    link("0000:00:01.0", port_speed, port_width);
    const Machine machine = found_devices({device("0000:01:00.0", kA100)});
    EXPECT_EQ(machine.path(0).back()->link_speed_gbit_s.value_or(0), expected);
  }
}

TEST_F(Discover, EfaBesideElasticNetworkAdapters) {
  net("ens5", "-1");
  verbs("rdmap16s27", "Unspecified", "100 Gb/sec (4X EDR)", "4: ACTIVE", 1, "7: unspecified");
  EXPECT_EQ(nics_of(found_devices({device("0000:01:00.0", "0200 [1d0f:ec20]", net_device("ens5")),
                                   device("0000:02:00.0", "0200 [1d0f:efa1]", verbs_device("rdmap16s27"))})),
            (Nics{{"rdmap16s27", "efa", 100}, {"ens5", "ethernet", 0}}));
}

TEST_F(Discover, InterfacesThatLeadNowhereAreNamed) {
  net("eth0", "100000");
  net("eth0x", "100000");
  net("pf0vf1rep", "100000");
  write("sys/class/net/pf0vf1rep/phys_port_name", "pf0vf1");  // a representor: not worth a word
  net("eth1", "-1", "1", "down");
  net("fc0", "1000", "777");
  verbs("mlx5_0", "InfiniBand", "2.5 Gb/sec (1X SDR)", "1: DOWN");
  const Machine machine =
      found_devices({nic("0000:01:00.0", net_device("eth0") + net_device("eth0x") + net_device("pf0vf1rep")),
                     nic("0000:02:00.0", net_device("eth1")), nic("0000:03:00.0", net_device("fc0")),
                     nic("0000:04:00.0", verbs_device("mlx5_0"))});
  EXPECT_EQ(nics_of(machine), (Nics{{"eth0", "ethernet", 100}}));
  EXPECT_TRUE(noted(machine.notes,
                    "left out: eth0x (the same port as another interface), eth1 (down), fc0 (neither Ethernet nor "
                    "InfiniBand), mlx5_0 (down)"));
}

TEST_F(Discover, APortThatIsSeenTwiceIsOneNic) {
  verbs("mlx5_0", "Ethernet");
  net("eth1", "100000");
  write("sys/class/net/eth1/dev_port", "1");  // of a single port, with another number
  verbs("mlx4_0", "InfiniBand", "56 Gb/sec (4X FDR)", "4: ACTIVE", 2);
  net("ib0", "56000", "32");
  net("ib1", "56000", "32");
  write("sys/class/net/ib1/dev_port", "1");
  EXPECT_EQ(
      nics_of(found_devices({nic("0000:01:00.0", verbs_device("mlx5_0") + net_device("eth1")),
                             nic("0000:02:00.0", net_device("ib0") + net_device("ib1") + verbs_device("mlx4_0"))})),
      (Nics{{"mlx4_0", "infiniband", 56}, {"mlx4_0:2", "infiniband", 56}, {"mlx5_0", "roce", 200}}));
}

TEST_F(Discover, VirtualFunctionsWithAndWithoutTheirPhysicalOne) {
  for (const char* name : {"eth0", "eth0v1", "net1"}) {
    net(name, "40000");
  }
  for (const auto& [function, physical] :
       {std::pair("0000:01:00.1", "0000:01:00.0"), {"0000:02:00.1", "0000:02:00.0"}}) {
    const auto at = folder_ / "sys/bus/pci/devices" / function;
    std::filesystem::create_directories(at);
    std::filesystem::create_symlink(std::string("../") + physical, at / "physfn");
  }
  EXPECT_EQ(nics_of(found_devices({nic("0000:01:00.0", net_device("eth0")) + nic("0000:01:00.1", net_device("eth0v1")),
                                   nic("0000:02:00.0", "") + nic("0000:02:00.1", net_device("net1"))})),
            (Nics{{"eth0", "ethernet", 40}, {"net1", "ethernet", 40}}));
}

TEST_F(Discover, InterfacesOnNoPcieBus) {
  net("enP30832s1", "50000");
  net("eth0", "50000");
  write("sys/class/net/eth0/lower_enP30832s1", "");  // Azure: it stands on a virtual function
  net("eth9", "-1");                                 // of a virtual machine without PCIe
  const std::string loose =
      net_device("eth0") + net_device("eth9") +
      host_bridge("00-01", bridge("0000:00:01.0", "01-01", nic("0000:01:00.0", net_device("enP30832s1"))));
  const Machine machine = found(hwloc_xml(loose, ""));
  EXPECT_EQ(nics_of(machine), (Nics{{"enP30832s1", "ethernet", 50}, {"eth9", "ethernet", 0}}));
  EXPECT_TRUE(noted(machine.notes, "left out: eth0 (the same port as enP30832s1)"));
  const Machine bare = found(hwloc_xml(net_device("eth9"), ""));
  EXPECT_EQ(bare.nics.size(), 1);
  EXPECT_TRUE(noted(bare.notes, "sysfs shows no PCIe bus"));
}

TEST_F(Discover, NamesInNaturalOrderAndOfAnyByte) {
  for (const char* name : {"mlx5_10", "mlx5_2", "mlx5_0"}) {
    verbs(name, "InfiniBand");
  }
  verbs("i40iw0", "Ethernet", "40 Gb/sec (4X QDR)", "4: ACTIVE", 1, "4: RNIC");
  const Machine machine =
      found_devices({nic("0000:01:00.0", verbs_device("mlx5_10")), nic("0000:02:00.0", verbs_device("mlx5_2")),
                     nic("0000:03:00.0", verbs_device("mlx5_0")), nic("0000:04:00.0", verbs_device("i40iw0")),
                     nic("0000:05:00.0", net_device("eth[31m\xc3\xa9"))});
  EXPECT_EQ(nics_of(machine), (Nics{{"mlx5_0", "infiniband", 200},
                                    {"mlx5_2", "infiniband", 200},
                                    {"mlx5_10", "infiniband", 200},
                                    {"eth[31m?", "ethernet", 0},
                                    {"i40iw0", "ethernet", 40}}));
}

TEST_F(Discover, ASpeedThatIsUnknownOrNonsense) {
  for (const char* speed : {"-1", "4294967295", "many", "", "0", "nan", "99999999", "1e300"}) {
    net("eth0", speed);
    EXPECT_FALSE(found_devices({nic("0000:01:00.0", net_device("eth0"))}).nics[0].speed_gbit_s) << speed;
  }
}

TEST_F(Discover, GarbageInAttributesStopsNothing) {
  for (const std::string garbage : {"", "\xff\xfe", "-1", "99999999999999999999999999", "0x", "\x1b[31m"}) {
    verbs("mlx5_0", garbage, garbage, garbage);
    net("ib0", garbage, garbage, garbage);
    write("sys/class/net/ib0/dev_port", garbage);
    write("sys/class/infiniband/mlx5_0/ports/" + std::string(40, '9') + "/state", garbage);
    link("0000:13:00.0", garbage, garbage);
    found(eight_devices());
  }
}

TEST_F(Discover, ThisMachine) {
  const Machine machine = discover(read_nvml());
  check(machine);
  EXPECT_EQ(machine.source, "discovery");
  EXPECT_FALSE(machine.numa_nodes.empty());
}

TEST_F(Discover, AMachineThatHwlocWasGivenHasNeitherSysfsNorNvml) {
  write("machine.xml", eight_devices());
  setenv("HWLOC_XMLFILE", (folder_ / "machine.xml").c_str(), 1);
  const Machine machine = discover(missing(), (folder_ / "sys").string());
  EXPECT_EQ(machine.num_devices(), 8);
  EXPECT_FALSE(noted(machine.notes, "NVML"));
}

// --- NVML

class WithNvml : public Discover {
 protected:
  WithNvml() {
    library_ = dlopen(MADE_UP_NVML, RTLD_NOW);
    EXPECT_NE(library_, nullptr) << dlerror();
    said_ = static_cast<made_up_nvml*>(dlsym(library_, "made_up_nvml"));
    *said_ = {};
  }
  ~WithNvml() override { dlclose(library_); }

  // Links of a GPU, to bus ids; "" is a switch that a virtual machine hides.
  made_up_gpu& gpu(const char* bus_id, const std::vector<const char*>& links = {}) {
    made_up_gpu& made = said_->gpus[said_->num_gpus++];
    made.bus_id = bus_id;
    made.name = "Made-up GPU";
    made.version = 3;
    for (const char* peer : links) {
      const bool is_switch = *peer == '\0' || std::strcmp(peer, "0000:C0:00.0") == 0;
      made.links[made.num_links++] = {*peer == '\0' ? "FFFF:FF:FF.0" : peer, is_switch ? 2U : 0U, 1};
    }
    return made;
  }
  static NvmlFacts asked() { return read_nvml(MADE_UP_NVML); }

  void* library_;
  made_up_nvml* said_;
};

// Six of a switch that is hidden, and six of one that is not.
std::vector<const char*> switch_links(size_t count) {
  std::vector<const char*> links(count, "0000:C0:00.0");
  std::fill_n(links.begin(), 6, "");
  return links;
}

TEST_F(WithNvml, LinksThroughSwitchesJoinEveryPair) {
  for (const char* bus_id : {"0000:13:00.0", "0000:14:00.0", "0000:83:00.0"}) {
    gpu(bus_id, switch_links(12));
  }
  gpu("0000:84:00.0", switch_links(8));
  const Machine machine = found(eight_devices(), asked());
  EXPECT_EQ(machine.link(0, 2).kind, "NV12");
  EXPECT_EQ(machine.link(0, 2).speed_gbit_s, 2400);
  EXPECT_EQ(machine.link(0, 3).kind, "NV8");  // as many as the one with fewer
  EXPECT_EQ(machine.link(0, 4).kind, "PIX");
  EXPECT_EQ(machine.gpus[2].model, "Made-up GPU");
  EXPECT_EQ(machine.gpus[2].numa_node, 1);
  EXPECT_EQ(said_->num_shutdowns, 1);
}

TEST_F(WithNvml, DirectLinksOfUnequalWidth) {
  made_up_gpu& first = gpu("0000:13:00.0", {"0000:14:00.0", "0000:14:00.0", "0000:14:00.0", "0000:83:00.0"});
  made_up_gpu& second = gpu("0000:14:00.0", {"0000:13:00.0", "0000:13:00.0", "0000:13:00.0"});
  first.links[0].is_on = second.links[0].is_on = 0;
  gpu("0000:83:00.0", {"0000:13:00.0"});
  const Machine machine = found(eight_devices(), asked());
  EXPECT_EQ(machine.link(0, 1).kind + machine.link(0, 2).kind + machine.link(1, 2).kind, "NV2NV1SYS");
  EXPECT_EQ(machine.link(0, 1).speed_gbit_s, 400);
}

TEST_F(WithNvml, SpeedsOfLinks) {
  made_up_gpu& only = gpu("0000:13:00.0", {""});
  // NVIDIA's data sheets: P100, V100, A100, H100, B200.
  for (const auto& [mbyte_s, version, expected] : {std::tuple(26'562U, 4U, 212.496),
                                                   {0, 1, 160},
                                                   {0, 2, 200},
                                                   {0, 3, 200},
                                                   {0, 4, 200},
                                                   {0, 5, 400},
                                                   {0, 0, 0},
                                                   {0, 9, 0}}) {
    only.mbyte_s = mbyte_s;
    only.version = version;
    EXPECT_EQ(asked().gpus[0].fast_links[0].gbit_s.value_or(0), expected);
  }
}

TEST_F(WithNvml, C2cCountsForTheGpusPcieLink) {
  link("0000:01:00.0", "2.5 GT/s PCIe", "1");
  link("0000:02:00.0", "32.0 GT/s PCIe", "4");
  verbs("roceP2p1s0f0", "Ethernet");
  const auto speed = [&] {
    const Machine machine = found_devices(
        {device("0000:01:00.0", "0302 [10de:2941]"), nic("0000:02:00.0", verbs_device("roceP2p1s0f0"))}, asked());
    EXPECT_NEAR(find_rails(machine).rails[0].speed_gbit_s.value_or(0), 126.03, .01);
    return machine.path(0).back()->link_speed_gbit_s.value_or(0);
  };
  made_up_gpu& only = gpu("0000:01:00.0");
  EXPECT_EQ(speed(), 0);  // the driver tells none, and what PCIe says is no link that anything takes
  only.num_c2c = 5;
  only.c2c_mbyte_s = 44'712;
  EXPECT_NEAR(speed(), 5 * 44.712 * 8, .001);
}

TEST_F(WithNvml, AMultiNodeDomain) {
  made_up_gpu& only = gpu("0008:a0:00.0");
  const auto fabric = [&](unsigned state, unsigned char first_byte) {
    only.fabric_state = state;
    only.clique = 7;
    std::fill(std::begin(only.cluster), std::end(only.cluster), first_byte);
    const auto told = asked().gpus[0].fabric;
    return told ? told->first + " " + std::to_string(told->second) : "";
  };
  EXPECT_EQ(fabric(3, 0xAB), "abababab-abab-abab-abab-abababababab 7");
  EXPECT_EQ(fabric(2, 0xAB), "");  // joining still
  EXPECT_EQ(fabric(3, 0), "");     // one node's NVSwitches
  EXPECT_EQ(fabric(0, 0xAB), "");  // not supported
}

TEST_F(WithNvml, ItDecidesWhichGpusThereAre) {
  gpu("0000:84:00.0");
  gpu("0000:13:00.0").result = 15;  // it fell off the bus
  gpu("0000:99:00.0");
  const Machine machine = found(eight_devices(), asked());
  EXPECT_EQ(machine.id(0) + machine.gpus[0].bus_id + machine.id(1) + machine.gpus[1].bus_id,
            "GPU00000:84:00.0GPU20000:99:00.0");
  EXPECT_EQ(machine.link(0, 4).kind, "PIX");
  EXPECT_EQ(machine.link(1, 4).kind, "SYS");
  EXPECT_TRUE(noted(machine.notes, "NVML: GPU 1 left out: GPU is lost"));
  EXPECT_TRUE(noted(machine.notes, "NVML does not show 0000:13:00.0, 0000:14:00.0, 0000:83:00.0: left out"));
  EXPECT_TRUE(noted(machine.notes, "not on the PCIe bus that sysfs shows: GPU2"));
}

TEST_F(WithNvml, WithoutADriverOrALibrary) {
  said_->init_result = 9;
  EXPECT_EQ(asked().missing, "NVML: Driver Not Loaded");
  EXPECT_EQ(read_nvml("libnone.so").missing, "NVML: NVML Shared Library Not Found");
}

}  // namespace
}  // namespace isthmus::topology
