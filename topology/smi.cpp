// The matrix that `nvidia-smi topo -m` prints, as people paste it: tabs or spaces, columns run together, escape codes
// of a terminal, marks of a comment or a quotation, a prompt before and a legend after it; columns of affinity may be
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

constexpr int kMostLinks = 36;  // between two GPUs; a larger number is the next column, run together with this one
constexpr size_t kMostInLine = 8192;  // longer ones are no rows, and std::regex recurses

// Escape codes, also those whose first character was lost or spelled out.
const std::regex kEscape(R"((?:\x1b|\xE2\x90\x9B|\\033|\\x1b|\\e|\^\[)?\[[0-9;]{0,16}m)");
const std::regex kBlanks("(?:[\t\r| ]|\xC2\xA0)+"), kMarks("^[ *#>/]+| $");
const std::regex kColumn(
    R"( ?(?:(CPU Affinity|NUMA Affinity|GPU NUMA ID|NUMA(?!\w))|(GPU|NIC)(\d{1,4})|(mlx\d_\d{1,4}|[A-Za-z][\w.:-]{0,62})))",
    std::regex::icase);
const std::regex kCell(R"( ?(X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC))");
const std::regex kLegend(R"((NIC\d{1,4}) ?[:=] ?([A-Za-z][\w.:-]{0,62}))");
const std::regex kCpus(R"(\d{1,6}[\d,-]{0,200})"), kNumber(R"(\d{1,5})"), kNumbers(R"((\d{1,5})[,-][\d,-]{1,64})");

using Words = std::vector<std::string>;

// What a pattern and its groups match at the beginning of a text, from which it goes; none: nothing.
Words take(std::string& text, const std::regex& pattern) {
  std::smatch match;
  Words groups;
  if (std::regex_search(text, match, pattern, std::regex_constants::match_continuous)) {
    std::transform(match.begin(), match.end(), std::back_inserter(groups),
                   [](const auto& group) { return group.str(); });
    text.erase(0, groups[0].size());
  }
  return groups;
}

// A device, its column's distances in the order of all columns, and what its row has behind them. kind: 'G' GPU, 'N'
// NIC, 'M' a part of a GPU. line: of its row; 0: not seen yet.
struct Row {
  char kind;
  int number;
  std::string name;
  int line = 0;
  Words cells = {};
  std::string behind = {};
};

// groups: of kColumn.
Row row_of(const Words& groups) {
  if (groups[2].empty()) {
    return {groups[4].starts_with("MIG") || groups[4].starts_with("mig") ? 'M' : 'N', -1, groups[4]};
  }
  const bool is_gpu = std::toupper(groups[2][0]) == 'G';
  const int number = std::stoi(groups[3]);
  return {is_gpu ? 'G' : 'N', number, (is_gpu ? "GPU" : "NIC") + std::to_string(number)};
}

class Matrix {
 public:
  explicit Matrix(const std::string& contents) {
    for (const char* text : {"ROCm System Management", "between two GPUs", " XGMI"}) {
      require(contents.find(text) == contents.npos, 0, "is what rocm-smi prints, which names no NICs: ", kExpected);
    }
    std::istringstream text(contents);
    std::string above;  // the last line with anything in it
    int number = 0, line_above = 0, last = 0;
    for (std::string line; std::getline(text, line);) {
      ++number;
      line = line.size() > kMostInLine ? "" : std::regex_replace(line, kEscape, "");
      line = std::regex_replace(std::regex_replace(line, kBlanks, " "), kMarks, "");
      std::string rest = line;
      if (const Words named = take(rest, kLegend); !named.empty()) {
        legend_.emplace(named[1], named[2]);
      }
      rest = line;
      const Words label = take(rest, kColumn);
      std::string first = rest;
      if (!label.empty() && label[1].empty() && !take(first, kCell).empty()) {
        const Row device = row_of(label);
        if (devices_.empty() && device.kind == 'G') {
          require(!above.empty(), number, "the matrix has no line that names its columns");
          read_header(above, line_above);
        }
        last = read_row(device.name, rest, number) ? number : last;
      }
      line_above = line.empty() ? line_above : number;
      above = line.empty() ? above : line;
    }
    require(!devices_.empty(), 0, "is no description of a machine: ", kExpected);
    for (const Row& device : devices_) {
      require(device.line != 0, last, "the matrix is cut off: row ", device.name, " is missing");
    }
    check_symmetry();
  }

  Machine machine() const;

 private:
  void read_header(std::string text, int line) {
    int num_nics = 0;
    while (!text.empty()) {
      const Words column = take(text, kColumn);
      require(!column.empty(), line, "'", printable(text.substr(0, 40)), "' is no name of a column");
      if (!column[1].empty()) {
        affinities_ += static_cast<char>(std::toupper(static_cast<unsigned char>(column[1][0])));  // CPU, NUMA, GPU
        run_together_ = run_together_ || (!text.empty() && text[0] != ' ');
        continue;
      }
      devices_.push_back(row_of(column));
      devices_.back().number = devices_.back().number == -1 ? num_nics : devices_.back().number;
      num_nics += devices_.back().kind == 'N' ? 1 : 0;
      const auto is_new = std::ranges::count(devices_, devices_.back().name, &Row::name) == 1;
      require(is_new && devices_[0].kind == 'G', line, "the line above the matrix does not name its columns");
    }
  }

  // Returns whether it is a row of this matrix; other text and other matrices are not.
  bool read_row(const std::string& name, std::string text, int line) {
    const auto row = std::ranges::find(devices_, name, &Row::name);
    if (row == devices_.end() || num_read_ == devices_.size()) {
      return false;
    }
    require(row->line == 0, line, "row ", name, " is given twice, first in line ", row->line);
    while (row->cells.size() < devices_.size()) {
      const Words cell = take(text, kCell);
      require(!cell.empty(), line, "row ", name, " has ", row->cells.size(), " of ", devices_.size(), " distances: ",
              text.empty() ? "the row is cut off"
                           : "'" + printable(text.substr(0, text.find(' ', 1)).substr(0, 20)) + "' is no distance");
      std::string kind = cell[1] == "SOC" ? "SYS" : cell[1];  // its name in old drivers
      if (kind.size() == 4 && kind.starts_with("NV") && std::stoi(kind.substr(2)) > kMostLinks) {
        text.insert(0, 1, kind.back());
        kind.pop_back();
      }
      row->cells.push_back(kind);
    }
    row->line = line;
    row->behind = text;
    ++num_read_;
    require(take(text, kCell).empty(), line, "row ", name, " has more distances than ", devices_.size(), " columns");
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
  std::pair<std::string, std::optional<int>> affinity(const std::string& behind, Machine& machine) const {
    std::istringstream text(behind);
    Words words((std::istream_iterator<std::string>(text)), {});
    const bool has_numa = affinities_.find('N') != std::string::npos, is_missing = words.size() < affinities_.size();
    std::string cpus;
    if (affinities_.starts_with('C') && !words.empty() && std::regex_match(words[0], kCpus)) {
      if (run_together_ && is_missing && has_numa) {
        machine.note("CPU and NUMA affinity run together: the last digit is taken for the NUMA node");
        cpus = words[0].substr(0, words[0].size() - 1);
        cpus.erase(cpus.find_last_not_of(",-") + 1);
        words[0] = words[0].back();
      } else if (!is_missing || !std::regex_match(words[0], kNumber)) {
        // Some systems tell no processors: of fewer words than columns the first, if a plain number, is a NUMA node.
        cpus = words[0];
        words.erase(words.begin());
      }
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
  bool run_together_ = false;
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
