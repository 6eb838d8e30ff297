#include "api/environment.h"

#include <cstdlib>

#include <fmt/format.h>

#include <sluice/errors.h>
#include <sluice/info.h>

namespace sluice {

std::vector<EnvironmentVariable> environment() {
  std::vector<EnvironmentVariable> all = {
      {"SLUICE_CHECK", {}, "1 on the CPU engine", "expert ids are checked (1) or not (0) in calls that do not say"},
      {"SLUICE_CPU_TARGET", {}, "the best of this machine", "SIMD target of the CPU engine, for example AVX2 or scalar"},
      {"RANK", {}, "", "this process's rank (sluice run, torchrun)"},
      {"WORLD_SIZE", {}, "", "number of processes (sluice run, torchrun)"},
      {"MASTER_ADDR", {}, "", "with MASTER_PORT, names the job (sluice run, torchrun)"},
      {"MASTER_PORT", {}, "", "with MASTER_ADDR, names the job (sluice run, torchrun)"},
      {"TORCHELASTIC_RUN_ID", {}, "", "names the job (torchrun)"},
      {"OMPI_COMM_WORLD_RANK", {}, "", "this process's rank (OpenMPI)"},
      {"OMPI_COMM_WORLD_SIZE", {}, "", "number of processes (OpenMPI)"},
      {"PMIX_NAMESPACE", {}, "", "names the job (OpenMPI)"},
      {"OMPI_MCA_ess_base_jobid", {}, "", "names the job (OpenMPI)"},
      {"PMI_RANK", {}, "", "this process's rank (MPICH)"},
      {"PMI_SIZE", {}, "", "number of processes (MPICH)"},
      {"SLURM_PROCID", {}, "", "this process's rank (srun)"},
      {"SLURM_NTASKS", {}, "", "number of processes (srun)"},
      {"SLURM_JOB_ID", {}, "", "names the job (srun)"},
      {"SLURM_STEP_ID", {}, "", "names the job (srun)"},
      {"TORCHELASTIC_RESTART_COUNT", {}, "", "names the attempt (torchrun)"},
      {"PMI_JOBID", {}, "", "names the job (MPICH)"},
      {"LOCAL_WORLD_SIZE", {}, "", "processes of this node: other than all is an error (sluice run, torchrun)"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", {}, "", "the same (OpenMPI)"},
      {"MPI_LOCALNRANKS", {}, "", "the same (MPICH)"},
      {"SLURM_STEP_NUM_NODES", {}, "", "nodes: more than one is an error (srun)"},
      {"SLURM_NNODES", {}, "", "nodes: more than one is an error (srun)"},
  };
  for (EnvironmentVariable& variable : all) {
    if (const char* const value = std::getenv(variable.name.c_str())) variable.value = value;
  }
  return all;
}

namespace api {

std::optional<bool> check_from_environment() {
  const char* const value = std::getenv("SLUICE_CHECK");
  if (!value) return {};
  const std::string text = value;
  if (text == "0") return false;
  if (text == "1") return true;
  throw ArgumentError(fmt::format("SLUICE_CHECK = \"{}\" is neither 0 nor 1", text));
}

std::string cpu_target_from_environment() {
  const char* const value = std::getenv("SLUICE_CPU_TARGET");
  return value ? value : "";
}

}  // namespace api
}  // namespace sluice
