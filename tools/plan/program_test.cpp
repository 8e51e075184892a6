// Runs the planner as a user does; what docs/planner.md shows is what it prints.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>

#include <tests/support/program.hpp>

namespace zero::plan {
namespace {

// In the folder of the project, with words for the shell.
testing::ProcessResult run_plan(const std::string& arguments) {
  return testing::run_command(fmt::format("'{}' {}", ZERO_PLAN_PROGRAM, arguments));
}

TEST(PlanProgram, ExitsWithItsVerdict) {
  EXPECT_EQ(run_plan("--parameters 13e9 --world-size 8 --memory 24GB").code, 3);
  EXPECT_EQ(run_plan("--parameters 7e9 --tp 2 --pp 2 --memory 2GB").code, 3);
  EXPECT_EQ(run_plan("--parameters 1.5e9 --nproc 8 --memory 16GB").code, 0);
  EXPECT_EQ(run_plan("--parameters 13e9").code, 0);
  EXPECT_EQ(run_plan("--help").code, 0);
}

// The blocks of docs/planner.md that begin with "$ ./run plan".
struct Example {
  std::string arguments, output;
};

std::vector<Example> examples() {
  std::ifstream file("docs/planner.md");
  std::vector<Example> found;
  const std::string prompt = "$ ./run plan";
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(prompt)) {
      found.push_back({line.substr(prompt.size()), ""});
      inside = true;
    } else if (line.starts_with("```")) {
      inside = false;
    } else if (inside) {
      found.back().output += line + "\n";
    }
  }
  return found;
}

TEST(PlannerDocs, ShowWhatTheProgramPrints) {
  const std::vector<Example> all = examples();
  EXPECT_EQ(all.size(), 4U);
  for (const Example& example : all) {
    EXPECT_EQ(run_plan(example.arguments).said, example.output) << example.arguments;
  }
}

}  // namespace
}  // namespace zero::plan
