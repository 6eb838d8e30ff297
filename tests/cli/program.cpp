#include "cli/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace sluice::cli::testing {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void become(const std::vector<std::string>& words, const RunOptions& options, int out, int err) {
  setpgid(0, 0);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  for (const char* name : {"RANK", "WORLD_SIZE"}) unsetenv(name);
  for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

void collect(Ran& ran, int out, int err, pid_t pid, Clock::time_point give_up) {
  std::array<pollfd, 2> fds{{{out, POLLIN, 0}, {err, POLLIN, 0}}};
  std::array<std::string*, 2> texts{&ran.out, &ran.err};
  std::array<char, 1 << 14> part;
  while (fds[0].fd >= 0 || fds[1].fd >= 0) {
    if (Clock::now() > give_up) {
      ADD_FAILURE() << "the program ran too long";
      kill(-pid, SIGKILL);
      return;
    }
    poll(fds.data(), fds.size(), 100);
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      const ssize_t n = read(fds[i].fd, part.data(), part.size());
      if (n > 0) texts[i]->append(part.data(), static_cast<std::size_t>(n));
      if (n == 0) fds[i].fd = -1;
    }
  }
}

}  // namespace

std::vector<nlohmann::json> Ran::lines() const {
  std::vector<nlohmann::json> objects;
  std::istringstream text(out);
  for (std::string line; std::getline(text, line);) {
    objects.push_back(nlohmann::json::parse(line, nullptr, false));
    EXPECT_TRUE(objects.back().is_object()) << "not a JSON object: " << line;
    if (!objects.back().is_object()) return {};
    for (const char* name : {"record", "version", "command"})
      EXPECT_TRUE(objects.back().contains(name)) << name << " in " << line;
  }
  return objects;
}

std::string program_path() { return SLUICE_TEST_PROGRAM; }

Ran run_command(const std::vector<std::string>& words, const RunOptions& options) {
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  EXPECT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err.data(), O_CLOEXEC), 0);
  const auto begin = Clock::now();
  const pid_t pid = fork();
  if (pid == 0) become(words, options, out[1], err[1]);
  close(out[1]);
  close(err[1]);
  Ran ran;
  collect(ran, out[0], err[0], pid, begin + std::chrono::seconds(options.timeout_s));
  close(out[0]);
  close(err[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  ran.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  ran.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return ran;
}

Ran run_program(const std::vector<std::string>& arguments, const RunOptions& options) {
  std::vector<std::string> words{program_path()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_command(words, options);
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "sluice-cli-XXXXXX").string();
  path_ = mkdtemp(pattern.data());
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace sluice::cli::testing
