// Random models in random loops: under every mode the bits are those of a plain program in one
// process. A failing program is made as small as possible and printed;
//
//     ZERO_FUZZ_PROGRAM='{"seed": 7, …}'        plays one again
//     ZERO_FUZZ_SEED=1000 ZERO_FUZZ_COUNT=500   plays others, with SlowFuzz

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <set>

#include <tests/support/modes.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>

#include "script.hpp"

namespace zero::testing {
namespace {

// Plays programs, all with the same number of ranks, on as few processes as possible.
class Fuzzer {
 public:
  /// What is wrong with each program; empty if nothing is. Stops after the first that fails if
  /// `stops`.
  std::vector<std::string> verdicts(const std::vector<Program>& programs, bool stops = false) {
    std::vector<std::string> all;
    while (all.size() < programs.size()) {
      start(programs, all, stops);
      if (stops && !all.empty() && fails(all.back())) break;
    }
    return all;
  }

  static bool fails(const std::string& verdict) {
    return !verdict.empty() && !verdict.starts_with(kInvalid);
  }

  /// A smaller program with a failure of the same kind.
  Program smallest(const Program& program, const std::string& verdict) {
    const auto kind = [](const std::string& text) { return text.find("error: ") != text.npos; };
    return shrunk(program, [&](const std::vector<Program>& candidates) {
      std::size_t from = 0;
      while (from < candidates.size()) {
        // All in one start have the same number of ranks.
        std::size_t to = from;
        while (to < candidates.size() && candidates[to].ranks == candidates[from].ranks) ++to;
        const std::vector<Program> part(candidates.begin() + static_cast<std::ptrdiff_t>(from),
                                        candidates.begin() + static_cast<std::ptrdiff_t>(to));
        const std::vector<std::string> all = verdicts(part, /*stops=*/true);
        if (fails(all.back()) && kind(all.back()) == kind(verdict)) return from + all.size() - 1;
        from += fails(all.back()) ? all.size() : part.size();
      }
      return candidates.size();
    });
  }

 private:
  // Goes on with the programs after those of `all`, on new processes. Ends early after an error,
  // which may have left ranks at different places.
  void start(const std::vector<Program>& programs, std::vector<std::string>& all, bool stops) {
    const TestFolder folder;
    dist::LaunchOptions options = captured(programs.front().ranks, std::chrono::minutes(20));
    options.connect.timeout = std::chrono::seconds(5);
    const auto exits = dist::launch_ranks(options, [&](dist::Communicator& communicator) {
      std::ofstream file(folder / fmt::format("{}", communicator.rank()));
      for (std::size_t p = all.size(); p < programs.size(); ++p) {
        std::string text = verdict(programs[p], communicator);
        std::ranges::replace(text, '\n', ' ');
        file << text << '\n' << std::flush;
        if (is_over(text, stops)) break;
      }
      return std::string();
    });
    add(folder, dist::describe_failures(exits), programs.front().ranks, all);
  }

