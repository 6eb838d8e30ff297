// Rank and size from what a launcher leaves in the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace sluice::boot {

struct Environment {
  std::string launcher;  // "torchrun", "OpenMPI", "MPICH", "srun"; empty: none, a group of one
  int rank = 0;
  int size = 1;
  // The same for all ranks of the job and for no other job of the machine. Empty: the launcher gives
  // none, and its process id has to stand for the job.
  std::string job_key;
};

using Getter = std::function<std::optional<std::string>(const char* name)>;

// A variable that tells about ranks, nodes or the job.
struct Variable {
  std::string name;
  std::string meaning;
};

// Every variable that parse_environment may ask for, each once.
std::vector<Variable> launcher_variables();

// Pure: looks at nothing but what `get` returns. Throws ArgumentError for a malformed variable,
// SystemError for a job on several nodes, each with one sentence that names variable and value.
Environment parse_environment(const Getter& get);

// With the variables of this process, and a job key in any case.
Environment read_environment();

}  // namespace sluice::boot
