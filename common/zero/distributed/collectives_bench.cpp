// Collectives by size, with a check of every result: within a host, over TCP, and by what c10d's
// Gloo offers.   ./run bench collectives
//
// Bytes are those of the whole tensor: the one that is reduced, or the result of an all-gather. As
// nccl-tests define them, algbw = bytes / time, and busbw = algbw times the share of the bytes that
// crosses a rank's link, which makes it comparable with the link's speed for any number N of ranks:
// 2 (N-1)/N for all-reduce, (N-1)/N for reduce-scatter, all-gather and all-to-all, 1 for broadcast
// and reduce.
//
// Within a host, from 1 MiB on, percent_of_limit says how near the time is to the least that the
// memory allows: the bytes that the operation has to read and write (memory_traffic()), at the rate
// at which the ranks that do it (workers()), all at once and in turn with the operation, copy
// tensors of their own with stores that go around the cache. No tensor is used again before 256 MiB
// of others were.

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <tests/bench/bench.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/gloo/gloo_group.hpp>
#include <zero/distributed/rank_order.hpp>
#include <zero/distributed/store/folder_store.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {
namespace {

// The tensors of one collective, float32 on the CPU.
struct Data {
  Communicator& ranks;
  GroupPtr gloo;     // c10d's own group of the same ranks
  at::Tensor whole;  // [n], n a multiple of the number of ranks
  at::Tensor piece;  // [n / ranks]
  at::Tensor other;  // [n] of an all-to-all and a reduce-scatter, else [0]