  static std::vector<std::string> file_of(const TestFolder& folder, int rank) {
    std::vector<std::string> lines;
    std::ifstream file(folder / fmt::format("{}", rank));
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  static bool is_over(const std::string& verdict, bool stops) {
    return verdict.find("error: ") != std::string::npos || (stops && fails(verdict));
  }

  // Of each program what the first rank with something to say says.
  static void add(const TestFolder& folder, const std::string& failures, int ranks,
                  std::vector<std::string>& all) {
    std::vector<std::vector<std::string>> lines;
    std::size_t most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      lines.push_back(file_of(folder, rank));
      most = std::max(most, lines.back().size());
    }
    for (std::size_t p = 0; p < most; ++p) {
      std::string text;
      for (const auto& of_rank : lines) {
        if (text.empty() && p < of_rank.size()) text = of_rank[p];
      }
      all.push_back(text);
    }
    if (failures.empty()) return;
    if (!all.empty() && most > 0 && fails(all.back())) return;
    all.push_back("error: " + failures);
  }
};

std::vector<Program> programs(std::uint64_t seed, std::uint64_t count, int ranks) {
  std::vector<Program> all;
  for (std::uint64_t k = 0; k < count; ++k) {
    all.push_back(random_program(seed + k, ranks, all_modes()));
  }
  return all;
}

void expect_no_failure(const std::vector<Program>& programs) {
  Fuzzer fuzzer;
  const std::vector<std::string> verdicts = fuzzer.verdicts(programs);
  std::size_t invalid = 0;
  for (std::size_t p = 0; p < programs.size(); ++p) {
    invalid += verdicts[p].starts_with(kInvalid) ? 1 : 0;
    if (!Fuzzer::fails(verdicts[p])) continue;
    std::cerr << "seed " << programs[p].seed << " fails, " << verdicts[p] << std::endl;
    const Program small = fuzzer.smallest(programs[p], verdicts[p]);
    ADD_FAILURE() << "seed " << programs[p].seed << ": " << verdicts[p]
                  << "\n  program:  " << programs[p].text() << "\n  smallest: " << small.text()
                  << "\n            " << fuzzer.verdicts({small}).front();
  }
  EXPECT_LE(invalid * 10, programs.size()) << "too many programs that a plain module cannot run";
}

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

ZERO_TESTS_ON_RANKS(Fuzz, 2, 3);

TEST_P(Fuzz, RandomProgramsHaveTheBitsOfThePlainProgram) {
  const char* one = std::getenv("ZERO_FUZZ_PROGRAM");
  if (one == nullptr) return expect_no_failure(programs(1, 12, GetParam()));
  Program program = program_of(one);
  if (program.ranks == GetParam()) expect_no_failure({program});
}

// What happens to models and loops in practice, and what the fuzzer has found, as small as
// possible.
std::vector<std::string> engine_modes() {
  return {"engine0",
          "engine1",
          "engine2",
          "engine3",
          "engine1:defer_parameter_gather=true",
          "engine2:defer_parameter_gather=true",
          "engine3:lookahead=0:whole_below=100",
          "engine3:bucket_mib=0.0002:lookahead=2:whole_below=100",
          "hsdp3:shard_size=1"};
}

std::vector<Program> programs_of_the_table() {
  return {
      // Parameters are frozen and thawed between steps.
      {.parts = "L(ln)", .loop = "mdmdmdmdm", .optimizer = "adamw"},
      {.parts = "lnfsgr", .loop = "mdmdmdm", .dtype = "bfloat16"},
      // Two forwards before one backward, or two backwards.
      {.parts = "Lnrfa", .loop = "jbj", .optimizer = "adamw"},
      // Some ranks leave out a parameter: of a unit by itself, around or within another, with two
      // outputs, or all of a unit; beside units that are used twice or read what others read.
      {.parts = "lsl", .loop = "mmmmmm", .optimizer = "adamw"},
      {.parts = "l(s)lrs(l)", .loop = "mmmmmm", .optimizer = "adamw"},
      {.parts = "k(s)s", .loop = "mmmmmm", .optimizer = "adamw"},
      {.parts = "lSS", .loop = "mmmmmm", .optimizer = "adamw"},
      {.parts = "lbs(l)", .loop = "mmmmmm", .optimizer = "adamw"},
      // Forwards that no backward follows, in the middle of a step and after it.
      {.parts = "lnsu", .loop = "muemuemm", .optimizer = "adamw", .accumulation = 2},
      // A forward or a backward throws, and the step begins anew.
      {.parts = "lnrl", .loop = "ymxmym", .optimizer = "adamw"},
      {.parts = "lsl", .loop = "mymymym", .optimizer = "adamw"},
      {.width = 2, .parts = "OS", .loop = "gymmym"},
      {.parts = "L!rwbWE", .loop = "ymdj", .accumulation = 2},
      {.seed = 2000, .width = 2, .parts = "?b", .loop = "mywm"},
      // Models that are only a root, and learning rates and groups of parameters.
      {.parts = "", .loop = "mmm", .optimizer = "adamw"},
      {.parts = "h", .loop = "mlmlm", .optimizer = "groups"},
      {.parts = "lns", .loop = "mlmlm", .optimizer = "groups"},
      // Buffers are rank 0's at the start, and each rank's own afterwards.
      {.parts = "lB", .loop = "mmnm"},
      // Or rank 0's before each forward that trains, and in no evaluation.
      {.parts = "lB(nB)L", .loop = "memjbkmxvVe", .broadcast = true, .modes = engine_modes()},
      // Parameters of two types, clipped in the wider one.
      {.parts = "ldD", .loop = "mmm", .clip = 0.05},
      {.parts = "lnfsg", .loop = "mmm", .dtype = "double", .clip = 0.05},
      // A float64 parameter whose shards were added to the norm in double.
      {.seed = 1015, .width = 20, .parts = "cE(bs)D!", .loop = "mmm", .clip = 0.05},
      // At 3 ranks a loss overflows where its gradient does not.
      {.seed = 1099,
       .width = 10,
       .parts = "E[Sh",
       .loop = "bxbmmmmm",
       .optimizer = "sgd",
       .uneven = true},
      // Second order: close to the plain program, and refused at stage 3. Within the root, too, it
      // is like anything else.
      {.width = 2, .parts = "(Lz)", .loop = "QmqQ"},
      {.parts = "yl(yLy)Y", .loop = "qmQ"},
      {.parts = "LnEi", .loop = "mmgm", .optimizer = "adam"},
      // Losses that the program computes by itself, in any way.
      {.parts = "L(ln)c", .loop = "mbjguem", .optimizer = "adam", .accumulation = 2, .own = true},
      {.parts = "aMj(L)h", .loop = "mgjdmms", .own = true},
      // Units side by side, with hooks on their outputs, with losses of their own, or with none of
      // their gradient going on; a unit that hands on what another gave.
      {.parts = "lnpL(l)p", .loop = "mmm", .optimizer = "adamw"},
      {.parts = "lyL(ly)yYj(lY)", .loop = "mmm", .accumulation = 2},
      {.parts = "(l)((n))r", .loop = "mmm", .dtype = "double"},
      // Sharpness-aware steps, elements of weights and gradients that the program changes.
      {.parts = "L(ln)s", .loop = "smcspm", .optimizer = "adamw", .clip = 0.05},
      {.parts = "aMz", .loop = "pmcpmpp", .optimizer = "rmsprop", .accumulation = 2, .clip = 0.05},
      // Frozen between forward and backward, or between backward and the update.
      {.parts = "L(ln)sF", .loop = "fmfmdfm", .optimizer = "adamw"},
      {.parts = "L(ln)sF", .loop = "fFmdfFm", .optimizer = "adamw", .modes = engine_modes()},
      // step() only where it updates, and graphs from before a step that was given up.
      {.parts = "L(ln)S", .loop = "oobovGmoGom", .optimizer = "adamw", .accumulation = 2},
      {.parts = "aMs", .loop = "GmGm", .optimizer = "adamw"},
      // Forwards and evaluations between backward and the update.
      {.parts = "L(ln)sS", .loop = "vmVvmVm", .optimizer = "adamw"},
      {.parts = "M(ln)S", .loop = "mvvmVV", .accumulation = 2},
      // Scopes: what is written into whole weights, between steps and micro-batches and before the
      // update, in place or through data(); one in the middle of a forward.
      {.parts = "lF(nE)z", .loop = "CmAmTmKmT", .optimizer = "adamw"},
      {.parts = "lF(nE)w", .loop = "mCmmAmTKmKmA", .optimizer = "adamw", .accumulation = 2},
      {.parts = "lF(nE)z", .loop = "CmAmTmKmKm", .dtype = "bfloat16", .optimizer = "adamw"},
      {.parts = "L(ln)l", .loop = "UmUU", .optimizer = "adamw"},
      {.parts = "lXL", .loop = "mmm", .optimizer = "adamw", .modes = engine_modes()},
      // Hooks of parameters, set while the engine has the model or before, and removed; of
      // accumulators; after accumulation; on one rank alone. Also under checkpoints.
      {.parts = "aMhn", .loop = "hnmmRm", .optimizer = "adamw"},
      {.parts = "[aM]c", .loop = "mhHmmEmRm", .dtype = "double", .optimizer = "adamw"},
      {.parts = "aM[l]n", .loop = "Hnmmmdmm", .accumulation = 2},
      {.parts = "aMhn", .loop = "Pmmm", .optimizer = "adamw"},
      {.parts = "L(ln)l", .loop = "mLmm", .optimizer = "adamw"},
      // Ranks whose data has ended.
      {.parts = "lsL", .loop = "tmttm", .optimizer = "adamw", .accumulation = 2},
      // Checkpoints, also of another mode's, and of parameters without an element.
      {.parts = "lzZBw(Fn)h", .loop = "kmmknmkm", .optimizer = "adamw"},
      {.parts = "lzZa", .loop = "mkmmkm", .dtype = "bfloat16", .optimizer = "adamw"},
      // More parameters than collectives can be in flight at once within a host.
      {.width = 3, .parts = std::string(100, 'z'), .loop = "m"},
  };
}
TEST_P(Fuzz, ProgramsOfTheTableHaveThemInEveryMode) {
  std::vector<Program> programs = programs_of_the_table();
  for (Program& program : programs) {
    program.ranks = GetParam();
    if (program.modes.size() > 1) continue;
    program.modes = all_modes();
    for (const std::string& mode : engine_modes()) program.modes.push_back(mode);
  }
  expect_no_failure(programs);
}

// Groups of two ranks. With copies of the model states sums are those of a tree, so that the first
// of these modes is close to the plain program, and the others have its bits.
TEST(FuzzInGroups, ProgramsHaveTheBitsOfTheirChapter00) {
  const std::vector<std::string> copies = {"hddp:shard_size=2", "hsdp1:shard_size=2",
                                           "hsdp2:shard_size=2", "hsdp3:shard_size=2"};
  const std::vector<std::string> secondary = {"hpz:group_size=2", "hpz:group_size=1"};
  std::vector<Program> programs = {
      {.parts = "lF(nE)z", .loop = "CmAmTmKmT"},
      {.parts = "L(ln)s", .loop = "smcspmvm", .clip = 0.05},
      {.parts = "aMhn", .loop = "hmmRdmxmym", .accumulation = 2},
  };
  for (std::size_t i = 0; i < 3; ++i) {
    programs[i].ranks = 4;
    programs[i].modes = copies;
    programs.push_back(programs[i]);
    programs.back().modes = secondary;
  }
  expect_no_failure(programs);
}

ZERO_TESTS_ON_RANKS(SlowFuzz, 2, 3);
TEST_P(SlowFuzz, RandomProgramsHaveTheBitsOfThePlainProgram) {
  const std::uint64_t seed = number_of("ZERO_FUZZ_SEED", 1000);
  expect_no_failure(programs(seed, number_of("ZERO_FUZZ_COUNT", 150), GetParam()));
}

// What makes the fuzzer mean something: programs differ, and everything comes up.
TEST(FuzzPremises, ProgramsDifferAndHaveEverything) {
  std::string parts, loops, modes;
  std::set<std::string> texts;
  for (const Program& program : programs(1, 200, 2)) {
    parts += program.parts;
    loops += program.loop;
    for (const std::string& mode : program.modes) modes += mode + " ";
    texts.insert(program.text());
    EXPECT_EQ(program_of(program.text()).text(), program.text());
  }
  EXPECT_EQ(texts.size(), 200U);
  for (const char letter : std::string("lLwWfFnNeEdDaAoOcCsSMbvkzBughrpy!?()[]")) {
    EXPECT_NE(parts.find(letter), std::string::npos) << letter;
  }
  for (const char letter : std::string("mbjeuxygqQwlndtvVsUCTKoG")) {
    EXPECT_NE(loops.find(letter), std::string::npos) << letter;
  }
  for (const std::string& mode : all_modes()) {
    EXPECT_NE(modes.find(mode + " "), std::string::npos) << mode;
  }
}

TEST(FuzzPremises, AProgramIsShrunkToWhatFails) {
  const auto fails = [](const Program& p) {
    return p.parts.find('W') != std::string::npos && p.loop.find('j') != std::string::npos &&
           p.modes.back().find("lookahead=0") != std::string::npos;
  };
  const Program small =
      shrunk({.seed = 5,
              .ranks = 3,
              .width = 9,
              .parts = "l(nW!)gs",
              .loop = "mmejmx",
              .dtype = "double",
              .optimizer = "adam",
              .accumulation = 2,
              .clip = 0.1,
              .uneven = true,
              .modes = {"engine0", "engine3:whole_below=5:lookahead=0:keep_buffers=false"}},
             [&](const std::vector<Program>& candidates) {
               return static_cast<std::size_t>(std::ranges::find_if(candidates, fails) -
                                               candidates.begin());
             });
  const Program expected{
      .seed = 5, .width = 2, .parts = "W", .loop = "j", .modes = {"engine3:lookahead=0"}};
  EXPECT_EQ(small.text(), expected.text());
}

}  // namespace
}  // namespace zero::testing
