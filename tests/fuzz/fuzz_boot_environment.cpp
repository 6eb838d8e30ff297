// Environment variables with any values: a group that makes sense, or one sentence.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include <sluice/errors.h>
#include <sluice/limits.h>

#include "boot/environment.h"

namespace {

constexpr const char* names[] = {
    "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE",
    "PMI_RANK", "PMI_SIZE", "PMI_JOBID", "MPI_LOCALNRANKS",
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_NODES", "SLURM_NNODES"};

void check(bool good) {
  if (!good) std::abort();
}

}  // namespace

// One variable after another: the byte of its name, its value up to a zero byte.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::map<std::string, std::string> variables;
  for (std::size_t at = 0; at < size;) {
    const char* const name = names[data[at++] % std::size(names)];
    std::string value;
    while (at < size && data[at] != 0) value += static_cast<char>(data[at++]);
    ++at;
    variables[name] = value;
  }
  try {
    const auto found = sluice::boot::parse_environment([&](const char* name) -> std::optional<std::string> {
      const auto it = variables.find(name);
      return it == variables.end() ? std::nullopt : std::optional<std::string>(it->second);
    });
    check(found.size >= 1 && found.size <= sluice::limits::ranks_per_node && found.rank >= 0 && found.rank < found.size);
  } catch (const sluice::Error& error) {
    const std::string text = error.what();
    check(text.size() < 1000);
    for (const char c : text) check(static_cast<unsigned char>(c) >= 0x20);
  }
  return 0;
}