  // Tensors of zeros; `whole` of at most `bytes`.
  Data(Communicator& communicator, GroupPtr group, std::int64_t bytes,
       const std::string& operation);
  // The place of `rank` in a tensor like `whole`.
  at::Tensor part(const at::Tensor& tensor, int rank) const;
};

// One way to do one collective.
struct Implementation {
  std::string operation;  // "all_reduce", …
  std::string name;       // ours: "host", "tcp"; "gloo" (c10d's own)
  // Called by all ranks; blocks. all_reduce, reduce to rank 0, broadcast from rank 0: `whole` in
  // place; reduce_scatter: `whole` to `piece`; all_gather: `piece` to `whole`; all_to_all: `whole`
  // to `other`. Sums, no averages.
  std::function<void(Data&)> run;
};

at::Tensor pattern(int rank, std::int64_t begin, std::int64_t n) {
  return at::arange(begin, begin + n, at::kLong).remainder(1009).to(at::kFloat).add_(7.0 * rank);
}

at::Tensor summed_pattern(int ranks, std::int64_t begin, std::int64_t n) {
  at::Tensor sum = at::zeros({n});
  for (int r = 0; r < ranks; ++r) sum += pattern(r, begin, n);
  return sum;
}

// Names of these three in newer releases of LibTorch; older ones call them _reduce_scatter_base,
// _allgather_base and alltoall_base.
template <typename Gloo>
void gloo_reduce_scatter(Gloo& gloo, at::Tensor& output, at::Tensor& input) {
  if constexpr (requires { gloo.reduce_scatter_single(output, input); }) {
    gloo.reduce_scatter_single(output, input)->wait();
  } else {
    gloo._reduce_scatter_base(output, input)->wait();
  }
}

template <typename Gloo>
void gloo_all_gather(Gloo& gloo, at::Tensor& output, at::Tensor& input) {
  if constexpr (requires { gloo.all_gather_single(output, input); }) {
    gloo.all_gather_single(output, input)->wait();
  } else {
    gloo._allgather_base(output, input)->wait();
  }
}

template <typename Gloo>
void gloo_all_to_all(Gloo& gloo, at::Tensor& output, at::Tensor& input) {
  std::vector<std::int64_t> equal_parts;
  if constexpr (requires { gloo.all_to_all_single(output, input, equal_parts, equal_parts); }) {
    gloo.all_to_all_single(output, input, equal_parts, equal_parts)->wait();
  } else {
    gloo.alltoall_base(output, input, equal_parts, equal_parts)->wait();
  }
}

const std::vector<std::pair<std::string, std::function<void(Data&)>>> kOurs = {
    {"all_reduce",
     [](Data& d) { d.ranks.all_reduce(d.whole, Purpose::kGradient, ReduceOp::kSum).wait(); }},
    {"reduce",
     [](Data& d) { d.ranks.reduce(d.whole, 0, Purpose::kGradient, ReduceOp::kSum).wait(); }},
    {"reduce_scatter",
     [](Data& d) {
       d.ranks.reduce_scatter(d.piece, d.whole, Purpose::kGradient, ReduceOp::kSum).wait();
     }},
    {"all_gather",
     [](Data& d) {
       d.ranks.all_gather(d.whole, d.piece, Purpose::kParameter, /*copy_own_chunk=*/false).wait();
     }},
    {"broadcast", [](Data& d) { d.ranks.broadcast(d.whole, 0, Purpose::kParameter).wait(); }},
    {"all_to_all",
     [](Data& d) { d.ranks.all_to_all(d.other, d.whole, Purpose::kParameter).wait(); }},
};

Data::Data(Communicator& communicator, GroupPtr group, std::int64_t bytes,
           const std::string& operation)
    : ranks(communicator), gloo(std::move(group)) {
  const std::int64_t n = bytes / 4 / communicator.size();
  piece = at::zeros({n});
  whole = at::zeros({n * communicator.size()});
  const bool uses_other = operation == "all_to_all" || operation == "reduce_scatter";
  other = at::zeros({uses_other ? n * communicator.size() : 0});
}

at::Tensor Data::part(const at::Tensor& tensor, int rank) const {
  return tensor.narrow(0, rank * piece.numel(), piece.numel());
}

void prepare(const Data& d) {
  const int me = d.ranks.rank();
  d.whole.copy_(pattern(me, 0, d.whole.numel()));
  d.piece.copy_(pattern(me, me * d.piece.numel(), d.piece.numel()));
  d.other.zero_();
}

bool right(const Data& d, const std::string& operation) {
  const int me = d.ranks.rank();
  const std::int64_t n = d.whole.numel();
  const std::int64_t m = d.piece.numel();
  if (operation == "broadcast") return at::equal(d.whole, pattern(0, 0, n));
  if (operation == "reduce" && me != 0) return true;
  if (operation == "all_reduce" || operation == "reduce") {
    return at::equal(d.whole, summed_pattern(d.ranks.size(), 0, n));
  }
  if (operation == "reduce_scatter") {
    return at::equal(d.piece, summed_pattern(d.ranks.size(), me * m, m));
  }
  for (int r = 0; r < d.ranks.size(); ++r) {
    const bool same = operation == "all_gather"
                          ? at::equal(d.part(d.whole, r), pattern(r, r * m, m))
                          : at::equal(d.part(d.other, r), pattern(r, me * m, m));
    if (!same) return false;
  }
  return true;
}

std::vector<Implementation> implementations() {
  std::vector<Implementation> all;
  for (const char* transport : {"host", "tcp"}) {
    for (const auto& [operation, run] : kOurs) all.push_back({operation, transport, run});
  }
  const auto with_one = [](auto call) {
    return [call](Data& d) {
      std::vector<at::Tensor> tensors{d.whole};
      call(*d.gloo, tensors)->wait();
    };
  };
  using Gloo = c10d::ProcessGroupGloo;
  all.push_back({"all_reduce", "gloo", with_one([](Gloo& g, auto& t) { return g.allreduce(t); })});
  all.push_back({"reduce", "gloo", with_one([](Gloo& g, auto& t) { return g.reduce(t); })});
  all.push_back(
      {"reduce_scatter", "gloo", [](Data& d) { gloo_reduce_scatter(*d.gloo, d.piece, d.whole); }});
  all.push_back(
      {"all_gather", "gloo", [](Data& d) { gloo_all_gather(*d.gloo, d.whole, d.piece); }});
  all.push_back({"broadcast", "gloo", with_one([](Gloo& g, auto& t) { return g.broadcast(t); })});
  all.push_back(
      {"all_to_all", "gloo", [](Data& d) { gloo_all_to_all(*d.gloo, d.other, d.whole); }});
  return all;
}

void run_checked(Data& data, const Implementation& way) {
  prepare(data);
  way.run(data);
  if (!right(data, way.operation)) {
    throw Error(fmt::format("{} of {} bytes by {} gave a wrong result", way.operation,
                            data.whole.nbytes(), way.name));
  }
}

// Bytes that all ranks together read from memory and write to it in an operation on `bytes` whose
// blocks of sums stay in the cache, and whose stores go around it.
std::int64_t memory_traffic(const std::string& operation, std::int64_t bytes, int n) {
  // A rank reads its piece of N tensors and writes a sum.
  if (operation == "reduce_scatter" || operation == "reduce") return bytes * (n + 1);
  // The same, and then the sums of the others are read and written.
  if (operation == "all_reduce") return bytes * (3 * n - 1);
  // A rank reads and writes N pieces, its own too.
  if (operation == "all_to_all") return bytes * 2 * n;
  // N-1 pieces on each rank, or the whole on all but one.
  return bytes * 2 * (n - 1);
}

// Ranks from `first` on that read and write these bytes, while the others wait.
struct Workers {
  int first, count;
  bool has(int rank) const { return rank >= first && rank < first + count; }
};

Workers workers(const std::string& operation, int n) {
  if (operation == "broadcast") return {1, n - 1};  // all but the root
  return {0, operation == "reduce" ? 1 : n};
}

constexpr std::int64_t kLeastRotated = 1 << 20, kRotated = 256 << 20;

// Seconds of one call in each repetition, on this rank.
struct Times {
  std::vector<double> operation;
  std::vector<double> copy;  // of `whole` by each worker; of tensors that are rotated
};

// Small tensors are sent many times in a row, so that leaving the barrier does not dominate the
// time.
Times measure(Communicator& ranks, const GroupPtr& gloo, const Implementation& way,
              std::int64_t bytes, int repetitions) {
  constexpr std::int64_t kBytesInARow = 8 << 20;
  const std::int64_t calls = std::clamp<std::int64_t>(kBytesInARow / bytes, 1, 200);
  const bool rotates = bytes >= kLeastRotated;
  std::vector<Data> sets;
  do {
    sets.emplace_back(ranks, gloo, bytes, way.operation);
  } while (rotates &&
           (sets.size() < 2 || static_cast<std::int64_t>(sets.size()) * bytes < kRotated));
  const auto seconds_of_one = [&](const auto& call) {
    ranks.barrier();
    const double seconds = bench::seconds_of([&] {
      for (std::int64_t c = 0; c < calls; ++c) call();
      ranks.barrier();  // ranks that share a core begin late
    });
    return seconds / static_cast<double>(calls);
  };
  std::size_t next = 0;
  const auto set = [&]() -> Data& { return sets[next++ % sets.size()]; };
  run_checked(sets.front(), way);
  sets.front().whole.zero_();  // sums of sums stay 0
  sets.front().piece.zero_();
  Times times;
  const bool works = workers(way.operation, ranks.size()).has(ranks.rank());
  for (int i = 0; i < repetitions; ++i) {
    times.operation.push_back(seconds_of_one([&] { way.run(set()); }));
    if (!rotates) continue;
    times.copy.push_back(seconds_of_one([&] {
      const at::Tensor from = set().whole, to = set().whole;
      if (works) copy_around_cache(to, from);
    }));
  }
  run_checked(sets.front(), way);
  return times;
}

double share_of_a_link(const std::string& operation, int n) {
  if (operation == "broadcast" || operation == "reduce") return 1.0;
  return (operation == "all_reduce" ? 2.0 : 1.0) * (n - 1) / n;
}

struct Settings {
  std::vector<int> world_sizes = {2, 4};
  std::int64_t max_kib = 64 << 10;
  int repetitions = 7;
};

bench::Measured measure_on_ranks(const Implementation& way, int ranks, std::int64_t bytes,
                                 int repetitions) {
  LaunchOptions options;
  options.world_size = ranks;
  options.connect.transport = way.name == "host" ? "auto" : "tcp";
  const auto meeting = c10::make_intrusive<FolderStore>();
  const auto results = bench::on_ranks(options, [&](Communicator& c) -> bench::Json {
    // Not every machine lets ranks read each other's memory.
    if (options.connect.transport == "auto" && c.transport().starts_with("TCP")) {
      return {{"seconds", bench::Json::array()}, {"copy", bench::Json::array()}};
    }
    const GroupPtr gloo =
        make_gloo_group(c10::make_intrusive<FolderStore>(meeting->folder()), c.rank(), c.size(),
                        c.rank(), /*loopback=*/true, options.connect.timeout);
    const Times times = measure(c, gloo, way, bytes, repetitions);
    return {{"seconds", times.operation}, {"copy", times.copy}};
  });
  bench::Measured measured{bench::slowest(results, "seconds")};
  if (measured.seconds.empty()) return measured;
  const double algbw = static_cast<double>(bytes) / bench::median(measured.seconds) / 1e9;
  measured.counters = {{"algbw_gb_per_s", algbw},
                       {"busbw_gb_per_s", algbw * share_of_a_link(way.operation, ranks)}};
  const std::vector<double> copies = bench::slowest(results, "copy");
  if (way.name == "host" && !copies.empty()) {
    // The shortest, so that what else runs on the machine counts least.
    const double copied = 2.0 * workers(way.operation, ranks).count * static_cast<double>(bytes);
    const double rate = copied / std::ranges::min(copies);
    const auto traffic = static_cast<double>(memory_traffic(way.operation, bytes, ranks));
    measured.counters["percent_of_limit"] =
        100 * traffic / rate / std::ranges::min(measured.seconds);
  }
  return measured;
}

int run(int argc, char** argv) {
  ::unsetenv("ZERO_TRANSPORT");  // each implementation sets its own
  memory::install();             // huge pages, as in a program that trains
  Settings settings;
  CLI::App options{"Collectives by size, each result checked."};
  bench::number(options, "--nproc", settings.world_sizes, "ranks, one number or several", 2, 16);
  bench::number(options, "--max-kib", settings.max_kib,
                "the largest tensor; each is 4 times the last", 1, 1 << 20);
  bench::number(options, "--repetitions", settings.repetitions, "how often to measure", 1, 1000);
  return bench::run(argc, argv, options, [&] {
    for (const int n : settings.world_sizes) {
      for (const Implementation& way : implementations()) {
        for (std::int64_t kib = 1; kib <= settings.max_kib; kib *= 4) {
          bench::add(fmt::format("{}/{}KiB/ranks:{}/{}", way.operation, kib, n, way.name),
                     [=] { return measure_on_ranks(way, n, kib << 10, settings.repetitions); });
        }
      }
    }
  });
}

}  // namespace
}  // namespace zero::dist

int main(int argc, char** argv) { return zero::dist::run(argc, argv); }
