// mutant                lists the mutants
// mutant NAME [flags]   runs on one the test that must kill it, at 2 and 3 ranks, and says whether
//                       it noticed: exit code 0 if it failed

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include <zero/memory/accounting.hpp>

#include "mutants.hpp"

namespace {

using zero::testing::Mutant;

// Whether a test failed by an assertion on some rank, not because a rank crashed, threw or was
// killed: only then did it notice what is wrong.
bool failed_by_assertion(const ::testing::TestInfo& info) {
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  for (int p = 0; info.should_run() && p < info.result()->total_part_count(); ++p) {
    const std::string text = info.result()->GetTestPartResult(p).message();
    if (has(text, "Failure\n") && !has(text, "ended by signal") && !has(text, "was killed")) {
      return true;
    }
  }
  return false;
}

// The filter has left only the test that must notice the mutant.
bool any_failed_by_assertion() {
  const auto& program = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < program.total_test_suite_count(); ++s) {
    const auto& suite = *program.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      if (failed_by_assertion(*suite.GetTestInfo(t))) return true;
    }
  }
  return false;
}

int list() {
  for (const Mutant& m : zero::testing::mutants()) {
    fmt::print("{:28} {} ({}: killed by {})\n", m.name, m.breaks, chapter_of(m), m.killed_by);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return list();
  const std::string name = argv[1];
  const auto all = zero::testing::mutants();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Mutant& m) { return m.name == name; });
  if (found == all.end()) {
    fmt::print(stderr, "no mutant is called '{}':\n", name);
    list();
    return 2;
  }
  zero::memory::install();
  zero::testing::choose_mutant(name);
  ::testing::GTEST_FLAG(filter) = fmt::format("*{0}/N2:*{0}/N3:{0}", found->killed_by);
  ::testing::InitGoogleTest(&argc, argv);
  if (RUN_ALL_TESTS() != 0 && any_failed_by_assertion()) {
    fmt::print("\nmutant {} ({}): killed by {}\n", name, found->breaks, found->killed_by);
    return 0;
  }
  fmt::print("\nmutant {} ({}): SURVIVED; {} did not notice\n", name, found->breaks,
             found->killed_by);
  return 1;
}
