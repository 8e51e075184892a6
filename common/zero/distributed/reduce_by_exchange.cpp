#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include <zero/base/error.hpp>
#include <zero/distributed/rank_order.hpp>
#include <zero/distributed/reduce_by_exchange.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {
namespace {

// Elements [begin, begin + length) of a piece, fewer if the piece ends earlier.
at::Tensor cut(const at::Tensor& piece, std::int64_t begin, std::int64_t length) {
  const std::int64_t from = std::min(begin, piece.numel());
  return piece.narrow(0, from, std::min(length, piece.numel() - from));
}

at::Tensor nothing_of(const at::Tensor& tensor) { return tensor.narrow(0, 0, 0); }

}  // namespace

void divide(const at::Tensor& tensor, int divisor) {
  if (divisor == 1) return;
  if (!tensor.is_floating_point()) {
    throw Error("integers cannot be averaged: reduce them with ReduceOp::kSum");
  }
  const at::NoGradGuard no_grad;
  // A tensor, not a number: for a number the GPU's kernel multiplies by its reciprocal.
  at::Tensor(tensor).div_(at::full({}, divisor, tensor.options().requires_grad(false)));
}

void sum_by_operations(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                       int divisor) {
  const at::NoGradGuard no_grad;
  const at::ScalarType wide = at::toOpMathType(output.scalar_type());
  at::Tensor sum = inputs.front().to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) sum.add_(inputs[rank].to(wide));
  divide(sum, divisor);
  at::Tensor(output).copy_(sum);
}

void reduce_by_exchange(const std::vector<at::Tensor>& pieces, const at::Tensor& output, int rank,
                        int divisor, bool gather, const Exchange& exchange) {
  const auto size = pieces.size();
  const auto me = static_cast<std::size_t>(rank);
  const auto element_size = static_cast<std::int64_t>(output.element_size());
  const std::int64_t window =
      std::max<std::int64_t>(1, kScratchBytes / static_cast<std::int64_t>(size) / element_size);
  std::int64_t longest = 0;
  for (const at::Tensor& piece : pieces) longest = std::max(longest, piece.numel());

  for (std::int64_t begin = 0; begin < longest; begin += window) {
    const at::Tensor sum = cut(output, begin, window);
    std::vector<at::Tensor> windows;
    for (const at::Tensor& piece : pieces) windows.push_back(cut(piece, begin, window));
    std::vector<at::Tensor> contributions;
    {
      const memory::Charge charge(memory::Category::kCommunication);
      const at::Tensor scratch =
          at::empty({static_cast<std::int64_t>(size), sum.numel()}, output.options());
      for (std::size_t p = 0; p < size; ++p) {
        contributions.push_back(scratch.select(0, static_cast<std::int64_t>(p)));
      }
    }
    // This rank's own part is not sent.
    std::vector<at::Tensor> incoming = contributions, outgoing = windows;
    incoming[me] = outgoing[me] = nothing_of(output);
    exchange(std::move(incoming), std::move(outgoing));
    contributions[me] = windows[me];
    if (sum.numel() > 0) sum_by_operations(sum, contributions, divisor);
    if (!gather) continue;
    incoming = windows;
    outgoing.assign(size, sum);
    incoming[me] = outgoing[me] = nothing_of(output);
    exchange(std::move(incoming), std::move(outgoing));
  }
}

}  // namespace zero::dist
