// NCCL's topology XML: what is read, what is assumed, and what is refused with its line.
#include <gtest/gtest.h>

#include <cstdio>

#include "machines.h"
#include "topology/read.h"

namespace isthmus::topology {
namespace {

std::string nccl(const std::string& body) { return "<system version=\"1\">\n" + body + "\n</system>\n"; }
std::string cpu(const std::string& body, const std::string& numaid = "0") {
  return "<cpu numaid=\"" + numaid + "\">\n" + body + "\n</cpu>";
}
std::string plain_gpu(int number) {
  return "<pci busid=\"0000:0" + std::to_string(number) +
         ":00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\"/>";
}
std::string gpu(int dev, const Strings& nvlinks = {}, int sm = 90) {
  const std::string number = std::to_string(dev);
  std::string links;
  for (const std::string& link : nvlinks) {
    links += "<nvlink " + link + "/>";
  }
  return "<pci busid=\"0000:0" + number + ":00.0\" class=\"0x030200\"><gpu dev=\"" + number + "\" sm=\"" +
         std::to_string(sm) + "\">" + links + "</gpu></pci>";
}
std::string to_switch(int count, const std::string& name = "99") {
  return "target=\"0000:" + name + ":00.0\" count=\"" + std::to_string(count) + "\" tclass=\"0x068000\"";
}
std::string to(int dev, int count, const std::string& more = "") {
  return "target=\"0000:0" + std::to_string(dev) + ":00.0\" count=\"" + std::to_string(count) + "\" " + more;
}

TEST(Nccl, NvLinks) {
  const auto expect = [](const std::string& gpus, const Strings& expected, double gbit_s,
                         const std::string& note = "") {
    const Machine machine = parse(nccl(cpu(gpus)));
    EXPECT_EQ(kinds(machine), expected) << gpus;
    EXPECT_EQ(machine.link(0, 1).speed_gbit_s.value_or(0), gbit_s) << gpus;
    EXPECT_TRUE(noted(machine.notes, note)) << gpus;
  };
  // H100s reach four switches by 4 or 5 links each: the sums count.
  const auto hopper = [](int dev, int a, int b, int c, int d) {
    return gpu(dev, {to_switch(a, "80"), to_switch(b, "81"), to_switch(c, "82"), to_switch(d, "83")});
  };
  expect(hopper(0, 5, 5, 4, 4) + hopper(1, 4, 4, 5, 5) + hopper(2, 5, 4, 5, 4), {"NV18", "NV18", "NV18"}, 18 * 200);
  // As many as the one with fewer has to switches.
  expect(gpu(0, {to_switch(12)}) + gpu(1, {to_switch(8)}) + gpu(2), {"NV8", "PHB", "PHB"}, 8 * 200);
  // A switch that a virtual machine cannot see, and one of which the file tells no class.
  const std::string hidden = "target=\"FFFFFFFF:FFFF:FF\" count=\"18\"";
  expect(gpu(0, {hidden}) + gpu(1, {hidden}), {"NV18"}, 18 * 200);
  expect(gpu(0, {"target=\"0000:99:00.0\""}) + gpu(1, {"target=\"0000:99:00.0\""}), {"NV1"}, 200);
  // Direct links count for their pair only: a V100 quad. Either of the two may name them.
  expect(gpu(0, {to(1, 1, "tclass=\"0x030200\""), to(2, 2)}, 70) + gpu(1, {to(0, 1)}, 70) + gpu(2, {}, 70),
         {"NV1", "NV2", "PHB"}, 200);
  expect(gpu(0, {to(1, 4)}) + gpu(1, {to(0, 2)}), {"NV2"}, 400, "different numbers of links between them");
  // A third GPU is no switch, though the links to it tell no class.
  expect(gpu(0, {to(2, 2)}) + gpu(1, {to(2, 2)}) + gpu(2), {"PHB", "NV2", "NV2"}, 0);
  // To a GPU that the job did not see, and to the processor.
  expect(gpu(0, {to(9, 2, "tclass=\"0x030200\"")}) + gpu(1, {to(9, 2, "tclass=\"0x030200\"")}), {"PHB"}, 0);
  expect(gpu(0, {to(8, 3, "tclass=\"0x068001\"")}) + gpu(1, {to(8, 3, "tclass=\"0x068001\"")}), {"PHB"}, 0);
  expect(gpu(0) + gpu(1), {"PHB"}, 0, "the file names no NVLinks");
  // Data sheets add both directions of all links.
  for (const auto& [sm, gbyte_s, count] :
       {std::tuple(60, 160., 4), {70, 300., 6}, {80, 600., 12}, {86, 112.5, 4}, {90, 900., 18}, {100, 1800., 18}}) {
    expect(gpu(0, {to_switch(count)}, sm) + gpu(1, {to_switch(count)}, sm), {"NV" + std::to_string(count)},
           gbyte_s * 4);
  }
  expect(gpu(0, {to_switch(6)}) + gpu(1, {to_switch(6)}, 120), {"NV6"}, 0);
}

TEST(Nccl, AWayOfUnknownSpeedAndBridgesWithoutDevices) {
  std::string inside = plain_gpu(0) + replaced(plain_gpu(1), "16 GT/s", "Unknown") + plain_gpu(2);
  inside += R"(<pci busid="0000:0a:00.0" class="0x060400"><pci busid="0000:0b:00.0" class="0x060400"/></pci>)";
  const Machine machine =
      parse(nccl(cpu(R"(<pci busid="0000:09:00.0" class="0x060400" link_speed="Unknown">)" + inside + "</pci>")));
  EXPECT_FALSE(machine.link(0, 1).speed_gbit_s);
  EXPECT_NEAR(*machine.link(0, 2).speed_gbit_s, 252.06, .01);  // without the switch's own link
  EXPECT_EQ(below(machine, machine.path(0)[1]).size(), 4);     // the bridge, too, from which nothing hangs
}

TEST(Nccl, NicsWithSeveralPortsAndWithoutPcie) {
  const Machine machine = parse(nccl(cpu(
      R"(<pci busid="0000:61:00.0" class="0x020700"><nic><net name="mlx5&#9;&#133;_4" dev="1" speed="200000"/>)"
      R"(<net name="mlx5_5" dev="0" speed="100000" gdr="1"/></nic></pci><nic><net name="hsn0" dev="2" speed="-1"/></nic>)")));
  ASSERT_EQ(machine.nics.size(), 3);
  EXPECT_EQ(machine.nics[0].name + machine.nics[1].name + machine.nics[2].name, "mlx5_5mlx5??_4hsn0");
  EXPECT_EQ(machine.nics[0].speed_gbit_s, 100);
  EXPECT_FALSE(machine.nics[2].speed_gbit_s);
  EXPECT_EQ(machine.nics[2].numa_node, 0);
  EXPECT_EQ(kinds(machine), (Strings{"PIX", "PHB", "PHB"}));
}

TEST(Nccl, ProtocolsOfNics) {
  const auto kind = [](const std::string& pci, const std::string& name) {
    const std::string net = name.empty() ? "" : "<nic><net name=\"" + name + "\" speed=\"1000\"/></nic>";
    return parse(nccl(cpu("<pci busid=\"0000:01:00.0\" " + pci + ">" + net + "</pci>"))).nics[0].kind;
  };
  EXPECT_EQ(kind(R"(class="0x020700")", "mlx5_0"), "infiniband");
  EXPECT_EQ(kind(R"(class="0x020000" vendor="0x15b3")", "mlx5_0"), "roce");
  EXPECT_EQ(kind(R"(class="0x020000" vendor="0x15b3")", "ens1np0"), "ethernet");
  EXPECT_EQ(kind(R"(class="0x020000" vendor="0x1d0f")", "rdmap16s27"), "efa");
  EXPECT_EQ(kind(R"(class="0x020000")", "rdmap79s0"), "efa");
  EXPECT_EQ(kind(R"(class="0x020000" vendor="0x1d0f")", "ens5"), "ethernet");
  EXPECT_EQ(kind(R"(class="0x028000")", "wlP9s9"), "unknown");
  EXPECT_EQ(kind("", "bnxt_re0"), "roce");
  EXPECT_EQ(kind(R"(class="0x020700")", ""), "infiniband");  // as clouds write them by hand: no <nic>
  EXPECT_EQ(kind(R"(class="0x020000")", ""), "ethernet");
}

TEST(Nccl, DisksConsolesAndUnknownElementsAreLeftOut) {
  const Machine machine = parse(nccl(cpu(
      plain_gpu(1) +
      R"(<pci busid="0000:02:00.0"/><pci busid="0000:03:00.0" class="0x010802"/><disk/><pci busid="0000:04:00.0" class="0x030000" vendor="0x1a03"/>)")));
  EXPECT_EQ(machine.num_devices(), 1);
}

TEST(Nccl, NodesWithoutNumberAndSeveralHosts) {
  const Machine machine = parse(nccl(cpu(plain_gpu(1), "-1") + "<cpu>" + plain_gpu(2) + "</cpu>"));
  EXPECT_FALSE(machine.gpus[1].numa_node);
  EXPECT_EQ(machine.link(0, 1).kind, "NODE");  // there is no second NUMA node to be in
  EXPECT_TRUE(noted(machine.notes, "a NUMA node has no number"));
  const std::string host = "<cpu host_hash=\"0xaaa\" numaid=\"0\">" + gpu(0) + "</cpu>";
  const Machine first = parse(nccl(host + replaced(host, "aaa", "bbb")));
  EXPECT_EQ(first.gpus.size(), 1);
  EXPECT_TRUE(noted(first.notes, "the file describes 2 hosts: the first, host_hash 0xaaa, is read"));
}

TEST(Nccl, GpusKeepTheirNumbers) {
  const Machine machine = parse(nccl(cpu(gpu(5) + gpu(2))));  // a dump of a job that sees two of the GPUs
  EXPECT_EQ(machine.id(0) + machine.gpus[0].bus_id + machine.id(1), "GPU20000:02:00.0GPU5");
  const Machine twice = parse(nccl(cpu(gpu(5) + replaced(gpu(2), "dev=\"2\"", "dev=\"5\""))));
  EXPECT_EQ(twice.id(0) + twice.gpus[0].bus_id, "GPU00000:02:00.0");
  EXPECT_TRUE(noted(twice.notes, "GPUs are numbered by rising bus id"));
}

TEST(Nccl, SpeedsOfPcieLinks) {
  for (const auto& [speed, width, gbit_s] : {std::tuple("8 GT/s", "16", 8 * 16 * 128 / 130.),
                                             {"16.0 GT/s PCIe", "8", 16 * 8 * 128 / 130.},
                                             {"2.5 GT/s", "1", 2.},
                                             {"64.0 GT/s PCIe", "16", 64 * 16 * 242 / 256.},
                                             {"16", "16", 16 * 16 * 128 / 130.},
                                             {"Unknown speed", "16", 0.},
                                             {"", "16", 0.},
                                             {"-8 GT/s", "16", 0.},
                                             {"9999 GT/s", "16", 0.},
                                             {"16 GT/s", "", 0.},
                                             {"16 GT/s", "0", 0.},
                                             {"16 GT/s", "255", 0.},
                                             {"16 GT/s", "-1", 0.},
                                             {"16 GT/s", "wide", 0.}}) {
    const std::string link = std::string("link_speed=\"") + speed + "\" link_width=\"" + width + "\"";
    const Machine machine = parse(nccl(cpu("<pci busid=\"0000:01:00.0\" class=\"0x030200\" " + link + "/>")));
    EXPECT_NEAR(machine.path(0).back()->link_speed_gbit_s.value_or(0), gbit_s, .001) << link;
  }
}

std::string many_gpus(int number) {
  std::string all;
  for (int n = 0; n < number; ++n) {
    char pci[64];
    std::snprintf(pci, sizeof pci, "<pci busid=\"0000:%02x:%02x.0\" class=\"0x0302\"/>", n / 32, n % 32);
    all += pci;
  }
  return nccl(cpu(all));
}

std::string nested(int levels) {
  std::string open, close;
  for (int n = 0; n < levels; ++n) {
    char pci[64];
    std::snprintf(pci, sizeof pci, "<pci busid=\"0000:%02x:00.0\" class=\"0x060400\">", n + 16);
    open += pci;
    close += "</pci>";
  }
  return nccl(cpu(open + plain_gpu(1) + close));
}

TEST(Nccl, ErrorsNameTheirLine) {
  const auto pci = [](const std::string& attributes) { return nccl(cpu("<pci " + attributes + "/>")); };
  const std::string at = "busid=\"0000:01:00.0\" ";
  expect_refused(nccl(""), "names neither a GPU nor a NIC");
  expect_refused(pci("class=\"0x030200\""), "'' is no PCI bus id", 3);
  expect_refused(pci("busid=\"nowhere\" class=\"0x030200\""), "'nowhere' is no PCI bus id", 3);
  expect_refused(pci("busid=\"0:1:0\""), "'0:1:0' is no PCI bus id", 3);
  expect_refused(pci(at + "class=\"0x0302009\""), "class='0x0302009'", 3);
  expect_refused(pci(at + "class=\"GPU\""), "class='GPU': expected one like 0x030200", 3);
  expect_refused(pci(at + "vendor=\"-1\""), "vendor='-1': expected an integer from 0 to 65535", 3);
  expect_refused(nccl(cpu(plain_gpu(1) + "\n" + plain_gpu(1))), "bus id 0000:01:00.0 is given twice, first in line 3",
                 4);
  expect_refused(nccl(cpu(gpu(0, {"count=\"1\""}))), "'' is no PCI bus id", 3);
  expect_refused(nccl(cpu(gpu(0, {to(1, 0)}))), "count='0': expected an integer from 1 to 72", 3);
  expect_refused(nccl(cpu(gpu(0, {"target=\"0000:02:00.0\" count=\"1e3\""}))), "count='1e3'", 3);
  expect_refused(nccl(cpu(gpu(0, {to(1, 40), to(1, 40)}))), "has more than 72 links", 3);
  expect_refused(nccl(cpu("<nic><net speed=\"9999999999\"/></nic>")), "speed='99999", 3);
  expect_refused(nccl(cpu("", "zero")), "numaid='zero'", 2);
  expect_refused(nccl(cpu("") + cpu("")), "NUMA node 0 is given twice", 4);
  expect_refused(many_gpus(kMostDevices + 1), "has 257 GPUs, more than the 256");
  expect_refused(nested(62), "elements nest more than 64 deep", 3);
  expect_refused(replaced(nested(1), "version=\"1\"", "version=\"3\""), "version='3': expected an integer from 1 to 2",
                 1);
}

TEST(Nccl, TheLimitsThemselvesAreRead) {
  EXPECT_EQ(parse(many_gpus(kMostDevices)).gpus.size(), kMostDevices);
  parse(replaced(nested(61), "version=\"1\"", "version=\"2\""));  // RCCL; 64 elements
}

}  // namespace
}  // namespace isthmus::topology
