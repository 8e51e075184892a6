#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/agreement.hpp>
#include <zero/distributed/launch.hpp>

/// What the check.cpp of an exercise uses: it looks at one answer and throws a Mistake if it is not
/// right.
namespace zero::exercise {

/// The first thing that is wrong with an answer, and the mistake that it looks like: one sentence
/// that begins with a small letter and has no full stop.
class Mistake : public std::runtime_error {
 public:
  explicit Mistake(const std::string& sentence, int ranks = 0)
      : std::runtime_error(sentence), ranks_(ranks) {}
  int ranks() const { return ranks_; }  ///< how many ranks there were; 0 where there were none

 private:
  int ranks_;
};

/// Throws a Mistake with this sentence.
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw Mistake(fmt::format(text, std::forward<Args>(args)...));
}

/// Runs `check`. A Mistake that it throws then begins with `which`: "with 3 layers: ".
void in_case(const std::string& which, const std::function<void()>& check);

/// Runs `check` and prints one line: "<id> is right: <what>." or what is wrong. Returns the exit
/// code.
int grade(const std::string& id, const std::function<void()>& check, const std::string& what = "");

/// Runs `function` on `ranks` ranks, each a process with one thread. A collective that ranks
/// disagree about is an error that names both sides, and none waits longer than 5 s. Throws the
/// Mistake of the lowest rank that throws one, else one for a rank that crashed or threw anything
/// else. `backend`: see ConnectOptions.
void on_ranks(int ranks, const std::function<void(dist::Communicator&)>& function,
              const std::string& backend = "gloo");

/// The same on 2, 3, 5 and 1 ranks, one after the other: most mistakes need two.
void on_all_ranks(const std::function<void(dist::Communicator&)>& function);

/// `options` as an answer is run with: see on_ranks().
dist::LaunchOptions checked(dist::LaunchOptions options, int ranks);

/// A learner's numbers: a file with lines "key = number". "#" begins a comment. Numbers may have a
/// decimal point, an exponent, and commas between thousands: 3776, 3,776, 48.75, 7e9.
class Numbers {
 public:
  explicit Numbers(const std::filesystem::path& file);

  /// Throws a Mistake if there is no number for `key`, or a text that is none.
  double at(const std::string& key) const;

  /// A wrong number that people give, and the rest of a sentence that begins "ddp_2 = 8".
  using Known = std::pair<double, std::string>;

  /// Throws a Mistake unless the number of `key` is `right`, or differs from it by at most
  /// `tolerance` of it. The sentence does not tell the right number.
  void expect(const std::string& key, double right, const std::vector<Known>& known = {},
              double tolerance = 0) const;

 private:
  std::map<std::string, std::string> texts_;
};

}  // namespace zero::exercise
