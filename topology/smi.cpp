// The matrix that `nvidia-smi topo -m` prints, as people paste it: tabs or spaces, a terminal's codes for underlining,
// marks of a comment, a quotation or a table, a prompt before and a legend after it; columns of affinity may be
// missing.
#include <algorithm>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "topology/hwloc.h"
#include "topology/read.h"

namespace isthmus::topology {
namespace {

// Repetitions are bounded, as std::regex recurses.
// What stands between words: a terminal's codes, also where their first character was lost or is a picture of itself,
// blanks that do not break, lines of tables.
const std::regex kApart("(?:\x1b|\xE2\x90\x9B)?\\[[0-9;]{0,16}m|\xC2\xA0|\\|");
const std::regex kAffinity("(CPU|NUMA) Affinity|GPU NUMA (ID)");
const std::regex kDevice(R"((?:(GPU|NIC)(\d{1,4})|[A-Za-z][\w.:-]{0,62}))");
const std::regex kCell(R"(X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC)");
const std::regex kCpus(R"(\d{1,6}[\d,-]{0,200})"), kNumber(R"(\d{1,5})"), kNumbers(R"((\d{1,5})[,-][\d,-]{1,64})");

using Words = std::vector<std::string>;

// A column of affinity is one word: CPU, NUMA, ID.
Words words_of(const std::string& line) {
  std::istringstream text(std::regex_replace(std::regex_replace(line, kApart, " "), kAffinity, "$1$2"));
  Words words((std::istream_iterator<std::string>(text)), {});
  const auto is_mark = [](const std::string& word) { return word.find_first_not_of("*#>/") == std::string::npos; };
  words.erase(words.begin(), std::ranges::find_if_not(words, is_mark));
  return words;
}

// A device, its column's distances in the order of all columns, and what its row has behind them. kind: 'G' GPU, 'N'
// NIC, 'M' a part of a GPU. line: of its row; 0: not seen yet.
struct Row {
  char kind;
  int number;
  std::string name;
  int line = 0;
  Words cells = {};
  Words behind = {};
};

class Matrix {
 public:
  explicit Matrix(const std::string& contents) {
    for (const char* text : {"ROCm System Management", "between two GPUs", " XGMI"}) {
      require(contents.find(text) == contents.npos, 0, "is what rocm-smi prints, which names no NICs: ", kExpected);
    }
    std::istringstream text(contents);
    Words above;  // those of the last line with any
    int number = 0, line_above = 0, last = 0;
    for (std::string line; std::getline(text, line);) {
      ++number;
      const Words words = words_of(line);
      if (words.empty()) {
        continue;
      }
      if (words.size() == 2 && words[0].ends_with(':')) {
        legend_.emplace(words[0].substr(0, words[0].size() - 1), words[1]);
      }
      if (words.size() > 1 && std::regex_match(words[1], kCell)) {
        if (devices_.empty() && words[0].starts_with("GPU")) {
          require(!above.empty(), number, "the matrix has no line that names its columns");
          read_header(above, line_above);
        }
        last = read_row(words, number) ? number : last;
      }
      line_above = number;
      above = words;
    }
    require(!devices_.empty(), 0, "is no description of a machine: ", kExpected);
    for (const Row& device : devices_) {
      require(device.line != 0, last, "the matrix is cut off: row ", device.name, " is missing");
    }
    check_symmetry();
  }

  Machine machine() const;

 private:
  void read_header(const Words& columns, int line) {
    int num_nics = 0;
    for (const std::string& name : columns) {
      if (name == "CPU" || name == "NUMA" || name == "ID") {
        affinities_ += name[0];
        continue;
      }
      std::smatch part;
      require(std::regex_match(name, part, kDevice), line, "'", printable(name.substr(0, 40)),
              "' is no name of a column");
      const char kind = part[1] == "GPU" ? 'G' : name.starts_with("MIG") ? 'M' : 'N';
      const int column = part[2].matched ? std::stoi(part[2]) : kind == 'N' ? num_nics : -1;
      num_nics += kind == 'N' ? 1 : 0;
      const bool is_new = std::ranges::none_of(devices_, [&](const Row& device) {
        return device.name == name || (kind != 'M' && device.kind == kind && device.number == column);
      });
      require(is_new && (kind == 'G' || !devices_.empty()), line,
              "the line above the matrix does not name its columns");
      devices_.push_back({kind, column, name});
    }
  }

  // Returns whether it is a row of this matrix; other text and other matrices are not.
  bool read_row(const Words& words, int line) {
    const auto row = std::ranges::find(devices_, words[0], &Row::name);
    if (row == devices_.end() || num_read_ == devices_.size()) {
      return false;
    }
    require(row->line == 0, line, "row ", row->name, " is given twice, first in line ", row->line);
    const auto end = std::find_if_not(words.begin() + 1, words.end(),
                                      [](const std::string& word) { return std::regex_match(word, kCell); });
    row->cells.assign(words.begin() + 1, end);
    std::ranges::replace(row->cells, "SOC", "SYS");  // its name in old drivers
    require(row->cells.size() >= devices_.size(), line, "row ", row->name, " has ", row->cells.size(), " of ",
            devices_.size(), " distances: ",
            end == words.end() ? "the row is cut off" : "'" + printable(end->substr(0, 20)) + "' is no distance");
    require(row->cells.size() == devices_.size(), line, "row ", row->name, " has more distances than ", devices_.size(),
            " columns");
    row->line = line;
    row->behind.assign(end, words.end());
    ++num_read_;
    return true;
  }

