// What launchers leave in the environment.
#include <map>

#include "boot/environment.h"
#include "boot/processes.h"

namespace sluice::boot::testing {
namespace {

using Variables = std::map<std::string, std::string>;

Environment parse(const Variables& variables) {
  return parse_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

template <class Error>
std::string error_of(const Variables& variables) {
  try {
    parse(variables);
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Environment, nothing_is_a_group_of_one) {
  const Environment found = parse({});
  EXPECT_EQ(found.rank, 0);
  EXPECT_EQ(found.size, 1);
  EXPECT_EQ(found.launcher, "");
  EXPECT_EQ(parse({{"SLURM_NTASKS", "8"}}).size, 1);  // a batch script
}

TEST(Environment, every_launcher_is_understood_in_the_documented_order) {
  Variables all{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}};
  EXPECT_EQ(parse(all).launcher, "srun");
  EXPECT_EQ(parse(all).rank, 1);
  EXPECT_EQ(parse(all).size, 2);
  EXPECT_NE(parse(all).job_key, "");
  all.insert({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"}});
  EXPECT_EQ(parse(all).launcher, "MPICH");
  EXPECT_EQ(parse(all).size, 3);
  all.insert({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_NAMESPACE", "prterun-1@1"}});
  EXPECT_EQ(parse(all).launcher, "OpenMPI");
  EXPECT_EQ(parse(all).size, 4);
  all.insert({{"RANK", "4"}, {"WORLD_SIZE", "5"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(parse(all).launcher, "torchrun");
  EXPECT_EQ(parse(all).rank, 4);
  EXPECT_EQ(parse(all).size, 5);
}

TEST(Environment, the_key_is_the_same_for_all_ranks_and_differs_between_jobs) {
  const auto key = [](const char* rank, const char* port) {
    return parse({{"RANK", rank}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", port}, {"LOCAL_RANK", rank}}).job_key;
  };
  EXPECT_EQ(key("0", "29500"), key("3", "29500"));
  EXPECT_NE(key("0", "29500"), key("0", "29501"));
  EXPECT_EQ(parse({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).job_key, "");  // left to the launcher's pid
}

TEST(F6, a_malformed_variable_is_named_with_its_value) {
  for (const char* bad : {"", "x", "1x", " 1", "1 ", "+1", "-1", "0x1", "1.0", "99999999999999999999", "4"}) {
    const std::string error = error_of<ArgumentError>({{"RANK", bad}, {"WORLD_SIZE", "4"}});
    EXPECT_TRUE(contains(error, "RANK = \"" + std::string(bad) + "\"")) << error;
  }
  for (const char* bad : {"", "0", "-3", "129", "four"}) {
    const std::string error = error_of<ArgumentError>({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", bad}});
    EXPECT_TRUE(contains(error, "OMPI_COMM_WORLD_SIZE = \"" + std::string(bad) + "\"")) << error;
  }
  EXPECT_TRUE(contains(error_of<ArgumentError>({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "80000"}}), "MASTER_PORT = \"80000\""));
  EXPECT_TRUE(contains(error_of<ArgumentError>({{"RANK", "0"}}), "WORLD_SIZE is not set"));
  const std::string evil = error_of<ArgumentError>({{"PMI_RANK", std::string(5000, 'y') + "\n\x1b[31m"}, {"PMI_SIZE", "2"}});
  EXPECT_LT(evil.size(), 300u);
}

TEST(Environment, several_nodes_are_one_sentence) {
  const auto check = [](const Variables& variables, const char* part) {
    const std::string error = error_of<SystemError>(variables);
    EXPECT_TRUE(contains(error, part) && contains(error, "more than one node")) << error;
  };
  check({{"RANK", "0"}, {"WORLD_SIZE", "16"}, {"LOCAL_WORLD_SIZE", "8"}}, "LOCAL_WORLD_SIZE = \"8\" with WORLD_SIZE = 16");
  check({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}, "LOCAL_SIZE");
  check({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}}, "MPI_LOCALNRANKS");
  check({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_NODES", "2"}}, "SLURM_STEP_NUM_NODES");
  EXPECT_EQ(parse({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_NNODES", "2"}}).size, 4);
}

void clear_environment() {
  for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
                           "SLURM_NTASKS", "LOCAL_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID"})
    ::unsetenv(name);
}

TEST(Environment, the_nth_call_of_every_rank_meets_the_nth_of_the_others) {
  const std::string run = fresh_key("nth");
  run_ranks(3, [&](int rank) {
    clear_environment();
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", "3", 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", "29500", 1);
    ::setenv("TORCHELASTIC_RUN_ID", run.c_str(), 1);
    std::vector<Group> groups;
    for (int n = 0; n < 4; ++n) groups.push_back(Group::from_environment({.timeout_ms = 10'000}));
    for (int n = 3; n >= 0; --n) {
      const auto all = groups[static_cast<std::size_t>(n)].all_gather(std::vector<std::byte>(1, static_cast<std::byte>(n)));
      for (const auto& message : all) require(message[0] == static_cast<std::byte>(n), "of the same call");
    }
  });
}

TEST(Environment, a_group_of_one_needs_nobody) {
  run_ranks(1, [&](int) {
    clear_environment();
    const int before = open_files();
    const Group group = Group::from_environment();
    require(group.rank() == 0 && group.size() == 1, "alone");
    group.barrier();
    require(group.all_gather(message_of(0, 5)).at(0) == message_of(0, 5), "own message");
    require(open_files() == before, "no socket");
    require(group.state()->exchange_descriptors(0).size() == 1, "own descriptor");
  });
}

}  // namespace
}  // namespace sluice::boot::testing
