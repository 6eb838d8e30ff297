#include "cli/usage.h"

#include <fmt/format.h>
#include <sluice/limits.h>

#include <algorithm>
#include <charconv>
#include <regex>
#include <sstream>

namespace sluice::cli {
namespace {

// Of two neighbours that changed places too.
int edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int changed = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + changed});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// The program, and the command and its command that were chosen.
std::vector<const CLI::App*> chosen_commands(const CLI::App& program) {
  std::vector<const CLI::App*> chosen{&program};
  while (!chosen.back()->get_subcommands().empty()) chosen.push_back(chosen.back()->get_subcommands().front());
  return chosen;
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) flags.push_back("--" + name);
    for (const auto& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

std::string stem_of(const std::string& flag) { return flag.substr(0, flag.find('=')); }

std::string with_suggestion(std::string sentence, const std::string& suggestion) {
  return suggestion.empty() ? sentence : sentence + "; did you mean " + suggestion + "?";
}

std::string first_line(std::string text) {
  text = text.substr(0, text.find('\n'));
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  return text;
}

// "a whole number from 1 to 128", "one of packed, grouped, padded", or "a value".
std::string wanted_by(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  std::smatch part;
  if (std::regex_search(type, part, std::regex(R"(in \[(\S+) - (\S+)\])")))
    return fmt::format("a whole number from {} to {}", part.str(1), part.str(2));
  if (type.starts_with("UINT")) return "a whole number from 0 to 2^64 - 1";
  const auto bar = type.find('|');
  return bar == std::string::npos ? "a value" : "one of " + std::regex_replace(type, std::regex("\\|"), ", ");
}

// What the parser says of an option, in our words; its own where they are not known. They all begin with the option's
// name, but for the conversion's.
std::string sentence_about_option(const CLI::App& app, const std::string& message) {
  std::smatch part;
  std::string flag, text;
  if (std::regex_match(message, part, std::regex(R"((-\S+): At Most \d+ required but received (\d+))")))
    return fmt::format("{} is given {}", part.str(1), part.str(2) == "2" ? "twice" : part.str(2) + " times");
  if (std::regex_match(message, part, std::regex(R"(Could not convert: (-\S+) = (.*))")) ||
      std::regex_match(message, part, std::regex(R"((-\S+): Value (.*) not in range .*)")) ||
      std::regex_match(message, part, std::regex(R"((-\S+): (.*) not in \{.*)"))) {
    flag = part.str(1);
    text = part.str(2);
  } else if (std::regex_match(message, part, std::regex(R"((-\S+): \d+ required .* missing)"))) {
    flag = part.str(1);
  }
  const CLI::Option* const option = flag.empty() ? nullptr : app.get_option_no_throw(flag);
  if (option == nullptr) return message;
  const std::string wanted = wanted_by(*option);
  if (text.empty()) return fmt::format("{} needs {}", flag, wanted);
  return fmt::format("{} {} is not {}", flag, text, wanted);
}

// "--layout: pakced not in {packed,grouped,padded}" -> packed
std::string nearest_choice(const std::string& message) {
  std::smatch part;
  if (!std::regex_match(message, part, std::regex(R"(\S+: (.*) not in \{(.*)\})"))) return "";
  std::vector<std::string> choices;
  std::istringstream list(part.str(2));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return nearest(part.str(1), choices);
}

}  // namespace

void add_common_flags(CLI::App& app, CommonFlags& flags) {
  app.add_option(
         "--ranks", flags.ranks,
         fmt::format("Number of ranks [{}; with --launch env the environment's]", flags.default_ranks))
      ->check(CLI::Range(1, limits::ranks_per_node));
  add_choice<Launch>(
      app, "--launch", flags.launch,
      {{"threads", Launch::threads}, {"processes", Launch::processes}, {"env", Launch::env}},
      fmt::format(
          "How ranks are started; env: rank and size come from sluice run, torchrun, mpirun or srun [{}]",
          name_of(flags.launch)));
  app.add_option("--engine", flags.engine, fmt::format("Engine [{}]", flags.engine))
      ->check(CLI::IsMember({"cpu", "cuda"}).description(""))
      ->type_name("cpu|cuda");
  add_seed(app, flags.seed, "Seed of everything that is random");
  app.add_flag("--json", flags.json, "One JSON object per line on standard output, nothing else");
  app.add_option("--deadline-ms", flags.deadline_ms, "How long to wait for a peer, with --launch env also for all to meet; 0 = without end")
      ->check(CLI::Range(0, limits::deadline_ms))
      ->each([&flags](const std::string&) { flags.deadline_given = true; })
      ->capture_default_str();
}

void add_seed(CLI::App& app, std::uint64_t& seed, const std::string& help) {
  // The conversion would make -5 a large number, and what is too large the largest. Worded as a range, whose sentence
  // is found in sentence_about_option.
  const auto whole = [](const std::string& text) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool good = error == std::errc() && end == text.data() + text.size();
    return good ? std::string() : fmt::format("Value {} not in range 0 to 2^64 - 1", text);
  };
  app.add_option("--seed", seed, help)->check(whole)->capture_default_str();
}

std::string empty_value(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string& word = arguments[i];
    if (!word.starts_with("--")) continue;
    const auto equals = word.find('=');
    const bool apart = equals == std::string::npos;
    if (apart && i + 1 == arguments.size()) continue;
    const std::string flag = stem_of(word), value = apart ? arguments[i + 1] : word.substr(equals + 1);
    if (value.empty()) return fmt::format("{} is given an empty value", flag);
    const bool list = flag == "--tokens" || flag == "--op" || flag == "--only";
    if (list && (value.starts_with(',') || value.ends_with(',') || value.find(",,") != std::string::npos))
      return fmt::format("{} {} has an empty item", flag, value);
  }
  return "";
}

std::string nearest(const std::string& text, const std::vector<std::string>& names) {
  std::string best;
  int best_distance = std::max(1, static_cast<int>(text.size()) / 2);
  for (const auto& name : names) {
    int distance = edit_distance(text, name);
    if (text.size() > 3 && name.size() > 3 && (name.starts_with(text) || text.starts_with(name))) distance = 0;
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string usage_sentence(const CLI::App& program, const CLI::ParseError& error,
                           const std::vector<std::string>& arguments) {
  const auto chosen = chosen_commands(program);
  const CLI::App* const app = chosen.back();
  if (const auto names = commands_of(*app); !names.empty()) {
    const std::string word = arguments.size() < chosen.size() ? "" : arguments[chosen.size() - 1];
    if (word.empty()) return fmt::format("a command is missing: {}", fmt::join(names, ", "));
    if (word.starts_with('-')) return with_suggestion(fmt::format("unknown flag {}", word), nearest(word, flags_of(*app)));
    return with_suggestion(fmt::format("unknown command {}; the commands are {}", word, fmt::join(names, ", ")),
                           nearest(word, names));
  }
  const auto flags = flags_of(*app);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    for (std::size_t i = 1; i < arguments.size(); ++i) {
      const std::string flag = stem_of(arguments[i]);
      if (!flag.starts_with('-') || std::find(flags.begin(), flags.end(), flag) != flags.end()) continue;
      return with_suggestion(fmt::format("unknown flag {}", flag), nearest(flag, flags));
    }
    const std::string message = first_line(error.what());
    const auto colon = message.find(": ");
    return "an argument is too many: " + (colon == std::string::npos ? message : message.substr(colon + 2));
  }
  const std::string message = first_line(error.what());
  return with_suggestion(sentence_about_option(*app, message), nearest_choice(message));
}

}  // namespace sluice::cli
