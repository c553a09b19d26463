// From a kind of description that was once read wrongly to what it says: made-up machines, each with the facts that it
// must give and those that it must not.
#include <gtest/gtest.h>

#include <numeric>
#include <sstream>

#include "machines.h"

namespace isthmus::topology {
namespace {

std::string nccl(const std::string& body) { return "<system version=\"2\">\n" + body + "\n</system>\n"; }
std::string cpu(int number, const std::string& body) {
  return "<cpu numaid=\"" + std::to_string(number) + "\">\n" + body + "\n</cpu>\n";
}
// A device of NCCL's files. what: its class, and ids of its maker and of itself where they matter.
std::string pci(const std::string& bus, const std::string& what, const std::string& inside = "") {
  return "<pci busid=\"0000:" + bus + ":00.0\" " + what + " link_speed=\"32 GT/s\" link_width=\"16\">" + inside +
         "</pci>\n";
}
const std::string kBridge = R"(class="0x060400")", kAmdGpu = R"(class="0x120000" vendor="0x1002" device="0x74a1")";
const std::string kNvidiaGpu = R"(class="0x030200" vendor="0x10de" device="0x2330")";
const std::string kRoce = R"(class="0x020000" vendor="0x15b3")";

std::string amd(int number, const std::string& peer, const std::string& gcn) {
  return pci("0" + std::to_string(number), kAmdGpu,
             "<gpu dev=\"" + std::to_string(number) + "\" sm=\"304\" gcn=\"" + gcn + "\"><xgmi target=\"0000:" + peer +
                 ":00.0\" count=\"2\" tclass=\"0x120000\"/></gpu>");
}
std::string net(const std::string& name, int dev, int mbit_s) {
  return "<net name=\"" + name + "\" dev=\"" + std::to_string(dev) + "\" speed=\"" + std::to_string(mbit_s) + "\"/>";
}
std::string nic(const std::string& nets) { return "<nic>" + nets + "</nic>"; }
std::string mlx5(const std::string& bus, int dev) {
  return pci(bus, kRoce, nic(net("mlx5_" + std::to_string(dev), dev, 200'000)));
}
// Below one switch a GPU and two NICs.
std::string gpu_with_two_nics(int number) {
  const std::string digit = std::to_string(number);
  return pci(digit + "0", kBridge,
             pci(digit + "1", kNvidiaGpu) + mlx5(digit + "2", 2 * number) + mlx5(digit + "3", 2 * number + 1));
}

// Two packages with two kinds of memory each, one without any, and memory without processors, as GPUs have it.
std::string two_memories() {
  const auto object = [](const std::string& type, int index, const std::string& cpus, const std::string& nodes,
                         const std::string& inside = "") {
    return "<object type=\"" + type + "\" os_index=\"" + std::to_string(index) + "\" cpuset=\"" + cpus +
           "\" complete_cpuset=\"" + cpus + "\" nodeset=\"" + nodes + "\" complete_nodeset=\"" + nodes + "\">\n" +
           inside + "</object>\n";
  };
  const auto package = [&](int index, const std::string& cpus, const std::string& nodes, const std::string& near,
                           const std::string& far, const std::string& bus, const std::string& name) {
    const std::string devices =
        host_bridge(bus + "0-" + bus + "2",
                    bridge("0000:" + bus + "0:01.0", bus + "1-" + bus + "1", device("0000:" + bus + "1:00.0", kA100)) +
                        bridge("0000:" + bus + "0:02.0", bus + "2-" + bus + "2",
                               device("0000:" + bus + "2:00.0", kInfiniBand, os_device(name, kVerbsType))));
    return object("Package", index, cpus, nodes,
                  object("NUMANode", index, cpus, near) + object("NUMANode", index + 2, cpus, far) +
                      object("PU", index, cpus, nodes) + devices);
  };
  const std::string machine = object(
      "Machine", 0, "0x7", "0x1f",
      package(0, "0x1", "0x5", "0x1", "0x4", "1", "mlx5_1") + package(1, "0x2", "0xa", "0x2", "0x8", "2", "mlx5_0") +
          object("Package", 2, "0x4", "0x0", object("PU", 2, "0x4", "0x0")) + object("NUMANode", 4, "0x0", "0x10"));
  return "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n" +
         replaced(machine, "os_index=\"0\"", "os_index=\"0\" allowed_cpuset=\"0x7\" allowed_nodeset=\"0x1f\"") +
         "</topology>\n";
}

// In eight_devices(): GPUs 0 and 1 below one switch, 2 and 3 below another.
std::string matrix(const std::string& name, const std::string& values) {
  return "<distances2 type=\"OSDev\" nbobjs=\"4\" kind=\"9\" name=\"" + name +
         "\" indexing=\"gp\">\n<indexes length=\"12\">11 12 13 14 </indexes>\n<u64values length=\"" +
         std::to_string(values.size()) + "\">" + values + "</u64values>\n</distances2>\n";
}
std::string all_replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}
std::string intel() {
  const auto gpu = [](const std::string& bus, int tile) {
    return bridge("0000:00:" + bus + ".0", bus + "-" + bus,
                  device("0000:" + bus + ":00.0", "0380 [8086:0bd5]",
                         os_device("ze" + std::to_string(tile / 2 - 5) + ".0", kGpuType, "", tile) +
                             os_device("ze" + std::to_string(tile / 2 - 5) + ".1", kGpuType, "", tile + 1)));
  };
  return hwloc_xml(host_bridge("00-02", gpu("01", 11) + gpu("02", 13)), "",
                   matrix("XeLinkBandwidth", "0 9 20000 0 9 0 0 20000 20000 0 0 9 0 20000 9 0 "));
}

const std::string kGrace =
    nccl(cpu(0, R"(<pci busid="0009:01:00.0" class="0x030200" vendor="0x10de" device="0x2941" link_speed="2.5 GT/s")"
                R"( link_width="1"><gpu dev="0" sm="100"><c2c bw="44712" count="5"/></gpu></pci>)"
                R"(<pci busid="0002:01:00.0" class="0x020000" vendor="0x15b3" link_speed="32 GT/s" link_width="4">)" +
                    nic(net("roceP2p1s0f0", 0, 200'000)) + "</pci>"));

// The facts of a machine, a line each.
Strings facts_of(const Machine& machine) {
  Strings facts = machine.notes;
  const auto add = [&](const auto&... parts) {
    std::ostringstream line;
    ((line << parts << ' '), ...);
    facts.push_back(line.str());
  };
  const auto near = [](const Device& device) {
    return device.numa_node ? "in " + std::to_string(*device.numa_node) : "anywhere";
  };
  const auto speed = [](const std::optional<double>& gbit_s) {
    std::ostringstream text;
    gbit_s ? text << *gbit_s : text << "?";
    return text.str();
  };
  const int num_gpus = static_cast<int>(machine.gpus.size());
  for (const Gpu& gpu : machine.gpus) {
    add("GPU", gpu.index, gpu.model, near(gpu));
  }
  for (const Nic& nic : machine.nics) {
    add("NIC", nic.index, nic.name, nic.kind, speed(nic.speed_gbit_s), near(nic));
  }
  for (int a = 0; a < machine.num_devices(); ++a) {
    for (int b = a + 1; b < machine.num_devices(); ++b) {
      add(machine.id(a), machine.id(b), machine.link(a, b).kind, speed(machine.link(a, b).speed_gbit_s));
    }
  }
  const Rails rails = find_rails(machine);
  for (const Rail& rail : rails.rails) {
    std::string nics;
    for (const int nic : rail.nics) {
      nics += (nics.empty() ? "" : "+") + machine.id(num_gpus + nic);
    }
    add("rail", rail.local_index, nics, speed(rail.speed_gbit_s));
  }
  facts.insert(facts.end(), rails.notes.begin(), rails.notes.end());
  add(machine.gpus.size(), "GPUs", machine.nics.size(), "NICs");
  return facts;
}

struct Kind {
  const char* name;
  std::string contents;
  Strings has, has_no;  // parts of facts
};

TEST(Kinds, AreReadForWhatTheySay) {
  const std::string kXgmiMatrix = "0 100000 0 0 100000 0 0 0 0 0 0 50000 0 0 50000 0 ";
  const std::vector<Kind> kinds = {
      {"XGMI in RCCL's dump",
       nccl(cpu(0, amd(1, "02", "gfx942") + amd(2, "01", "gfx942")) + cpu(1, amd(3, "09", "910"))),
       {"GPU 1 AMD gfx942 in 0", "GPU1 GPU2 XGMI 1024", "GPU1 GPU3 SYS ?", "GPU 3 AMD gfx90a in 1"},
       {"compute capability", "PCIe only"}},
      {"XGMI in hwloc's matrix, which has 100 GB/s for what it does not know",
       eight_devices(matrix("XGMIBandwidth", kXgmiMatrix)),
       {"GPU0 GPU1 XGMI ?", "GPU2 GPU3 XGMI 400", "GPU0 GPU2 SYS ?"},
       {"PCIe only"}},
      {"Xe links between parts of GPUs", intel(), {"GPU0 GPU1 XeLink 320", "2 GPUs 0 NICs"}, {"PCIe only"}},
      {"one interface under the <cpu> of each rank's process",
       nccl(cpu(0, pci("01", kNvidiaGpu) + nic(net("eth0", 0, 10'000))) +
            cpu(1, pci("02", kNvidiaGpu) + nic(net("eth0", 0, 10'000)))),
       {"2 GPUs 1 NICs", "NIC 0 eth0 ethernet 10 anywhere", "rail 1 NIC0 5"},
       {}},
      {"two ports of one name",
       nccl(cpu(0, pci("01", kRoce, nic(net("mlx5_0", 0, 100'000) + net("mlx5_0", 1, 100'000))))),
       {"0 GPUs 2 NICs"},
       {}},
      {"interfaces that software made",
       nccl(cpu(0, pci("01", kNvidiaGpu) + pci("02", kRoce, nic(net("ens2", 0, 1000))) +
                       nic(net("docker0", 1, 10'000) + net("veth12ab", 2, 10'000) + net("virbr0", 3, 10'000) +
                           net("tunl0", 4, 10'000)))),
       {"1 GPUs 1 NICs", "rail 0 NIC0 1", "left out: docker0, veth12ab, virbr0, tunl0 (made by software)"},
       {}},
      {"a GPU that has C2C beside a stub of PCIe",
       kGrace,
       {"GPU 0 NVIDIA GB200 in 0", "GPU0 NIC0 PHB 126.031", "rail 0 NIC0 126.031", "over C2C"},
       {}},
      {"the same where the file tells no C2C",
       all_replaced(eight_devices(), "[10de:20b2]", "[10de:2e12]"),
       {"GPU 0 NVIDIA GB10 in 0", "GPU0 NIC0 PIX ?"},
       {}},
      {"a RoCE device of another PCI domain", kGrace, {"NIC 0 roceP2p1s0f0 roce 200 in 0"}, {}},
      {"packages with two memories, with none, and memory without processors",
       two_memories(),
       {"GPU 0 NVIDIA A100-SXM4-80GB in 0", "GPU0 NIC1 PHB 252.062", "GPU1 NIC0 PHB 252.062", "GPU0 NIC0 SYS ?",
        "taken to be in the first, node 0"},
       {}},
      {"more NICs than GPUs",
       nccl(cpu(0, gpu_with_two_nics(1) + gpu_with_two_nics(2) + mlx5("09", 9))),
       {"rail 0 NIC2+NIC3 400", "rail 1 NIC4+NIC5 400", "no rail runs over mlx5_9: every GPU has nearer ones"},
       {}},
      {"a link of a GPU to itself",
       nccl(cpu(0, pci("01", kNvidiaGpu, R"(<gpu><nvlink target="0000:01:00.0" count="12" tclass="0x030200"/></gpu>)") +
                       pci("02", kNvidiaGpu))),
       {"GPU0 GPU1 PHB 504.123", "links of a GPU that lead to itself"},
       {}},
      {"a console",
       nccl(cpu(0, pci("01", R"(class="0x030000" vendor="0x1002" device="0x515e")") + amd(2, "09", "942"))),
       {"GPU 2 AMD gfx942 in 0", "1 GPUs 0 NICs"},
       {}},
      {"a console in hwloc's file",
       all_replaced(eight_devices(), "0302 [10de:20b2]", "0300 [1002:515e]"),
       {"0 GPUs 4 NICs"},
       {}},
      {"NUMA affinity of Grace, with its GPUs' memory",
       "GPU0 NIC0 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X NODE 0-71 0,2-17 2\nNIC0 NODE X\n",
       {"GPU 0  in 0", "NIC 0  unknown ? in 0", "next to NUMA nodes 0,2-17 are taken to be in the first"},
       {}},
      {"a speed in another unit",
       nccl(cpu(0, pci("01", kNvidiaGpu) + pci("02", kRoce, nic(net("cxi0", 0, 200'000'000))))),
       {"NIC 0 cxi0 roce ? in 0", "a NIC's speed of 200000 Gbit/s is more than any link has"},
       {"e+"}},
      {"bridges of one bus id",
       nccl(cpu(0, pci("05", kBridge, pci("01", kNvidiaGpu)) + pci("05", kBridge, pci("02", kNvidiaGpu)))),
       {"GPU0 GPU1 PHB 504.123"},
       {}},
  };
  for (const Kind& kind : kinds) {
    const Strings facts = facts_of(parse(kind.contents));
    const std::string all = std::accumulate(facts.begin(), facts.end(), std::string(),
                                            [](const auto& sum, const auto& fact) { return sum + "\n  " + fact; });
    for (const std::string& fact : kind.has) {
      EXPECT_TRUE(noted(facts, fact)) << kind.name << ": expected '" << fact << "' in" << all;
    }
    for (const std::string& fact : kind.has_no) {
      EXPECT_FALSE(noted(facts, fact)) << kind.name << ": expected no '" << fact << "' in" << all;
    }
  }
}

// "0 1|2 3 by PCIe switch, SYS 126".
std::string islands_of(const std::string& contents) {
  const Islands found = find_islands(parse(contents));
  std::ostringstream text;
  for (const std::vector<int>& island : found.gpus) {
    text << (&island == &found.gpus[0] ? "" : "|");
    for (const int gpu : island) {
      text << (gpu == island[0] ? "" : " ") << gpu;
    }
  }
  text << " by " << found.by << ", " << found.distance << ' ' << found.gbit_s.value_or(0);
  return text.str();
}

TEST(Islands, AreJoinedByFastLinksElseASwitchElseANumaNode) {
  const std::string two = pci("10", kBridge, pci("11", kNvidiaGpu) + pci("12", kNvidiaGpu));
  const std::string others = pci("20", kBridge, pci("21", kNvidiaGpu) + pci("22", kNvidiaGpu));
  const std::string far = pci("31", kNvidiaGpu) + pci("32", kNvidiaGpu);
  EXPECT_EQ(islands_of(nccl(cpu(0, two + others))),
            "0 1|2 3 by PCIe switch, PHB 252.061");  // each GPU half of its switch's link
  EXPECT_EQ(islands_of(nccl(cpu(0, two) + cpu(1, others))), "0 1|2 3 by PCIe switch, SYS 252.061");
  EXPECT_EQ(islands_of(nccl(cpu(0, far) + cpu(1, all_replaced(far, ":3", ":4")))), "0 1|2 3 by NUMA node, SYS 504.123");
  EXPECT_EQ(islands_of(nccl(cpu(0, far) + cpu(1, pci("41", kNvidiaGpu)))), "0 1|2 by NUMA node, SYS 504.123");
  EXPECT_EQ(islands_of(nccl(cpu(0, two))), "0 1 by PCIe switch,  0");
  EXPECT_EQ(islands_of(nccl(cpu(0, pci("11", kNvidiaGpu)) + cpu(1, pci("21", kNvidiaGpu)))), "0|1 by , SYS 504.123");
  EXPECT_EQ(islands_of(nccl(cpu(0, pci("11", kRoce)))), " by ,  0");
  // NVLink bridges across sockets come before all else, and so does XGMI.
  EXPECT_EQ(islands_of(eight_devices(matrix("NVLinkBandwidth", "0 0 50000 0 0 0 0 50000 50000 0 0 0 0 50000 0 0 "))),
            "0 2|1 3 by NVLink, SYS 126.031");
  EXPECT_EQ(islands_of(nccl(cpu(0, amd(1, "02", "942") + amd(2, "01", "942")) +
                            cpu(1, amd(3, "04", "942") + amd(4, "03", "942")))),
            "0 1|2 3 by XGMI, SYS 504.123");
  EXPECT_EQ(islands_of("GPU0 GPU1 GPU2 CPU Affinity NUMA Affinity\nGPU0 X SYS SYS 0-7 0\nGPU1 SYS X SYS 0-7 0\n"
                       "GPU2 SYS SYS X 8-15 1\n"),
            "0 1|2 by NUMA node, SYS 0");
}

TEST(Kinds, ThatAreNotReadSayWhatIs) {
  expect_refused("===== ROCm System Management Interface =====\n       GPU0  GPU1\nGPU0   0     XGMI\nGPU1   XGMI  0\n",
                 "is what rocm-smi prints, which names no NICs: expected hwloc XML");
}

}  // namespace
}  // namespace isthmus::topology
