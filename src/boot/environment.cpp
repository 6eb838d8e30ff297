#include "boot/environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>

#include <fmt/core.h>
#include <sluice/errors.h>
#include <sluice/limits.h>

#include "boot/wire.h"

namespace sluice::boot {
namespace {

constexpr int max_names = 4;

// Zero-terminated lists of names. A key without any of its variables is left to the launcher's pid.
struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* key[max_names + 1];  // all that are set make up the job key
  const char* local_size;          // ranks on this node; fewer than `size` means several nodes
  const char* nodes[3];            // number of nodes; the first that is set counts
};

// In the order of include/sluice/group.h.
constexpr Launcher launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE",
     {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", nullptr},
     "LOCAL_WORLD_SIZE", {nullptr}},
    {"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", nullptr},
     "OMPI_COMM_WORLD_LOCAL_SIZE", {nullptr}},
    {"MPICH", "PMI_RANK", "PMI_SIZE", {"PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID", nullptr}, "MPI_LOCALNRANKS", {nullptr}},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", {"SLURM_JOB_ID", "SLURM_STEP_ID", nullptr}, nullptr,
     {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", nullptr}},
};

// Foreign text, cut to what fits into a sentence.
std::string quoted(const std::string& value) {
  return value.size() <= 64 ? fmt::format("\"{}\"", printable(value)) : fmt::format("\"{}...\"", printable(value.substr(0, 64)));
}

[[noreturn]] void malformed(const char* name, const std::string& value, const std::string& rule) {
  throw ArgumentError(fmt::format("from_environment: {} = {}, but {}", name, quoted(value), rule));
}

int integer(const char* name, const std::string& value, int low, int high) {
  int number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc{} || stop != end || value.empty()) malformed(name, value, "it must be a decimal integer");
  if (number < low || number > high) malformed(name, value, fmt::format("it must be between {} and {}", low, high));
  return number;
}

[[noreturn]] void several_nodes(const char* name, const std::string& value, const char* size_name, int size) {
  throw SystemError(fmt::format("from_environment: the job has more than one node ({} = {} with {} = {}), which is not supported "
                                "yet; start all ranks on one machine", name, quoted(value), size_name, size));
}

void require_one_node(const Launcher& launcher, int size, const Getter& get) {
  if (launcher.local_size != nullptr) {
    if (const auto value = get(launcher.local_size)) {
      const int local = integer(launcher.local_size, *value, 1, limits::ranks);
      if (local > size) malformed(launcher.local_size, *value, fmt::format("{} = {} is less", launcher.size, size));
      if (local < size) several_nodes(launcher.local_size, *value, launcher.size, size);
    }
  }
  for (const char* const* name = launcher.nodes; *name != nullptr; ++name) {
    const auto value = get(*name);
    if (!value) continue;
    if (integer(*name, *value, 1, limits::ranks) > 1) several_nodes(*name, *value, launcher.size, size);
    return;
  }
}

std::string job_key(const Launcher& launcher, const Getter& get) {
  std::string key;
  for (const char* const* name = launcher.key; *name != nullptr; ++name)
    if (const auto value = get(*name)) key += fmt::format("{}={}:{};", *name, value->size(), *value);
  return key.empty() ? key : fmt::format("{};{}", launcher.name, key);
}

Environment parse_launcher(const Launcher& launcher, const std::string& rank, const std::string& size, const Getter& get) {
  Environment found;
  found.launcher = launcher.name;
  found.size = integer(launcher.size, size, 1, limits::ranks);
  found.rank = integer(launcher.rank, rank, 0, limits::ranks - 1);
  if (found.rank >= found.size) malformed(launcher.rank, rank, fmt::format("{} = {}, so it must be less", launcher.size, found.size));
  require_one_node(launcher, found.size, get);
  if (found.size > limits::ranks_per_node)
    malformed(launcher.size, size, fmt::format("one node can have at most {} ranks", limits::ranks_per_node));
  if (const auto port = get("MASTER_PORT"); port && &launcher == &launchers[0]) integer("MASTER_PORT", *port, 0, 65535);
  found.job_key = job_key(launcher, get);
  return found;
}

// The process that all ranks descend from. mpiexec of MPICH names itself in no variable; its proxy is
// looked for by name, since a wrapper script may stand between it and the rank.
std::string launcher_process() {
  long pid = ::getppid();
  for (int up = 0; up < 16 && pid > 1; ++up) {
    std::ifstream comm(fmt::format("/proc/{}/comm", pid));
    std::string name;
    if (!std::getline(comm, name)) break;
    if (name.starts_with("hydra_pmi_prox") || name.starts_with("mpiexec")) return fmt::format("launcher={}", pid);
    std::ifstream stat(fmt::format("/proc/{}/stat", pid));
    std::string line;
    if (!std::getline(stat, line)) break;
    // "pid (name) state ppid ...": the name may contain anything, so count from its end.
    const std::size_t after = line.rfind(") ");
    if (after == std::string::npos || after + 4 >= line.size()) break;
    pid = std::strtol(line.c_str() + after + 4, nullptr, 10);
  }
  return fmt::format("parent={}", ::getppid());
}

// One meaning for a name, with all launchers that set it.
void add(std::vector<Variable>& all, const char* name, const char* meaning, const char* set_by) {
  if (name == nullptr) return;
  for (Variable& known : all) {
    if (known.name != name) continue;
    known.meaning.insert(known.meaning.size() - 1, fmt::format(", {}", set_by));
    return;
  }
  all.push_back({name, fmt::format("{} ({})", meaning, set_by)});
}

}  // namespace

std::vector<Variable> launcher_variables() {
  std::vector<Variable> all;
  for (const Launcher& launcher : launchers) {
    const char* const set_by = &launcher == &launchers[0] ? "sluice run, torchrun" : launcher.name;
    add(all, launcher.rank, "this process's rank", set_by);
    add(all, launcher.size, "number of processes", set_by);
    for (const char* const* name = launcher.key; *name != nullptr; ++name) add(all, *name, "names the job", set_by);
    add(all, launcher.local_size, "processes of this node: other than all is an error", set_by);
    for (const char* const* name = launcher.nodes; *name != nullptr; ++name)
      add(all, *name, "nodes: more than one is an error", set_by);
  }
  return all;
}

Environment parse_environment(const Getter& get) {
  const char* alone = nullptr;
  const char* partner = nullptr;
  std::string value;
  for (const Launcher& launcher : launchers) {
    const auto rank = get(launcher.rank);
    const auto size = get(launcher.size);
    if (rank && size) return parse_launcher(launcher, *rank, *size, get);
    // SLURM_NTASKS alone is what a batch script sees, which is no rank.
    if ((rank || size) && alone == nullptr && std::string_view(launcher.name) != "srun") {
      alone = rank ? launcher.rank : launcher.size;
      partner = rank ? launcher.size : launcher.rank;
      value = rank ? *rank : *size;
    }
  }
  if (alone != nullptr) malformed(alone, value, fmt::format("{} is not set; set both or none", partner));
  return {};
}

Environment read_environment() {
  Environment found = parse_environment([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  });
  if (found.job_key.empty()) found.job_key = fmt::format("{};{}", found.launcher, launcher_process());
  return found;
}

}  // namespace sluice::boot
