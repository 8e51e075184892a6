#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <zero/base/error.hpp>
#include <zero/distributed/sum_by_operations.hpp>

namespace zero::dist {

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

}  // namespace zero::dist
