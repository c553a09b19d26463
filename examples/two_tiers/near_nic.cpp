#include "near_nic.h"

#include <isthmus/error.h>
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "topology/read.h"

namespace {

// The cores of "0-3,8".
cpu_set_t cores_of(const std::string& list) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::istringstream text(list);
  for (int first = 0, last = 0; text >> first; text.ignore()) {
    last = first;
    if (text.peek() == '-') {
      text.ignore();
      text >> last;
    }
    for (; first <= last && first < CPU_SETSIZE; ++first) {
      CPU_SET(first, &cores);
    }
  }
  return cores;
}

std::string bind_to_cores(const isthmus::topology::Machine& machine, size_t local_index) {
  const std::vector<int> nics = isthmus::topology::rail_nics(machine);
  const auto* nic = nics.empty() ? nullptr : &machine.nics[nics[local_index % nics.size()]];
  const auto* node = &machine.numa_nodes.at(local_index % machine.numa_nodes.size());
  for (const auto& each : machine.numa_nodes) {
    node = nic != nullptr && nic->numa_node == each.index ? &each : node;
  }
  const std::string place =
      nic != nullptr && nic->numa_node ? "near " + nic->name : "on NUMA node " + std::to_string(node->index);
  const cpu_set_t cores = cores_of(node->cpus);
  if (sched_setaffinity(0, sizeof cores, &cores) != 0) {
    return "not bound " + place + ": " + std::strerror(errno);
  }
  return place + ", cores " + node->cpus;
}

}  // namespace

std::string bind_near_nic(int local_index) {
  try {
    const auto machine = isthmus::topology::discover(isthmus::topology::read_nvml());
    return bind_to_cores(machine, static_cast<size_t>(local_index));
  } catch (const isthmus::Error& error) {
    return std::string("not bound: ") + error.what();
  }
}
