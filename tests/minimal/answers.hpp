#pragma once

#include <string>
#include <utility>
#include <vector>

namespace zero::testing {

/// A solution, a starter or a wrong answer to an exercise: its name ("01b starter") and its main().
using Answer = std::pair<std::string, int (*)(int, char**)>;

/// Puts answers on the list of the chapter's program.
class Answers {
 public:
  explicit Answers(const std::vector<Answer>& answers);
};

}  // namespace zero::testing
