// Our traffic counters against the network's own. Two ranks, each in a network namespace of its
// own, joined by a pair of virtual interfaces (veth): whatever one sends the other passes an
// interface that counts bytes and knows nothing of us. Without this the counters only check
// themselves.
//
// Needs root and Linux namespaces; skipped, with the reason, where it may not.

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include <tests/support/session.hpp>
#include <tests/support/states.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/distributed/launch.hpp>

namespace zero::testing {
namespace {

using dist::Purpose;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

std::string name_of(int rank) { return fmt::format("zero{}", rank); }
std::string address_of(int rank) { return fmt::format("10.213.0.{}", rank + 1); }

// Why there can be no test here, or "". Tried in a process of its own: namespaces are for life.
std::string why_not() {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) ::_exit(1);
    ::_exit(std::system("ip link add zero0 type veth peer name zero1 > /dev/null 2>&1") == 0 ? 0
                                                                                             : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 0) return "";
  return code == 1 ? "network namespaces are not allowed here (root is needed)"
                   : "'ip link add … type veth' failed (iproute2 and the veth driver are needed)";
}

void run_command(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw Error("failed: " + command);
}

// One byte from one process to the other: what was done before is seen after.
class Signal {
 public:
  Signal() {
    if (::pipe(ends_) != 0) throw Error("no pipe");
  }
  void give(std::int64_t value = 0) const {
    if (::write(ends_[1], &value, sizeof value) != sizeof value) throw Error("no one to tell");
  }
  std::int64_t take() const {
    std::int64_t value = 0;
    if (::read(ends_[0], &value, sizeof value) != sizeof value) throw Error("nothing was said");
    return value;
  }

 private:
  int ends_[2] = {-1, -1};
};

// Joins the host of another process.
void move_to_host_of(std::int64_t process) {
  for (const auto& [name, kind] : {std::pair{"net", CLONE_NEWNET}, {"uts", CLONE_NEWUTS}}) {
    const int there = ::open(fmt::format("/proc/{}/ns/{}", process, name).c_str(), O_RDONLY);
    if (there < 0 || ::setns(there, kind) != 0) throw Error(std::strerror(errno));
    ::close(there);
  }
}

// Puts this process on its end of the wire. `host` becomes this machine's name, whose address is
// where Gloo is reached unless it is told an interface.
void move_to_own_network(int rank, const std::string& host, const Signal& second_is_there,
                         const Signal& wire_is_there) {
  if (::unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) throw Error(std::strerror(errno));
  const std::string address = address_of(rank);
  if (::sethostname(host.c_str(), host.size()) != 0) throw Error(std::strerror(errno));
  if (rank == 1) {
    second_is_there.give(::getpid());
    wire_is_there.take();
  } else {
    run_command(fmt::format("ip link add {} type veth peer name {} netns {}", name_of(0),
                            name_of(1), second_is_there.take()));
    wire_is_there.give();
  }
  run_command("ip link set lo up");
  run_command(fmt::format("ip address add {}/24 dev {}", address, name_of(rank)));
  run_command(fmt::format("ip link set {} up", name_of(rank)));
}

struct Interface {
  std::int64_t received = 0;
  std::int64_t sent = 0;
};

Interface read_interface(int rank) {
  std::ifstream file("/proc/self/net/dev");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(name_of(rank) + ":");
    if (colon == std::string::npos) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::vector<std::int64_t> numbers(16);
    for (std::int64_t& number : numbers) words >> number;
    return {numbers[0], numbers[8]};
  }
  throw Error("no interface " + name_of(rank));
}

// Segments that TCP sent once more in this process's network: on a busy machine an answer may come
// too late.
std::int64_t read_retransmissions() {
  std::ifstream file("/proc/self/net/snmp");
  std::vector<std::vector<std::string>> rows;  // names, then values
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::vector<std::string> row{std::istream_iterator<std::string>(words), {}};
    if (!row.empty() && row.front() == "Tcp:") rows.push_back(row);
  }
  if (rows.size() != 2) throw Error("/proc/self/net/snmp does not say what TCP did");
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    if (rows[0][i] == "RetransSegs") return std::stoll(rows[1][i]);
  }
  throw Error("/proc/self/net/snmp does not say what was sent again");
}

