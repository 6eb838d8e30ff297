// Files of router decisions: CSV, or the same compressed with gzip.
//
//     token,expert0,...,expert{K-1},weight0,...,weight{K-1}
//
// One line per token. The header line may be missing. `token` counts 0, 1, 2, ...; expert ids are
// distinct within a line, -1 where a token has none; weights are finite. Lines end with LF or CR LF.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cli/decisions.h"

namespace sluice::cli {

// A sentence that names the file and, where there is one, the line.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a file may hold at most: it comes from outside, and a small compressed file can unpack to a huge one.
inline constexpr std::size_t most_file_bytes = std::size_t{1} << 30;
inline constexpr std::size_t most_line_bytes = std::size_t{1} << 14;

// Throws FileError.
Decisions read_routing_file(const std::string& path);

// Parses the uncompressed text; `name` is for messages. Throws FileError.
Decisions parse_routing(std::string_view text, const std::string& name);

// Writes `decisions`, compressed when `path` ends in ".gz", to standard output when it is "-". Throws
// FileError.
void write_routing_file(const std::string& path, const Decisions& decisions);

}  // namespace sluice::cli
