// What a program does where its own standard streams are at fault.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <tests/support/ranks.hpp>
#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/launch.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

// Runs `program` with its streams spoilt by `spoil`, in a process of its own.
dist::RankExit exit_of(const std::function<void()>& spoil, const std::function<int()>& program) {
  return dist::fork_processes(captured(1, std::chrono::seconds(60)),
                              [&](int) {
                                spoil();
                                return fmt::format("code {}", run_program("program", program));
                              })
      .front();
}

void to_full_disk(int stream) { ::dup2(::open("/dev/full", O_WRONLY), stream); }

int fails() { throw Error("no such thing"); }

TEST(Program, AnExceptionIsAMessageAndAnExitCode) {
  const dist::RankExit exit = exit_of([] {}, fails);
  EXPECT_EQ(exit.result, "code 1");
  EXPECT_EQ(exit.output, "program: no such thing\n");
}

TEST(Program, EndsAsUsualWhereItsErrorsCannotBeWritten) {
  EXPECT_EQ(exit_of([] { ::close(STDERR_FILENO); }, fails).result, "code 1");
  EXPECT_EQ(exit_of([] { to_full_disk(STDERR_FILENO); }, fails).result, "code 1");
}

TEST(Program, OutputThatIsLostIsAFailure) {
  const dist::RankExit exit = exit_of([] { to_full_disk(STDOUT_FILENO); },
                                      [] {
                                        fmt::print("a table\n");
                                        return 0;
                                      });
  EXPECT_EQ(exit.result, "code 1");
  EXPECT_THAT(exit.output,
              HasSubstr("program: its output could not be written: No space left on device"));
}

TEST(Program, NoFileTakesThePlaceOfAStreamThatWasClosed) {
  const auto opens = [] { return ::open("/dev/null", O_WRONLY) > STDERR_FILENO ? 0 : 7; };
  EXPECT_EQ(exit_of([] { ::close(STDOUT_FILENO); }, opens).result, "code 0");
}

}  // namespace
}  // namespace zero::testing
