// F6: the memory of a rank and the processes of another user of the machine, and memory that a peer could
// take away.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "boot/group_state.h"
#include "drive.h"
#include "engine/window.h"
#include "registry.h"

namespace conformance {
namespace {

constexpr uid_t owner = 54321, stranger = 54322;

// As an ordinary process of that user, which others of the same user may look into.
void become(uid_t user) {
  if (setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0)
    throw std::runtime_error("setresuid");
  prctl(PR_SET_DUMPABLE, 1);
}

bool can_open(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

// Every way from one process into the memory or the descriptors of another that has told where its window
// lies.
std::vector<std::string> ways_into(pid_t process, const void* window) {
  std::vector<std::string> found;
  const std::string proc = "/proc/" + std::to_string(process);
  if (can_open(proc + "/maps", O_RDONLY)) found.push_back("maps");
  if (can_open(proc + "/mem", O_RDWR)) found.push_back("mem");
  if (can_open(proc + "/fd", O_RDONLY | O_DIRECTORY)) found.push_back("fd");
  for (int fd = 0; fd < 64; ++fd)
    if (can_open(proc + "/fd/" + std::to_string(fd), O_RDWR)) found.push_back("fd/" + std::to_string(fd));
  char byte = 0;
  const iovec here{&byte, 1}, there{const_cast<void*>(window), 1};
  if (process_vm_readv(process, &here, 1, &there, 1, 0) == 1) found.push_back("process_vm_readv");
  return found;
}

// Forks a process of `user` that waits for an address, tries every way into its parent there and exits with
// the number of ways that it found.
class Intruder {
 public:
  explicit Intruder(uid_t user) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[1]);
      const void* window = nullptr;
      become(user);
      if (read(ends[0], &window, sizeof window) != sizeof window) _exit(99);
      _exit(static_cast<int>(ways_into(parent, window).size()));
    }
    close(ends[0]);
    go_ = ends[1];
  }
  int ways(const void* window) {
    if (write(go_, &window, sizeof window) != sizeof window) return -1;
    close(go_);
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int go_ = -1;
};

PROMISE(F6, a_process_of_another_user_finds_no_way_to_a_window, {{2}, Where::processes}) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  if (on_cuda()) GTEST_SKIP() << "the driver guards the windows of GPUs";
  const Job job([&] {
    Recipe recipe;
    recipe.ranks = at.ranks;
    recipe.tokens = {12, 5};
    return recipe;
  }());
  RunOptions options;
  options.no_group = true;
  run_ranks(
      at.place, at.ranks,
      [&](Rank& self) {
        Intruder other(stranger), same(owner);
        become(owner);
        self.group = sluice::Group::from_environment();
        sluice::Communicator comm(self.group, options_for(job.problem, self.engine));
        const auto brought = bring(job.problem, self.rank);
        const sluice::DispatchResult sent = comm.dispatch(brought->args);
        check_dispatch(job, self.rank, sent, *brought);
        EXPECT_EQ(other.ways(sent.rows.data), 0) << "ways of another user";
        EXPECT_GT(same.ways(sent.rows.data), 0) << "the same user should find some: else nothing was tried";
        self.group.barrier();
      },
      options);
}

// A file could be cut under the feet of whoever maps it.
PROMISE(F6, a_window_whose_size_can_change_is_refused, {{2}, Where::processes}) {
  run_ranks(at.place, at.ranks, [&](Rank& self) {
    constexpr std::int64_t bytes = 8192;
    sluice::boot::GroupState& group = *self.group.state();
    sluice::engine::Windows windows(group, bytes);
    if (self.rank == 1) {
      std::FILE* const file = std::tmpfile();
      ASSERT_NE(file, nullptr);
      ASSERT_EQ(ftruncate(fileno(file), bytes), 0);
      group.exchange_descriptors(fileno(file));
      std::fclose(file);
      return;
    }
    expect_error<sluice::PeerError>([&] { windows.connect(group); }, {"rank 1", "size can change"});
  });
}

}  // namespace
}  // namespace conformance