  void check_symmetry() const {
    for (size_t a = 0; a < devices_.size(); ++a) {
      for (size_t b = 0; b < devices_.size(); ++b) {
        const Row &row = devices_[a], &column = devices_[b];
        require((row.cells[b] == "X") == (a == b) && !row.cells[b].starts_with("NV0"), row.line, "row ", row.name,
                " has ", row.cells[b], " in column ", column.name);
        require(row.cells[b] == column.cells[a], row.line, "from ", row.name, " to ", column.name, " it is ",
                row.cells[b], ", back it is ", column.cells[a]);
      }
    }
  }

  // Processors and NUMA node of a GPU, from the columns behind the distances.
  std::pair<std::string, std::optional<int>> affinity(Words words, Machine& machine) const {
    const bool has_numa = affinities_.find('N') != std::string::npos, is_missing = words.size() < affinities_.size();
    std::string cpus;
    // Some systems tell no processors: of fewer words than columns the first, if a plain number, is a NUMA node.
    if (affinities_.starts_with('C') && !words.empty() && std::regex_match(words[0], kCpus) &&
        (!is_missing || !std::regex_match(words[0], kNumber))) {
      cpus = words[0];
      words.erase(words.begin());
    }
    if (has_numa && !words.empty() && std::regex_match(words[0], kNumber)) {
      return {cpus, std::stoi(words[0])};
    }
    if (std::smatch first; has_numa && !words.empty() && std::regex_match(words[0], first, kNumbers)) {
      // Behind a processor's node Grace has those of its GPUs' memory.
      machine.note("GPUs next to NUMA nodes " + words[0] + " are taken to be in the first");
      return {cpus, std::stoi(first[1])};
    }
    return {cpus, std::nullopt};
  }

  std::vector<Row> devices_;
  size_t num_read_ = 0;     // rows
  std::string affinities_;  // a letter for each of their columns
  std::map<std::string, std::string> legend_;
};

Machine Matrix::machine() const {
  Machine machine;
  machine.source = "nvidia-smi topo -m";
  std::vector<size_t> order;  // GPUs, then NICs, by number
  for (size_t at = 0; at < devices_.size(); ++at) {
    if (devices_[at].kind != 'M') {
      order.push_back(at);
    } else {
      machine.note("MIG devices are left out: each is where its GPU is");
    }
  }
  std::ranges::stable_sort(order, {}, [&](size_t at) { return std::pair(devices_[at].kind, devices_[at].number); });
  for (const size_t at : order) {
    const Row& device = devices_[at];
    if (device.kind == 'G') {
      const auto [cpus, numa_node] = affinity(device.behind, machine);
      Gpu& gpu = machine.gpus.emplace_back();
      gpu.index = device.number;
      gpu.numa_node = numa_node;
      if (numa_node && std::ranges::count(machine.numa_nodes, *numa_node, &NumaNode::index) == 0) {
        machine.numa_nodes.push_back({*numa_node, numa_node, cpus});
        machine.sockets.push_back({*numa_node, ""});
      }
    } else {
      const auto named = legend_.find(device.name);
      Nic& nic = machine.nics.emplace_back();
      nic.index = device.number;
      nic.name = named != legend_.end() ? named->second : device.name.starts_with("NIC") ? "" : device.name;
      nic.kind = nic_kind(-1, -1, nic.name, true);
      std::set<std::optional<int>> near;  // NUMA nodes of GPUs
      for (size_t gpu = 0; gpu < machine.gpus.size(); ++gpu) {
        if (device.cells[order[gpu]] != "SYS") {
          near.insert(machine.gpus[gpu].numa_node);
        }
      }
      nic.numa_node = near.size() == 1 ? *near.begin() : std::nullopt;
      if (nic.name.empty()) {
        machine.note("the matrix has no legend of its NICs: their names are unknown");
      }
    }
    for (const size_t other : order) {
      machine.links.push_back({device.cells[other], std::nullopt});
    }
  }
  machine.note("a matrix has no PCIe tree, no speeds and no models: they are unknown");
  if (machine.numa_nodes.empty()) {
    machine.note("the matrix names no NUMA nodes: they and sockets are unknown");
  } else if (machine.numa_nodes.size() > 1) {
    machine.note("a matrix names NUMA nodes, not sockets: each NUMA node is taken for a socket");
  }
  finish(machine);
  return machine;
}

}  // namespace

Machine parse_smi(const std::string& contents) { return Matrix(contents).machine(); }

}  // namespace isthmus::topology
