#pragma once

#include <string>
#include <vector>

namespace zero::testing {

/// A solution, a starter or a wrong answer to an exercise.
struct Answer {
  std::string name;         ///< of the exercise and of the answer: "01b starter"
  int (*run)(int, char**);  ///< its main()
  std::string expects;      ///< a regular expression: what the grader must say
};

/// Puts answers on the list of the chapter's program.
class Answers {
 public:
  explicit Answers(const std::vector<Answer>& answers);
};

}  // namespace zero::testing
