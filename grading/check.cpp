#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <regex>

#include <zero/base/error.hpp>
#include <zero/memory/accounting.hpp>

#include "judge.hpp"

namespace zero::exercise {
namespace {

// Begins the error of a rank that found a mistake. An error, so that no rank waits for this one.
constexpr std::string_view kMistake = "mistake: ";

// The mistake that the rank found, or nothing.
std::string mistake_of(const dist::RankExit& exit) {
  const auto begin = exit.output.rfind(kMistake);
  if (begin == std::string::npos) return "";
  const auto text = exit.output.substr(begin + kMistake.size());
  return text.substr(0, text.find('\n'));
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

// `text` is none of the numbers that Numbers takes.
std::string why_no_number(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  for (const char* word : {"yes", "no", "true", "false"}) {
    if (text == word) return "is no number: write 1 or 0";
  }
  if (text.find_first_not_of("+-.,0123456789") == std::string::npos &&
      text.find(',') != std::string::npos) {
    return "has a comma that separates no thousands: decimals begin with a point";
  }
  return "is no number: write digits alone, such as 3776, 3,776 or 48.75";
}

}  // namespace

void in_case(const std::string& which, const std::function<void()>& check) {
  try {
    check();
  } catch (const Mistake& mistake) {
    refuse("{}: {}", which, mistake.what());
  }
}

int grade(const std::string& id, const std::function<void()>& check, const std::string& what) {
  memory::install();
  try {
    check();
  } catch (const Mistake& mistake) {
    const std::string sentence = mistake.what();
    const int ranks = mistake.ranks();
    const std::string where =
        ranks == 0 ? "" : fmt::format(", {} rank{}", ranks, ranks == 1 ? "" : "s");
    fmt::print("{}{}: {}{}\n", id, where, sentence, sentence.back() == '?' ? "" : ".");
    return 1;
  } catch (const std::exception& error) {
    fmt::print("{}: {}\n", id, message_of(error));
    return 1;
  }
  fmt::print("{} is right{}{}.\n", id, what.empty() ? "" : ": ", what);
  return 0;
}

dist::LaunchOptions checked(dist::LaunchOptions options, int ranks) {
  options.world_size = ranks;
  options.capture_output = true;
  options.threads = 1;
  options.connect.timeout = std::chrono::seconds(5);
  options.total_timeout = std::chrono::seconds(20);
  return options;
}

void on_ranks(int ranks, const std::function<void(dist::Communicator&)>& function,
              const std::string& backend) {
  dist::LaunchOptions options = checked({}, ranks);
  options.connect.backend = backend;
  const auto exits = dist::launch_ranks(options, [&](dist::Communicator& communicator) {
    try {
      function(communicator);
    } catch (const Mistake& mistake) {
      throw Error(std::string(kMistake) + mistake.what());
    }
    return std::string();
  });
  std::string wrong;
  for (const dist::RankExit& exit : exits) {
    if (wrong.empty()) wrong = mistake_of(exit);
  }
  if (wrong.empty()) wrong = judge_exits(exits).value_or("");
  if (wrong.empty()) return;
  if (const std::string text = printed_by(exits); !text.empty()) {
    fmt::print("What the ranks printed:\n{}\n", text);
  }
  throw Mistake(wrong, ranks);
}

void on_all_ranks(const std::function<void(dist::Communicator&)>& function) {
  for (const int ranks : {2, 3, 5, 1}) on_ranks(ranks, function);
}

Numbers::Numbers(const std::filesystem::path& file) {
  std::ifstream lines(file);
  if (!lines) throw Error(fmt::format("cannot read {}", file.string()));
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find('#'));
    if (trimmed(line).empty()) continue;
    const auto equals = line.find('=');
    if (equals == std::string::npos) {
      throw Mistake(fmt::format("the line '{}' is not of the form key = number", trimmed(line)));
    }
    texts_[trimmed(line.substr(0, equals))] = trimmed(line.substr(equals + 1));
  }
}

double Numbers::at(const std::string& key) const {
  const auto found = texts_.find(key);
  std::string text = found == texts_.end() ? "" : found->second;
  if (text.empty() || text == "?") throw Mistake(fmt::format("there is no number for {}", key));
  static const std::regex plain(R"([-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)", std::regex::icase);
  static const std::regex thousands(R"([-+]?\d{1,3}(,\d{3})+(\.\d*)?)");
  if (!std::regex_match(text, plain) && !std::regex_match(text, thousands)) {
    throw Mistake(fmt::format("{} = '{}' {}", key, text, why_no_number(text)));
  }
  std::erase(text, ',');
  return std::strtod(text.c_str(), nullptr);
}

void Numbers::expect(const std::string& key, double right, const std::vector<Known>& known,
                     double tolerance) const {
  const double number = at(key);
  const auto differs_at_most = [number](double value, double part) {
    return std::abs(number - value) <= part * std::abs(value);
  };
  if (differs_at_most(right, tolerance)) return;
  const std::string begin = fmt::format("{} = {}", key, texts_.at(key));
  for (const auto& [value, rest] : known) {
    if (differs_at_most(value, std::max(tolerance, 1e-3))) throw Mistake(begin + " " + rest);
  }
  throw Mistake(begin + (number < right ? " is too small" : " is too large"));
}

}  // namespace zero::exercise
