// The matrix that `nvidia-smi topo -m` prints, as people paste it: tabs or spaces, columns run together, escape codes
// of a terminal, marks of a comment or a quotation, a prompt before and a legend after it; columns of affinity may be
// missing.
#include <algorithm>
#include <map>
#include <regex>
#include <sstream>

#include "topology/pcie.h"
#include "topology/read.h"

namespace isthmus::topology {
namespace {

using Match = std::smatch;
constexpr int kMostLinks = 36;  // between two GPUs; a larger number is the next column, run together with this one
constexpr size_t kMostInLine = 8192;  // longer ones are no rows, and std::regex recurses

// Escape codes, also those whose first character was lost or spelled out.
const std::regex kEscape(R"((?:\x1b|\xE2\x90\x9B|\\033|\\x1b|\\e|\^\[)?\[[0-9;]{0,16}m)");
const std::regex kColumn(
    R"( ?(?:(CPU Affinity|NUMA Affinity|GPU NUMA ID|NUMA(?!\w))|(GPU|NIC)(\d{1,4})|(mlx\d_\d{1,4}|[A-Za-z][\w.:-]{0,62})))",
    std::regex::icase);
const std::regex kCell(R"( ?(X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC))");
const std::regex kLegend(R"((NIC\d{1,4}) ?[:=] ?([A-Za-z][\w.:-]{0,62}))");

// Without escape codes and marks before the text; all blanks are single spaces.
std::string clean(const std::string& line) {
  if (line.size() > kMostInLine) {
    return "";
  }
  std::string text;
  for (const char one : std::regex_replace(line, kEscape, "")) {
    const bool is_blank =
        one == '\t' || one == '\r' || one == '|' || one == ' ' || (one & 0xFF) == 0xA0;  // of UTF-8's no-break
    const bool is_mark = is_blank || one == '*' || one == '#' || one == '>' || one == '/' || (one & 0xFF) == 0xC2;
    if (!(is_blank ? text.empty() || text.back() == ' ' : (is_mark && text.empty()) || (one & 0xFF) == 0xC2)) {
      text += is_blank ? ' ' : one;
    }
  }
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

bool match_at(const std::string& line, size_t at, const std::regex& pattern, Match& match) {
  return std::regex_search(line.begin() + static_cast<long>(at), line.end(), match, pattern,
                           std::regex_constants::match_continuous);
}

// "GPU0", "NIC12", "mlx5_0".
std::string device_of(const Match& column) {
  if (!column[2].matched) {
    return column[4];
  }
  return (column.str(2)[0] == 'G' || column.str(2)[0] == 'g' ? "GPU" : "NIC") + std::to_string(std::stoi(column[3]));
}

bool is_numbered(const std::string& name, const char* kind) {
  return name.starts_with(kind) && name.size() > 3 && name.find_first_not_of("0123456789", 3) == std::string::npos;
}
bool is_gpu_name(const std::string& name) { return is_numbered(name, "GPU"); }

// The device whose row a line is, and where its name ends; "": it is none.
std::string label(const std::string& line, size_t& at) {
  Match column, cell;
  if (!match_at(line, 0, kColumn, column) || column[1].matched) {
    return "";
  }
  at = static_cast<size_t>(column.length());
  return match_at(line, at, kCell, cell) ? device_of(column) : "";
}

struct Row {
  int line = 0;
  std::vector<std::string> cells;
  std::vector<std::string> behind;  // words in the columns of affinity
};

class Matrix {
 public:
  // header: the place of the line that names the columns.
  Matrix(const std::vector<std::string>& lines, size_t header) : line_(static_cast<int>(header) + 1) {
    read_header(lines[header]);
    int last = line_;
    for (size_t number = header + 1; number < lines.size(); ++number) {
      last = read_line(lines[number], static_cast<int>(number) + 1) ? static_cast<int>(number) + 1 : last;
    }
    for (const std::string& device : devices_) {
      require(rows_.count(device) != 0, last, "the matrix is cut off: row ", device, " is missing");
    }
    check_symmetry();
  }

  Machine machine() const;

 private:
  void read_header(const std::string& line) {
    Match column;
    for (size_t at = 0; at < line.size(); at += static_cast<size_t>(column.length())) {
      require(match_at(line, at, kColumn, column), line_, "'", line.substr(at, 40), "' is no name of a column");
      if (column[1].matched) {
        affinities_ += static_cast<char>(std::toupper(static_cast<unsigned char>(column.str(1)[0])));  // CPU, NUMA, GPU
        run_together_ = run_together_ || (column.suffix().length() != 0 && *column.suffix().first != ' ');
      } else {
        devices_.push_back(device_of(column));
      }
    }
    const auto num_gpus = static_cast<size_t>(std::count_if(devices_.begin(), devices_.end(), is_gpu_name));
    for (const auto& [count, what] : {std::pair(num_gpus, "GPUs"), {devices_.size() - num_gpus, "NICs"}}) {
      require(count <= kMostDevices, line_, "the matrix has ", count, " ", what, ", more than the ", kMostDevices,
              " that a machine may have");
    }
    std::vector<std::string> sorted = devices_;
    std::sort(sorted.begin(), sorted.end());
    const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
    require(!devices_.empty() && is_gpu_name(devices_[0]) && !twice, line_,
            "the line above the matrix does not name its columns");
  }

  // Returns whether the line is a row.
  bool read_line(const std::string& line, int number) {
    Match match;
    if (match_at(line, 0, kLegend, match)) {
      legend_.emplace(match[1], match[2]);
    }
    size_t at = 0;
    const std::string device = label(line, at);
    if (std::find(devices_.begin(), devices_.end(), device) == devices_.end() || rows_.size() == devices_.size()) {
      return false;  // other text, or another matrix
    }
    Row row{number, {}, {}};
    while (row.cells.size() < devices_.size()) {
      std::istringstream rest(line.substr(at));
      std::string word;
      rest >> word;
      require(match_at(line, at, kCell, match), number, "row ", device, " has ", row.cells.size(), " of ",
              devices_.size(), " distances: ",
              word.empty() ? "the row is cut off" : "'" + printable(word.substr(0, 20)) + "' is no distance");
      std::string cell = match[1];
      cell.resize(cell.size() == 4 && cell[0] == 'N' && cell[1] == 'V' && std::stoi(cell.substr(2)) > kMostLinks
                      ? 3
                      : cell.size());
      row.cells.push_back(cell == "SOC" ? "SYS" : cell);  // its name in old drivers
      at += static_cast<size_t>(match.position(1)) + cell.size();
    }
    require(!match_at(line, at, kCell, match), number, "row ", device, " has more distances than ", devices_.size(),
            " columns");
    std::istringstream rest(line.substr(at));
    for (std::string word; rest >> word;) {
      row.behind.push_back(word);
    }
    const auto [first, is_new] = rows_.emplace(device, row);
    require(is_new, number, "row ", device, " is given twice, first in line ", first->second.line);
    return true;
  }

  void check_symmetry() const {
    for (size_t a = 0; a < devices_.size(); ++a) {
      for (size_t b = 0; b < devices_.size(); ++b) {
        const Row& row = rows_.at(devices_[a]);
        const std::string &cell = row.cells[b], &back = rows_.at(devices_[b]).cells[a];
        require((cell == "X") == (a == b) && !cell.starts_with("NV0"), row.line, "row ", devices_[a], " has ", cell,
                " in column ", devices_[b]);
        require(cell == back, row.line, "from ", devices_[a], " to ", devices_[b], " it is ", cell, ", back it is ",
                back);
      }
    }
  }

  // Processors and NUMA node of a GPU, from the columns behind the distances.
  std::pair<std::string, std::optional<int>> affinity(const Row& row, Machine& machine) const {
    static const std::regex kCpus(R"(\d{1,6}[\d,-]{0,200})"), kNumber(R"(\d{1,5})");
    std::vector<std::string> words = row.behind;
    const bool has_numa = affinities_.find('N') != std::string::npos;
    std::string cpus;
    if (affinities_.starts_with('C') && !words.empty() && words[0].size() < 200 && std::regex_match(words[0], kCpus)) {
      const bool is_missing = words.size() < affinities_.size();
      if (run_together_ && is_missing && has_numa) {
        machine.note("CPU and NUMA affinity run together: the last digit is taken for the NUMA node");
        cpus = words[0].substr(0, words[0].find_last_not_of(",-", words[0].size() - 2) + 1);
        return {cpus, words[0].back() - '0'};
      }
      // Some systems tell no processors: of fewer words than columns the first, if a plain number, is a NUMA node.
      if (!is_missing || !std::regex_match(words[0], kNumber)) {
        cpus = words[0];
        words.erase(words.begin());
      }
    }
    if (!has_numa || words.empty() || words[0] == "N/A") {
      return {cpus, std::nullopt};
    }
    if (words[0].size() > 5 || !std::regex_match(words[0], kNumber)) {
      machine.note("a GPU is next to several NUMA nodes: it is taken to be in none");
      return {cpus, std::nullopt};
    }
    return {cpus, std::stoi(words[0])};
  }

  int line_;
  std::vector<std::string> devices_;
  std::string affinities_;  // a letter for each of their columns
  bool run_together_ = false;
  std::map<std::string, Row> rows_;
  std::map<std::string, std::string> legend_;
};

Machine Matrix::machine() const {
  Machine machine;
  machine.source = "nvidia-smi topo -m";
  std::vector<std::pair<int, std::string>> gpus, nics;  // by number
  for (const std::string& device : devices_) {
    if (is_gpu_name(device)) {
      gpus.emplace_back(std::stoi(device.substr(3)), device);
    } else if (device.starts_with("MIG") || device.starts_with("mig")) {
      machine.note("MIG devices are left out: each is where its GPU is");
    } else {
      nics.emplace_back(is_numbered(device, "NIC") ? std::stoi(device.substr(3)) : static_cast<int>(nics.size()),
                        device);
    }
  }
  std::sort(gpus.begin(), gpus.end());
  std::stable_sort(nics.begin(), nics.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::map<int, std::string> numa_nodes;
  for (const auto& [index, device] : gpus) {
    const auto [cpus, numa_node] = affinity(rows_.at(device), machine);
    Gpu& gpu = machine.gpus.emplace_back();
    gpu.index = index;
    gpu.numa_node = numa_node;
    if (numa_node) {
      numa_nodes.emplace(*numa_node, cpus);
    }
  }
  for (const auto& [index, cpus] : numa_nodes) {
    machine.numa_nodes.push_back({index, index, cpus});
    machine.sockets.push_back({index, ""});
  }
  const auto link = [&](const std::string& a, const std::string& b) {
    return rows_.at(a).cells[static_cast<size_t>(std::find(devices_.begin(), devices_.end(), b) - devices_.begin())];
  };
  for (const auto& [index, device] : nics) {
    const auto named = legend_.find(device);
    Nic& nic = machine.nics.emplace_back();
    nic.index = index;
    nic.name = named != legend_.end() ? named->second : is_numbered(device, "NIC") ? "" : device;
    nic.kind = nic_kind(-1, -1, nic.name, true);
    std::vector<std::optional<int>> near;
    for (size_t gpu = 0; gpu < gpus.size(); ++gpu) {
      if (link(device, gpus[gpu].second) != "SYS") {
        near.push_back(machine.gpus[gpu].numa_node);
      }
    }
    if (std::count(near.begin(), near.end(), near.empty() ? std::nullopt : near[0]) == static_cast<long>(near.size())) {
      nic.numa_node = near.empty() ? std::nullopt : near[0];
    }
    if (nic.name.empty()) {
      machine.note("the matrix has no legend of its NICs: their names are unknown");
    }
  }
  std::vector<std::pair<int, std::string>> order = gpus;
  order.insert(order.end(), nics.begin(), nics.end());
  for (const auto& row : order) {
    for (const auto& column : order) {
      machine.links.push_back({link(row.second, column.second), std::nullopt});
    }
  }
  machine.note("a matrix has no PCIe tree, no speeds and no models: they are unknown");
  if (numa_nodes.empty()) {
    machine.note("the matrix names no NUMA nodes: they and sockets are unknown");
  } else if (numa_nodes.size() > 1) {
    machine.note("a matrix names NUMA nodes, not sockets: each NUMA node is taken for a socket");
  }
  return machine;
}

}  // namespace

Machine parse_smi(const std::string& contents) {
  std::vector<std::string> lines;
  std::istringstream text(contents);
  for (std::string line; std::getline(text, line);) {
    lines.push_back(clean(line));
  }
  // The line right above a row of a GPU that is no such row itself names the columns, of the first matrix that is
  // whole.
  size_t above = lines.size(), num_tried = 0;
  bool above_is_row = false;
  std::optional<TopologyError> first_error;
  for (size_t place = 0, at = 0; place < lines.size() && num_tried < 16; ++place) {
    if (lines[place].empty()) {
      continue;
    }
    const bool is_row = is_gpu_name(label(lines[place], at));
    if (is_row && !above_is_row) {
      ++num_tried;
      require(above != lines.size(), static_cast<int>(place) + 1, "the matrix has no line that names its columns");
      try {
        return Matrix(lines, above).machine();
      } catch (const TopologyError& error) {
        first_error = first_error ? first_error : std::optional(error);
      }
    }
    above = place;
    above_is_row = is_row;
  }
  throw first_error ? *first_error : TopologyError(std::string("is no description of a machine: ") + kExpected);
}

}  // namespace isthmus::topology
