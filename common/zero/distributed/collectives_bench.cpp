// Collectives by size, with a check of every result: within a host, over TCP, and by what c10d's
// Gloo offers.   ./run bench collectives
//
// Bytes are those of the whole tensor: what is reduced, what an all-gather ends with. As nccl-tests
// define them, algbw = bytes / time, and busbw = algbw times the part of the bytes that has to
// cross a rank's link, so that it can be compared with the link's speed whatever the number N of
// ranks: 2 (N-1)/N for all-reduce, (N-1)/N for reduce-scatter, all-gather and all-to-all, 1 for
// broadcast and reduce.

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

#include <tests/bench/program.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/implementations_bench.hpp>

namespace zero::dist {
namespace {

using bench::Json;

void run_checked(Data& data, const Implementation& way) {
  prepare(data);
  way.run(data);
  if (!right(data, way.operation)) {
    throw Error(fmt::format("{} of {} bytes by {} gave a wrong result", way.operation,
                            data.whole.nbytes(), way.name));
  }
}

// Seconds of one call in each of `repetitions`, on this rank. Small tensors are sent many times in
// a row, or the time would be that of leaving the barrier.
std::vector<double> measure(Data& data, const Implementation& way, int repetitions) {
  constexpr std::int64_t kBytesInARow = 8 << 20;
  const std::int64_t calls = std::clamp<std::int64_t>(
      kBytesInARow / std::max<std::int64_t>(1, data.whole.nbytes()), 1, 200);
  run_checked(data, way);
  data.whole.zero_();  // sums of sums stay 0
  data.piece.zero_();
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    data.ranks.barrier();
    const auto started = std::chrono::steady_clock::now();
    for (std::int64_t c = 0; c < calls; ++c) way.run(data);
    const auto time = std::chrono::steady_clock::now() - started;
    seconds.push_back(std::chrono::duration<double>(time).count() / static_cast<double>(calls));
  }
  run_checked(data, way);
  return seconds;
}

double share_of_a_link(const std::string& operation, int n) {
  if (operation == "broadcast" || operation == "reduce") return 1.0;
  return (operation == "all_reduce" ? 2.0 : 1.0) * (n - 1) / n;
}

struct Settings {
  std::vector<int> world_sizes = {2, 4};
  std::int64_t max_kib = 64 << 10;
  int repetitions = 7;
  std::vector<std::int64_t> sizes() const {
    std::vector<std::int64_t> all;
    for (std::int64_t kib = 1; kib <= max_kib; kib *= 4) all.push_back(kib << 10);
    return all;
  }
};

// All sizes on one group of ranks, measured when the first of them is asked for.
class Group {
 public:
  Group(Implementation way, int ranks, Settings settings)
      : way_(std::move(way)), ranks_(ranks), settings_(std::move(settings)) {}

  bench::Measured at_size(std::size_t index) {
    if (results_.empty()) measure_all();
    if (!unavailable_.empty()) throw bench::NotHere(unavailable_);
    const std::string key = std::to_string(index);
    bench::Measured measured{bench::slowest(results_, key)};
    const double bytes = static_cast<double>(settings_.sizes()[index]);
    const double algbw = bytes / bench::median(measured.seconds) / 1e9;
    measured.counters = {{"bytes", bytes},
                         {"algbw_gb_per_s", algbw},
                         {"busbw_gb_per_s", algbw * share_of_a_link(way_.operation, ranks_)}};
    return measured;
  }

 private:
  void measure_all() {
    LaunchOptions options;
    options.world_size = ranks_;
    options.connect.timeout = std::chrono::minutes(2);
    options.connect.transport = way_.name == "host" ? "auto" : "tcp";
    results_ = bench::on_ranks(options, [&](Communicator& c) {
      Json result;
      if (way_.name == "host" && c.transport().starts_with("TCP")) {
        return result = {{"unavailable", c.transport()}};
      }
      for (std::size_t i = 0; i < settings_.sizes().size(); ++i) {
        Data data(c, settings_.sizes()[i]);
        result[std::to_string(i)] = measure(data, way_, settings_.repetitions);
      }
      return result;
    });
    unavailable_ = results_.front().value("unavailable", "");
  }

  Implementation way_;
  int ranks_;
  Settings settings_;
  std::vector<Json> results_;
  std::string unavailable_;
};

int run(int argc, char** argv) {
  ::unsetenv("ZERO_TRANSPORT");  // each way has its own
  Settings settings;
  bench::Program program(argc, argv, "Collectives by size, each result checked.");
  CLI::App& options = program.options();
  options.add_option("--nproc", settings.world_sizes, "ranks, one number or several")
      ->capture_default_str()
      ->check(CLI::Range(2, 16));
  options.add_option("--max-kib", settings.max_kib, "the largest tensor; each is 4 times the last")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  options.add_option("--repetitions", settings.repetitions, "how often to measure")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  if (const auto code = program.parse()) return *code;
  for (const int n : settings.world_sizes) {
    for (const Implementation& way : implementations()) {
      const auto group = std::make_shared<Group>(way, n, settings);
      for (std::size_t i = 0; i < settings.sizes().size(); ++i) {
        program.add(fmt::format("{}/{}KiB/ranks:{}/{}", way.operation, settings.sizes()[i] >> 10, n,
                                way.name),
                    [group, i] { return group->at_size(i); });
      }
    }
  }
  return program.run();
}

}  // namespace
}  // namespace zero::dist

int main(int argc, char** argv) { return zero::dist::run(argc, argv); }
