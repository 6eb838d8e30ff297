// Runs the built program and collects what it says.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sluice::cli::testing {

struct Ran {
  int code = -1;  // exit code; 128 + n for signal n
  std::string out;
  std::string err;
  double seconds = 0;

  // Every line of `out`, which must hold nothing but JSON objects; a test failure otherwise.
  std::vector<nlohmann::json> lines() const;
};

struct RunOptions {
  std::map<std::string, std::string> environment;  // added to this process's
  int timeout_s = 120;
};

// Runs the program with these arguments, standard input empty.
Ran run_program(const std::vector<std::string>& arguments, const RunOptions& options = {});
// Any program.
Ran run_command(const std::vector<std::string>& words, const RunOptions& options = {});

std::string program_path();

// A folder that goes when it goes out of scope.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);

}  // namespace sluice::cli::testing