// What TCP adds, at most. Each segment of 1448 bytes has 66 bytes of headers (Ethernet 14, IPv4 20,
// TCP 32 with time stamps), and is answered by at most one acknowledgement of 66 bytes. Beside
// that, 64 KiB for the headers of Gloo's messages, the store and ARP.
std::int64_t most_on_the_wire(std::int64_t sent, std::int64_t received, std::int64_t again) {
  return sent + (sent + received) * 66 / 1448 + again * (1448 + 66) + (64 << 10);
}

// Runs `work` between two readings of the interface and compares.
void expect_counted(dist::Communicator& communicator, const std::string& what,
                    const std::function<void()>& work) {
  communicator.barrier();
  // Rank 1's bytes are what rank 0 counts as received, and the other way round.
  const dist::Traffic before = communicator.traffic();
  const Interface wire_before = read_interface(communicator.rank());
  const std::int64_t again_before = read_retransmissions();
  work();
  communicator.barrier();
  const Interface wire = read_interface(communicator.rank());
  const std::int64_t again = read_retransmissions() - again_before;
  const std::int64_t counted = communicator.traffic().since(before).bytes();
  const std::int64_t sent = wire.sent - wire_before.sent;
  at::Tensor all = at::zeros({kRanks}, at::kLong);
  all[communicator.rank()] = counted;
  communicator.all_reduce(all, Purpose::kControl, dist::ReduceOp::kSum).wait();
  const std::int64_t counted_by_peer = all[1 - communicator.rank()].item<std::int64_t>();
  fmt::print("{:28} rank {}: counted {:>10}, on the wire {:>10}\n", what, communicator.rank(),
             counted, sent);
  EXPECT_GE(sent, counted) << what << ": more was counted than sent";
  EXPECT_LE(sent, most_on_the_wire(counted, counted_by_peer, again)) << what << ": sent uncounted";
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

// Runs `work` on two ranks that have a network between them and nothing else, each on a host called
// `host(rank)`. Nothing where the system does not allow it, and then the test is skipped.
std::vector<dist::RankExit> on_two_hosts(const std::function<std::string(int rank)>& host,
                                         std::chrono::seconds timeout,
                                         const std::function<void(dist::Communicator&)>& work) {
  const Signal second_is_there, wire_is_there;
  dist::LaunchOptions launch = captured(kRanks, std::chrono::seconds(100));
  launch.connect.timeout = timeout;
  return dist::fork_processes(launch, [&](int rank) -> std::string {
    move_to_own_network(rank, host(rank), second_is_there, wire_is_there);
    dist::RankEnvironment environment;
    environment.rank = rank;
    environment.world_size = kRanks;
    environment.master_address = address_of(0);
    dist::ConnectOptions options = launch.connect;
    options.transport = "tcp";
    const auto communicator = dist::connect(environment, options);
    work(*communicator);
    if (::testing::Test::HasFailure()) throw Error("assertions failed, see above");
    return "done";
  });
}

// What left this rank's host, and what its ranks counted as going to another host. Called by all
// ranks of two hosts of two.
struct Left {
  std::int64_t wire = 0;
  std::int64_t counted = 0;
  std::int64_t counted_there = 0;
  std::int64_t parameters = 0;  // of what was counted
  std::int64_t gradients = 0;   // of what was counted
  std::int64_t again = 0;
};

Left left_the_host(dist::Communicator& communicator, const std::function<void()>& work) {
  const int host = communicator.rank() / 2;
  communicator.barrier();
  const dist::Traffic before = communicator.traffic();
  const Interface wire_before = read_interface(host);
  const std::int64_t again_before = read_retransmissions();
  communicator.barrier();
  work();
  communicator.barrier();
  const dist::Traffic sent = communicator.traffic().since(before);
  const std::int64_t wire = read_interface(host).sent - wire_before.sent;
  const std::vector<std::int64_t> mine = {sent.between_hosts(),
                                          sent.between_hosts(Purpose::kParameter),
                                          sent.between_hosts(Purpose::kGradient)};
  const std::vector<double> all =
      dist::all_gather_scalars(communicator, {mine.begin(), mine.end()});
  const auto sum = [&](int of_host, std::size_t k) {
    const std::size_t first = mine.size() * 2 * static_cast<std::size_t>(of_host);
    return static_cast<std::int64_t>(all[first + k] + all[first + mine.size() + k]);
  };
  return {wire,         sum(host, 0), sum(1 - host, 0),
          sum(host, 1), sum(host, 2), read_retransmissions() - again_before};
}

// At least `formula`, and at most 1 % more, which is padding; exactly 0 where nothing is expected.
void expect_about(std::int64_t counted, std::int64_t formula, const std::string& what) {
  EXPECT_GE(counted, formula) << what;
  EXPECT_LE(counted, formula + formula / 100) << what;
}

// What leaves a host of two ranks, in bytes, if there are two such hosts.
struct PhaseBytes {
  std::int64_t forward;    // gathers of new weights
  std::int64_t unchanged;  // gathers of a forward with weights that an earlier one had
  std::int64_t backward;   // gathers
  std::int64_t gradients;
  std::int64_t read;  // of all weights, between steps
};

// Compares each phase with `formula`, of one copy of the parameters and of the root's share of it,
// and with the interface. Called by all ranks of two hosts of two.
void expect_phases_counted(
    dist::Communicator& communicator, const std::string& mode,
    const std::function<PhaseBytes(std::int64_t v, std::int64_t root)>& formula) {
  SessionOptions options;
  options.model = {.inputs = 704, .width = 512, .parts = "aaa"};
  Session session(communicator, mode, options);
  train::Strategy& strategy = session.strategy();
  const auto evaluate = [&] { session.trainer().evaluate({session.batch(7)}); };
  session.step(0);
  evaluate();  // waits for what is on its way
  const std::int64_t v = strategy.list().bytes();
  ASSERT_GT(v, 4 << 20);
  std::int64_t root = 0;
  for (const std::size_t i : strategy.list().units[0].parameters) {
    root += strategy.list().parameters[i].bytes();
  }
  const PhaseBytes expected = formula(v, root);
  const auto expect_left = [&](const std::string& phase, std::int64_t parameters,
                               std::int64_t gradients, const std::function<void()>& work) {
    const std::string what = mode + ": " + phase;
    const Left left = left_the_host(communicator, work);
    fmt::print("{:28} rank {}: counted {:>10}, on the wire {:>10}\n", what, communicator.rank(),
               left.counted, left.wire);
    expect_about(left.parameters, parameters, what + ", parameters");
    expect_about(left.gradients, gradients, what + ", gradients");
    EXPECT_LE(left.counted, left.parameters + left.gradients + (64 << 10)) << what;  // losses
    EXPECT_GE(left.wire, left.counted) << what;
    EXPECT_LE(left.wire, most_on_the_wire(left.counted, left.counted_there, left.again)) << what;
  };
  expect_left("evaluation", expected.unchanged, 0, evaluate);
  expect_left("reading all weights", expected.read, 0, [&] { session.weights(); });
  for (int step = 1; step <= 2; ++step) {
    at::Tensor loss;
    expect_left("forward", step == 1 ? expected.unchanged : expected.forward, 0,
                [&] { loss = strategy.forward(session.batch(step)); });
    expect_left("backward", expected.backward, expected.gradients, [&] {
      strategy.backward(loss);
      strategy.finish_backward();
    });
    expect_left("update", 0, 0, [&] {
      strategy.optimizer_step();
      strategy.sync_parameters();
      strategy.zero_grad();
    });
  }
}

TEST(Network, WhatLeavesAHostInEachPhaseIsWhatFormulasSay) {
  if (const std::string reason = why_not(); !reason.empty()) {
    GTEST_SKIP() << "NOT TESTED: what ranks send between hosts in each phase: " << reason;
  }
  const Signal second_is_there, wire_is_there;
  const std::vector<Signal> is_there(2);
  dist::LaunchOptions launch = captured(2 * kRanks, std::chrono::seconds(100));
  launch.connect.timeout = std::chrono::seconds(30);
  const auto exits = dist::fork_processes(launch, [&](int rank) -> std::string {
    const int host = rank / 2;
    const Signal& moved = is_there[static_cast<std::size_t>(host)];
    if (rank % 2 == 0) {
      move_to_own_network(host, address_of(host), second_is_there, wire_is_there);
      moved.give(::getpid());
    } else {
      move_to_host_of(moved.take());
    }
    dist::RankEnvironment environment;
    environment.rank = rank;
    environment.world_size = 2 * kRanks;
    environment.master_address = address_of(0);
    dist::ConnectOptions options = launch.connect;
    options.transport = "tcp";  // the hosts share a kernel: ranks could read each other's memory
    const auto communicator = dist::connect(environment, options);
    EXPECT_EQ(communicator->host_of(rank), host * 2);
    const auto expect_counted_in = [&](const std::string& mode, const auto& formula) {
      expect_phases_counted(*communicator, mode, formula);
    };
    expect_counted_in("engine3", [](std::int64_t v, std::int64_t root) {
      return PhaseBytes{v, v, v - root, v, v};
    });
    // 2 (V/S) (R-1)/R of each of a host's ranks, and no parameters.
    expect_counted_in("hsdp3", [](std::int64_t v, std::int64_t) {
      return PhaseBytes{0, 0, 0, v, 0};
    });
    expect_counted_in("hpz", [](std::int64_t v, std::int64_t) {
      return PhaseBytes{v, 0, 0, v, 0};
    });
    // A read between steps has the exact weights. Of gradients, v/512 is scales.
    expect_counted_in("qwz", [](std::int64_t v, std::int64_t root) {
      return PhaseBytes{v / 4, v / 4, (v - root) / 4, v, v};
    });
    expect_counted_in("qgz", [](std::int64_t v, std::int64_t root) {
      return PhaseBytes{v, v, v - root, v / 16 + v / 512, v};
    });
    expect_counted_in("zeropp", [](std::int64_t v, std::int64_t) {
      return PhaseBytes{v / 4, 0, 0, v / 16 + v / 512, v};
    });
    if (::testing::Test::HasFailure()) throw Error("assertions failed, see above");
    return "done";
  });
  const std::string failures = dist::describe_failures(exits);
  EXPECT_TRUE(failures.empty()) << failures;
  fmt::print("{}", exits[0].output);
}

TEST(Network, InterfaceCountsTheBytesThatWeCount) {
  if (const std::string reason = why_not(); !reason.empty()) {
    GTEST_SKIP() << "NOT TESTED: traffic counters against the network's own: " << reason;
  }
  const auto exits =
      on_two_hosts(address_of, std::chrono::seconds(30), [](dist::Communicator& communicator) {
        expect_collectives_counted(communicator);
        expect_steps_counted(communicator);
      });
  const std::string failures = dist::describe_failures(exits);
  EXPECT_TRUE(failures.empty()) << failures;
  fmt::print("{}", exits[0].output);
  EXPECT_NE(exits[0].output.find("step of zero3"), std::string::npos) << "nothing was compared";
}

// As on a host whose name stands for a loopback address, which many have: the others are told an
// address at which they find themselves. The variable says where to be reached instead.
TEST(Network, InterfaceIsTheOneThatTheVariableNames) {
  if (const std::string reason = why_not(); !reason.empty()) {
    GTEST_SKIP() << "NOT TESTED: GLOO_SOCKET_IFNAME between hosts: " << reason;
  }
  const auto barrier = [](dist::Communicator& communicator) { communicator.barrier(); };
  const auto name_alone = [](int) { return std::string("127.0.0.1"); };
  // A rank that connects is refused at once. A rank that waits for a connection is ended by the
  // launcher: Gloo waits for five times the limit there.
  std::string said;
  for (const dist::RankExit& exit : on_two_hosts(name_alone, std::chrono::seconds(3), barrier)) {
    EXPECT_FALSE(exit.ok());
    if (!exit.killed) said += exit.output;
  }
  EXPECT_THAT(said, HasSubstr("by the address of its name, '127.0.0.1'; where that is not the "
                              "network's, set GLOO_SOCKET_IFNAME"));
  EXPECT_THAT(said, ContainsRegex("one of .*zero[01]"));
  const auto name_and_variable = [](int rank) {
    ::setenv("GLOO_SOCKET_IFNAME", name_of(rank).c_str(), 1);
    return std::string("127.0.0.1");
  };
  const auto exits = on_two_hosts(name_and_variable, std::chrono::seconds(30), barrier);
  EXPECT_EQ(dist::describe_failures(exits), "");
}

}  // namespace
}  // namespace zero::testing
