#include "cli/machine.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sys/utsname.h>

#include <fstream>
#include <thread>

namespace sluice::cli {
namespace {

struct Topology {
  hwloc_topology_t handle = nullptr;
  Topology() {
    if (hwloc_topology_init(&handle) == 0) hwloc_topology_load(handle);
  }
  ~Topology() { hwloc_topology_destroy(handle); }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
};

std::string field_of(const char* path, const std::string& name, char separator) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const auto at = line.find(separator);
    if (at == std::string::npos || !line.starts_with(name)) continue;
    std::string value = line.substr(at + 1);
    const auto begin = value.find_first_not_of(" \"");
    const auto end = value.find_last_not_of(" \"");
    return begin == std::string::npos ? "" : value.substr(begin, end - begin + 1);
  }
  return "";
}

std::string cpu_model(hwloc_topology_t topology) {
  hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
  const char* model = package != nullptr ? hwloc_obj_get_info_by_name(package, "CPUModel") : nullptr;
  return model != nullptr ? model : field_of("/proc/cpuinfo", "model name", ':');
}

}  // namespace

Machine this_machine() {
  Machine machine;
  const Topology topology;
  machine.cpu = cpu_model(topology.handle);
  machine.cores = hwloc_get_nbobjs_by_type(topology.handle, HWLOC_OBJ_PU);
  if (machine.cores <= 0) machine.cores = static_cast<int>(std::thread::hardware_concurrency());
  machine.numa_nodes = hwloc_get_nbobjs_by_type(topology.handle, HWLOC_OBJ_NUMANODE);
  utsname system{};
  uname(&system);
  const std::string distribution = field_of("/etc/os-release", "PRETTY_NAME", '=');
  machine.os = fmt::format("{}{}{} {}", distribution, distribution.empty() ? "" : ", ", system.sysname,
                           system.release);
  return machine;
}

}  // namespace sluice::cli
