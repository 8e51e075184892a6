#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

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

}  // namespace

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
  options.connect.check_collectives = true;
  options.connect.timeout = std::chrono::seconds(5);
  options.total_timeout = std::chrono::seconds(20);
  return options;
}

void on_ranks(int ranks, const std::function<void(dist::Communicator&)>& function) {
  const auto exits = dist::launch_ranks(checked({}, ranks), [&](dist::Communicator& communicator) {
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
  std::erase(text, ',');
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') throw Mistake(fmt::format("there is no number for {}", key));
  return number;
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
