// Our traffic counters against the network's own. Two ranks have a network namespace to themselves,
// whose loopback interface counts the bytes of both and knows nothing of us. Without this the
// counters only check themselves.
//
// Needs Linux namespaces, and root or those of users; skipped, with the reason, where it may not.

#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <tests/support/session.hpp>
#include <tests/support/set_variable.hpp>
#include <tests/support/states.hpp>
#include <zero/base/error.hpp>

namespace zero::testing {
namespace {

using dist::Purpose;

// Gives this process a network of its own; why it cannot, or "".
std::string enter_own_network() {
  if (::unshare(::geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    return "network namespaces are not allowed here";
  }
  return std::system("ip link set lo up > /dev/null 2>&1") == 0
             ? ""
             : "'ip link set lo up' failed (iproute2 is needed)";
}

// Bytes that the interface has sent, of all ranks together.
std::int64_t bytes_on_the_wire() {
  std::ifstream file("/proc/self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find("lo:");
    if (at == std::string::npos) continue;
    std::istringstream words(line.substr(at + 3));
    std::int64_t number = 0;
    for (int i = 0; i <= 8; ++i) words >> number;  // the ninth
    return number;
  }
  throw Error("no interface lo");
}

// What TCP adds, at most. Each segment of 1448 bytes or more has 66 bytes of headers (Ethernet 14,
// IPv4 20, TCP 32 with time stamps), and is answered by at most one acknowledgement of 66 bytes.
// Beside that, 64 KiB for the headers of Gloo's messages and the store.
std::int64_t most_on_the_wire(std::int64_t sent) {
  return sent + sent * 2 * 66 / 1448 + (64 << 10);
}

// Runs `work` between two readings of the interface and compares.
void expect_counted(dist::Communicator& communicator, const std::string& what,
                    const std::function<void()>& work) {
  communicator.barrier();
  const dist::Traffic before = communicator.traffic();
  const std::int64_t wire_before = bytes_on_the_wire();
  communicator.barrier();
  work();
  communicator.barrier();
  const std::int64_t wire = bytes_on_the_wire() - wire_before;
  const std::int64_t mine = communicator.traffic().since(before).bytes();
  const at::Tensor all = at::full({1}, mine, at::kLong);
  communicator.all_reduce(all, Purpose::kControl, dist::ReduceOp::kSum).wait();
  const auto counted = all.item<std::int64_t>();
  EXPECT_GE(wire, counted) << what << ": more was counted than sent";
  EXPECT_LE(wire, most_on_the_wire(counted)) << what << ": sent uncounted";
}

void expect_collectives_counted(dist::Communicator& c) {
  const std::int64_t n = std::int64_t{1} << 20;  // 4 MiB of float
  at::Tensor t = at::ones({n}), half = at::ones({n / 2}), other = at::ones({n});
  const auto p = Purpose::kGradient;
  expect_counted(c, "all_reduce", [&] { c.all_reduce(t, p).wait(); });
  expect_counted(c, "reduce to rank 1", [&] { c.reduce(t, 1, p).wait(); });
  expect_counted(c, "broadcast from rank 0", [&] { c.broadcast(t, 0, p).wait(); });
  expect_counted(c, "reduce_scatter", [&] { c.reduce_scatter(half, t, p).wait(); });
  expect_counted(c, "all_gather", [&] { c.all_gather(t, half, p).wait(); });
  expect_counted(c, "all_to_all", [&] { c.all_to_all(other, t, p).wait(); });
  expect_counted(c, "nothing", [] {});
}

// A step of each strategy, against its formula as well.
void expect_steps_counted(dist::Communicator& communicator) {
  SessionOptions options;
  options.model = {.inputs = 700, .width = 500, .parts = "aaa"};
  for (const std::string& mode : all_modes()) {
    Session session(communicator, mode, options);
    session.step(0);
    // What is counted when it is sent may wait in a socket until the other rank asks for it, in its
    // next forward. Reading all weights waits for that, here and below. hpZ leaves nothing there,
    // and its next forward would send nothing, because the read has made the secondary shard.
    if (!mode.starts_with("hpz")) session.weights();
    expect_counted(communicator, "step of " + mode, [&] {
      const dist::Traffic before = communicator.traffic();
      session.step(1);
      const dist::Traffic sent = communicator.traffic().since(before);
      EXPECT_EQ(training_bytes(sent), session.strategy().costs().sent) << mode;
      session.weights();
    });
  }
}

TEST(Network, InterfaceCountsTheBytesThatWeCount) {
  const SetVariable transport("ZERO_TRANSPORT", "tcp");
  // In a process of its own: namespaces are for life.
  const dist::RankExit ended =
      dist::fork_processes(captured(1, std::chrono::seconds(200)), [](int) -> std::string {
        if (const std::string why = enter_own_network(); !why.empty()) return why;
        on_ranks(2, [](dist::Communicator& communicator) {
          expect_collectives_counted(communicator);
          expect_steps_counted(communicator);
        });
        return ::testing::Test::HasFailure() ? "assertions failed" : "counted";
      }).front();
  if (ended.ok() && ended.result != "counted" && ended.result != "assertions failed") {
    GTEST_SKIP() << "NOT TESTED: traffic counters against the network's own: " << ended.result;
  }
  EXPECT_EQ(ended.result, "counted") << ended.output;
}

}  // namespace
}  // namespace zero::testing
