// Collectives of several sizes: within the host, over TCP, and the backend's own.
//   ./run bench collectives
//
// algbw = bytes / time, busbw = algbw times the part of the bytes that must cross a rank's link:
// 2 (N-1)/N for all-reduce, (N-1)/N for reduce-scatter and all-gather, 1 for broadcast (as
// nccl-tests define them). Bytes are those of the whole tensor. Times are the slowest rank's.

#include <ATen/ops/full.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "zero/distributed/launch.hpp"
#include "zero/error.hpp"

namespace zero::dist {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kSizes[] = {1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 26};
constexpr int kRepetitions = 7;
const std::vector<std::string> kCollectives = {"all_reduce", "reduce_scatter", "all_gather",
                                               "broadcast"};

// Runs one operation and says whether what came out is right: rank r contributes r + 1 everywhere.
bool run(Communicator& c, const std::string& operation, const at::Tensor& whole, at::Tensor& piece,
         double& seconds) {
  const float mine = static_cast<float>(c.rank() + 1);
  const float sum = static_cast<float>(c.size() * (c.size() + 1)) / 2;
  whole.fill_(mine);
  piece.fill_(mine);
  c.barrier();
  const auto started = std::chrono::steady_clock::now();
  if (operation == "all_reduce") {
    c.all_reduce(whole, Purpose::kGradient, ReduceOp::kSum).wait();
  } else if (operation == "reduce_scatter") {
    c.reduce_scatter(piece, whole, Purpose::kGradient, ReduceOp::kSum).wait();
  } else if (operation == "all_gather") {
    c.all_gather(whole, piece, Purpose::kParameter).wait();
  } else {
    c.broadcast(whole, 0, Purpose::kParameter).wait();
  }
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (operation == "all_reduce") return at::equal(whole, at::full_like(whole, sum));
  if (operation == "reduce_scatter") return at::equal(piece, at::full_like(piece, sum));
  if (operation == "broadcast") return at::equal(whole, at::full_like(whole, 1.0F));
  const at::Tensor pieces = whole.view({c.size(), -1});
  for (int r = 0; r < c.size(); ++r) {
    if (!at::equal(pieces[r], at::full_like(pieces[r], static_cast<float>(r + 1)))) return false;
  }
  return true;
}

// Median seconds of every operation and size on this rank, as JSON: {"all_reduce": [..], …}.
std::string measure(Communicator& c) {
  Json result;
  for (const std::string& operation : kCollectives) {
    for (const std::int64_t bytes : kSizes) {
      const at::Tensor whole = at::empty({bytes / 4 / c.size() * c.size()});
      at::Tensor piece = at::empty({bytes / 4 / c.size()});
      std::vector<double> times;
      for (int i = 0; i < kRepetitions; ++i) {
        double seconds = 0;
        if (!run(c, operation, whole, piece, seconds)) {
          throw Error(fmt::format("{} of {} bytes gave a wrong result", operation, bytes));
        }
        if (i > 0) times.push_back(seconds);
      }
      std::sort(times.begin(), times.end());
      result[operation].push_back(times[times.size() / 2]);
    }
  }
  return result.dump();
}

const std::vector<Json>& measured(const std::string& way, int world_size) {
  static std::map<std::pair<std::string, int>, std::vector<Json>> cache;
  std::vector<Json>& ranks = cache[{way, world_size}];
  if (!ranks.empty()) return ranks;
  LaunchOptions options;
  options.world_size = world_size;
  options.threads = 1;
  options.connect.transport = way == "host" ? "host" : "tcp";
  options.connect.order = way == "native" ? ReductionOrder::kNative : ReductionOrder::kRankOrdered;
  const auto exits = launch_ranks(options, measure);
  if (const std::string failures = describe_failures(exits); !failures.empty()) {
    throw Error(failures);
  }
  for (const RankExit& exit : exits) ranks.push_back(Json::parse(exit.result));
  return ranks;
}

void report(benchmark::State& state, const std::string& way, int n, const std::string& operation,
            std::size_t size) {
  double slowest = 0;
  try {
    for (const Json& rank : measured(way, n)) {
      slowest = std::max(slowest, rank.at(operation).at(size).get<double>());
    }
  } catch (const Error& error) {
    state.SkipWithError(error.what());
    return;
  }
  for (auto _ : state) state.SetIterationTime(slowest);
  const double share = operation == "broadcast"    ? 1.0
                       : operation == "all_reduce" ? 2.0 * (n - 1) / n
                                                   : static_cast<double>(n - 1) / n;
  const double gigabytes = static_cast<double>(kSizes[size]) / 1e9;
  state.counters["algbw_GB/s"] = gigabytes / slowest;
  state.counters["busbw_GB/s"] = gigabytes / slowest * share;
}

}  // namespace
}  // namespace zero::dist

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const int n : {2, 4}) {
    for (const std::string& operation : zero::dist::kCollectives) {
      for (std::size_t size = 0; size < std::size(zero::dist::kSizes); ++size) {
        for (const char* way : {"host", "tcp", "native"}) {
          benchmark::RegisterBenchmark(
              fmt::format("{}/{}KiB/ranks:{}/{}", operation, zero::dist::kSizes[size] >> 10, n, way)
                  .c_str(),
              [=](benchmark::State& state) { zero::dist::report(state, way, n, operation, size); })
              ->Iterations(1)
              ->UseManualTime()
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
