// Our traffic counters against the network's own. Two ranks, each in a network namespace of its
// own, joined by a pair of virtual interfaces (veth): whatever one sends the other passes an
// interface that counts bytes and knows nothing of us. Without this the counters only check
// themselves.
//
// Needs root and Linux namespaces; skipped, with the reason, where it may not.

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
#include <zero/distributed/connect.hpp>
#include <zero/distributed/launch.hpp>

namespace zero::testing {
namespace {

using dist::Purpose;

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

// Puts this process on its end of the wire. Its address becomes this machine's name, where Gloo is
// reached.
void move_to_own_network(int rank, const Signal& second_is_there, const Signal& wire_is_there) {
  if (::unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) throw Error(std::strerror(errno));
  const std::string address = address_of(rank);
  if (::sethostname(address.c_str(), address.size()) != 0) throw Error(std::strerror(errno));
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

TEST(Network, InterfaceCountsTheBytesThatWeCount) {
  if (const std::string reason = why_not(); !reason.empty()) {
    GTEST_SKIP() << "NOT TESTED: traffic counters against the network's own: " << reason;
  }
  const Signal second_is_there, wire_is_there;
  dist::LaunchOptions launch = captured(kRanks, std::chrono::seconds(100));
  launch.connect.timeout = std::chrono::seconds(30);
  const auto exits = dist::fork_processes(launch, [&](int rank) -> std::string {
    move_to_own_network(rank, second_is_there, wire_is_there);
    dist::RankEnvironment environment;
    environment.rank = rank;
    environment.world_size = kRanks;
    environment.master_address = address_of(0);
    dist::ConnectOptions options = launch.connect;
    options.transport = "tcp";
    const auto communicator = dist::connect(environment, options);
    expect_collectives_counted(*communicator);
    expect_steps_counted(*communicator);
    if (::testing::Test::HasFailure()) throw Error("assertions failed, see above");
    return "done";
  });
  const std::string failures = dist::describe_failures(exits);
  EXPECT_TRUE(failures.empty()) << failures;
  fmt::print("{}", exits[0].output);
  EXPECT_NE(exits[0].output.find("step of zero3"), std::string::npos) << "nothing was compared";
}

}  // namespace
}  // namespace zero::testing
