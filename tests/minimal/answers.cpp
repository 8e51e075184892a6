// Grades one answer of those of a chapter that CI knows: 01_zero1_answers "01b starter".

#include "answers.hpp"

#include <fmt/format.h>

namespace zero::testing {
namespace {

std::vector<Answer>& all_answers() {
  static std::vector<Answer> answers;
  return answers;
}

}  // namespace

Answers::Answers(const std::vector<Answer>& answers) {
  all_answers().insert(all_answers().end(), answers.begin(), answers.end());
}

}  // namespace zero::testing

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  for (const auto& [name, run] : zero::testing::all_answers()) {
    if (name == wanted) return run(1, argv);
  }
  for (const auto& answer : zero::testing::all_answers()) fmt::print("{}\n", answer.first);
  return 2;
}
