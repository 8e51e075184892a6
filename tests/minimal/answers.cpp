// Grades the answers of a chapter that CI knows: 01_zero1_answers "01b starter" grades one, as the
// learner sees it; 01_zero1_answers 01b grades all of an exercise, each in a process of its own,
// and says which are not graded by the sentence that they expect.

#include "answers.hpp"

#include <fmt/format.h>

#include <regex>

#include <zero/distributed/launch.hpp>

namespace zero::testing {
namespace {

std::vector<Answer>& all_answers() {
  static std::vector<Answer> answers;
  return answers;
}

// Whether the grader says of the answer what it expects.
bool is_graded_as_expected(const Answer& answer, char** argv) {
  const dist::LaunchOptions one{.world_size = 1, .capture_output = true};
  const auto exits = dist::fork_processes(one, [&](int) {
    answer.run(1, argv);
    return std::string();
  });
  const std::string& said = exits[0].output;
  if (std::regex_search(said, std::regex(answer.expects))) return true;
  fmt::print("{} expects '{}', and the grader says:\n{}\n", answer.name, answer.expects, said);
  return false;
}

}  // namespace

Answers::Answers(const std::vector<Answer>& answers) {
  all_answers().insert(all_answers().end(), answers.begin(), answers.end());
}

}  // namespace zero::testing

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  int graded = 0;
  int as_expected = 0;
  for (const auto& answer : zero::testing::all_answers()) {
    if (answer.name == wanted) return answer.run(1, argv);
    if (answer.name.substr(0, answer.name.find(' ')) != wanted) continue;
    ++graded;
    as_expected += zero::testing::is_graded_as_expected(answer, argv) ? 1 : 0;
  }
  if (graded > 0) {
    fmt::print("{} of {} answers are graded as expected\n", as_expected, graded);
    return as_expected == graded ? 0 : 1;
  }
  for (const auto& answer : zero::testing::all_answers()) fmt::print("{}\n", answer.name);
  return 2;
}
