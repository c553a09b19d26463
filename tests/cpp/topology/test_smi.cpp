// The matrix of `nvidia-smi topo -m`, in the states in which people paste it.
#include <gtest/gtest.h>

#include <regex>

#include "machines.h"
#include "topology/read.h"

namespace isthmus::topology {
namespace {

const std::string kMatrix =
    "        GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
    "GPU0     X      NV4     PXB     SYS     0-23,48-71      0               N/A\n"
    "GPU1    NV4      X      NODE    SYS     0-23,48-71      0               N/A\n"
    "NIC0    PXB     NODE     X      SYS\n"
    "NIC1    SYS     SYS     SYS      X\n";
const std::string kPlain = kMatrix +
                           "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
                           "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: rocep177s0f0\n";

std::string lines(const std::string& text, const std::string& before, const std::string& after = "") {
  return before + std::regex_replace(text.substr(0, text.size() - 1), std::regex("\n"), after + "\n" + before) + after +
         "\n";
}

TEST(SmiMatrix, APlainOne) {
  const Machine machine = parse(kPlain);
  EXPECT_EQ(machine.source, "nvidia-smi topo -m");
  EXPECT_EQ(kinds(machine), (Strings{"NV4", "PXB", "SYS", "NODE", "SYS", "SYS"}));
  EXPECT_EQ(machine.nics[0].name + machine.nics[1].name + machine.nics[1].kind, "mlx5_0rocep177s0f0roce");
  EXPECT_EQ(machine.nics[0].numa_node, 0);
  EXPECT_FALSE(machine.nics[1].numa_node);
  EXPECT_EQ(machine.gpus[1].numa_node, 0);
  EXPECT_EQ(machine.numa_nodes[0].cpus, "0-23,48-71");
}

TEST(SmiMatrix, InTheStatesInWhichPeoplePasteIt) {
  const auto with = [](const std::string& pattern, const std::string& to) {
    return std::regex_replace(kPlain, std::regex(pattern), to);
  };
  const std::string underlined = with("(GPU\\d|NIC\\d|CPU Affinity)(?=.*Affinity)", "\x1b[4m$1\x1b[0m");
  for (const std::string& text :
       {with(" {2,}", "\t"), with("\n", "\r\n"), with("\n", "\n\n"), underlined,
        std::regex_replace(underlined, std::regex("\x1b"), ""),
        std::regex_replace(underlined, std::regex("\x1b"), "\xE2\x90\x9B"), with("  ", "\xC2\xA0 "),
        "Our nodes (GPU0 is broken):\n```\nroot@n1:~# nvidia-smi topo -m\n" + kPlain + "```\nThanks!",
        lines(kPlain, " * "), lines(kPlain, "# "), lines(kPlain, "> > "), lines(with(" {2,}", " | "), "| ", " |"),
        kPlain.substr(8), kPlain + "\n" + with("NV4", "NV2")}) {
    const Machine machine = parse(text);
    EXPECT_EQ(kinds(machine), kinds(parse(kPlain))) << text;
    EXPECT_EQ(machine.nics[1].name, "rocep177s0f0") << text;
    EXPECT_EQ(machine.numa_nodes[0].cpus, "0-23,48-71") << text;
  }
}

TEST(SmiMatrix, ColumnsOfAffinity) {
  for (const auto& [columns, behind, numa_node, cpus] :
       {std::tuple("CPU Affinity NUMA Affinity GPU NUMA ID", "0-55,112-167 1 N/A", 1, "0-55,112-167"),
        {"CPU Affinity NUMA Affinity GPU NUMA ID", "1 N/A", 1, ""},
        {"CPU Affinity NUMA Affinity GPU NUMA ID", "56 1 N/A", 1, "56"},
        {"CPU Affinity NUMA Affinity GPU NUMA ID", "0-55 N/A N/A", -1, ""},
        {"CPU Affinity NUMA Affinity GPU NUMA ID", "112-127,240-255 6-7 N/A", 6, "112-127,240-255"},
        {"CPU Affinity NUMA", "0-51 0", 0, "0-51"},
        {"CPU Affinity NUMA Affinity", "", -1, ""},
        {"CPU Affinity", "0-51", -1, ""}}) {
    const Machine machine = parse(std::string("     GPU0 ") + columns + "\nGPU0  X   " + behind + "\n");
    EXPECT_EQ(machine.gpus[0].numa_node.value_or(-1), numa_node) << behind;
    EXPECT_EQ(machine.numa_nodes.empty() ? "" : machine.numa_nodes[0].cpus, cpus) << behind;
  }
  EXPECT_EQ(kinds(parse("      GPU0 GPU1 CPU Affinity\nGPU0   X   SOC 0-7\nGPU1  SOC   X  8-15\n")), Strings{"SYS"});
}

TEST(SmiMatrix, NamesOfNicsAndMig) {
  const Machine named =
      parse("GPU0 mlx5_0 bnxt_re0 CPU Affinity\nGPU0  X PIX NODE\nmlx5_0 PIX X NODE\nbnxt_re0 NODE NODE X\n");
  EXPECT_EQ(named.nics[0].name + named.nics[1].name, "mlx5_0bnxt_re0");
  const Machine numbered = parse("GPU0 NIC3 NIC10\nGPU0  X PIX NODE\nNIC3 PIX X NODE\nNIC10 NODE NODE X\n");
  EXPECT_EQ(numbered.id(1) + numbered.id(2), "NIC3NIC10");
  EXPECT_TRUE(noted(numbered.notes, "no legend of its NICs"));
  const Machine between =
      parse("GPU0 GPU1 NIC0 CPU Affinity NUMA Affinity\nGPU0 X SYS PHB 0-7 0\nGPU1 SYS X PHB 8-15 1\nNIC0 PHB PHB X\n");
  EXPECT_FALSE(between.nics[0].numa_node);
  const Machine mig = parse("GPU0 MIG0 GPU1\nGPU0 X PIX SYS\nMIG0 PIX X SYS\nGPU1 SYS SYS X\n");
  EXPECT_EQ(kinds(mig), Strings{"SYS"});
  EXPECT_TRUE(noted(mig.notes, "MIG devices are left out"));
}

std::string square(int number) {
  std::string header, rows;
  for (int row = 0; row < number; ++row) {
    header += " GPU" + std::to_string(row);
    rows += "GPU" + std::to_string(row);
    for (int column = 0; column < number; ++column) {
      rows += row == column ? " X" : " SYS";
    }
    rows += "\n";
  }
  return header + "\n" + rows;
}

TEST(SmiMatrix, ErrorsNameTheirLine) {
  const auto without = [](const std::string& row) {
    return std::regex_replace(kMatrix, std::regex("\n" + row + "[^\n]*"), "");
  };
  const std::string rows = kMatrix.substr(kMatrix.find('\n') + 1);
  expect_refused("What does GPU0 do?", "is no description of a machine");
  expect_refused(rows, "has no line that names its columns", 1);
  expect_refused(replaced(kMatrix, "GPU0    GPU1", "GPU0GPU1"), "does not name its columns", 1);
  expect_refused("$ nvidia-smi topo -m\n" + rows, "'$' is no name of a column", 1);
  expect_refused(without("NIC1"), "the matrix is cut off: row NIC1 is missing", 4);
  expect_refused(without("GPU1"), "the matrix is cut off: row GPU1 is missing", 4);
  expect_refused(kMatrix.substr(0, kMatrix.rfind("SYS      X")), "row NIC1 has 2 of 4 distances: the row is cut off",
                 5);
  expect_refused(kMatrix.substr(0, kMatrix.rfind("YS      X")), "row NIC1 has 2 of 4 distances: 'S' is no distance", 5);
  expect_refused(replaced(kMatrix, "PXB", "OK"), "row GPU0 has 2 of 4 distances: 'OK' is no distance", 2);
  expect_refused(replaced(kMatrix, "NIC1    CPU", "CPU"), "row GPU0 has more distances than 3 columns", 2);
  expect_refused(replaced(kMatrix, "CPU Affinity", "CPU-Nummern"),
                 "row GPU0 has 4 of 5 distances: '0-23,48-71' is no distance", 2);
  expect_refused(replaced(kMatrix, "PXB", "PIX"), "from GPU0 to NIC0 it is PIX, back it is PXB", 2);
  expect_refused(std::regex_replace(kMatrix, std::regex("NV4"), "NV0"), "row GPU0 has NV0 in column GPU1", 2);
  expect_refused(std::regex_replace(kMatrix, std::regex("NV4"), "X  "), "row GPU0 has X in column GPU1", 2);
  expect_refused(replaced(kMatrix, "\nGPU1 ", "\nGPU0 "), "row GPU0 is given twice, first in line 2", 3);
  expect_refused(replaced(kMatrix, "GPU0    GPU1", "GPU0    GPU00"), "does not name its columns", 1);
  EXPECT_EQ(parse(square(kMostDevices)).gpus.size(), kMostDevices);
  expect_refused(square(kMostDevices + 1), "has 257 GPUs, more than the 256");
}

TEST(SmiMatrix, EveryCutIsAnErrorOrTheWholeMachine) {
  size_t num_read = 0;
  for (size_t length = 0; length < kPlain.size(); ++length) {
    try {
      EXPECT_EQ(kinds(parse(kPlain.substr(0, length))), kinds(parse(kPlain)));
      ++num_read;
    } catch (const TopologyError&) {
    }
  }
  EXPECT_EQ(num_read, kPlain.size() - kMatrix.find_last_not_of('\n') - 1);
}

}  // namespace
}  // namespace isthmus::topology
