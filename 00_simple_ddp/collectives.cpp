// Prints what each collective does, on three ranks. All chapters but 09 are made of these.

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/launch.hpp>

namespace {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

std::string text(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kInt).contiguous();
  const int* first = values.const_data_ptr<int>();
  return fmt::format("{:>3}", fmt::join(std::vector<int>(first, first + values.numel()), " "));
}

// One line per rank, all printed by rank 0: several processes would mix their lines.
void show(Communicator& c, const char* title, const at::Tensor& before, const at::Tensor& after) {
  const auto lines = c.exchange(fmt::format("{:28} ->  {}", text(before), text(after)));
  if (c.rank() != 0) return;
  fmt::print("{}\n", title);
  for (std::size_t r = 0; r < lines.size(); ++r) fmt::print("  rank {}  {}\n", r, lines[r]);
  fmt::print("\n");
}

// Rank r has r1 r2 r3 …, with r counted from 1: the tens name the rank, the ones the position.
at::Tensor mine(const Communicator& c, std::int64_t n) {
  return at::arange(1, n + 1, at::kFloat) + 10 * (c.rank() + 1);
}

void run(Communicator& c) {
  const int n = c.size();
  at::Tensor t = mine(c, 3);
  c.broadcast(t, /*root=*/1, Purpose::kSetup).wait();
  show(c, "broadcast from rank 1: everybody gets rank 1's", mine(c, 3), t);

  t = mine(c, 3);
  c.reduce(t, /*root=*/0, Purpose::kSetup, ReduceOp::kSum).wait();
  show(c, "reduce to rank 0: rank 0 gets the sum", mine(c, 3), t);

  at::Tensor reduced = mine(c, 6);
  c.all_reduce(reduced, Purpose::kSetup, ReduceOp::kSum).wait();
  show(c, "all-reduce: everybody gets the sum", mine(c, 6), reduced);

  at::Tensor piece = at::zeros({2});
  c.reduce_scatter(piece, mine(c, 2 * n), Purpose::kSetup, ReduceOp::kSum).wait();
  show(c, "reduce-scatter: rank r gets piece r of the sum", mine(c, 2 * n), piece);

  at::Tensor whole = at::zeros({2 * n});
  c.all_gather(whole, piece, Purpose::kSetup).wait();
  show(c, "all-gather: everybody gets everybody's piece", piece, whole);

  at::Tensor swapped = at::zeros({n});
  c.all_to_all(swapped, mine(c, n), Purpose::kSetup).wait();
  show(c, "all-to-all: piece p of rank r becomes piece r of rank p", mine(c, n), swapped);

  // ZeRO is built on this equality.
  if (!at::equal(whole, reduced)) {
    throw zero::Error("reduce-scatter and all-gather gave something else than all-reduce");
  }
  if (c.rank() == 0) fmt::print("reduce-scatter + all-gather = all-reduce: checked\n");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Shows what each collective makes of what three ranks have. It has no options."};
  CLI11_PARSE(app, argc, argv);
  return zero::run_program("collectives", [&] {
    const auto exits = zero::dist::launch_ranks({.world_size = 3}, [](Communicator& c) {
      run(c);
      return std::string();
    });
    zero::dist::check_all_well(exits);
    return 0;
  });
}
