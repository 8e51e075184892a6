#include <ATen/ops/empty.h>
#include <c10/core/WrapDimMinimal.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/nn/once_differentiable.hpp>
#include <zero/nn/tensor_parallel.hpp>

namespace zero::nn {
namespace {

using dist::Communicator;
using dist::Purpose;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr std::int64_t kSequence = 1;  // of [B, S, ...]

// What the functions do, without autograd.

at::Tensor all_reduced(const at::Tensor& x, Communicator& axis) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);  // x may be read elsewhere
  axis.all_reduce(sum, Purpose::kActivation, dist::ReduceOp::kSum).wait();
  return sum;
}

at::Tensor all_gathered(const at::Tensor& x, std::int64_t dim, Communicator& axis) {
  const at::Tensor mine = x.contiguous();
  std::vector<std::int64_t> sizes = mine.sizes().vec();
  sizes.insert(sizes.begin(), axis.size());
  const at::Tensor all = at::empty(sizes, mine.options());
  axis.all_gather(all, mine, Purpose::kActivation).wait();
  return all.movedim(0, dim).flatten(dim, dim + 1);
}

at::Tensor part_of(const at::Tensor& x, std::int64_t dim, Communicator& axis) {
  return TensorPlacement{&axis, static_cast<int>(dim)}.part_of(x);
}

at::Tensor reduce_scattered(const at::Tensor& x, std::int64_t dim, Communicator& axis) {
  // The parts one after the other.
  const at::Tensor parts =
      x.unflatten(dim, {axis.size(), x.size(dim) / axis.size()}).movedim(dim, 0).contiguous();
  const at::Tensor sum = at::empty(parts.sizes().slice(1), parts.options());
  axis.reduce_scatter(sum, parts, Purpose::kActivation, dist::ReduceOp::kSum).wait();
  return sum;
}

void require_equal_parts(std::int64_t size, std::int64_t dim, const Communicator& axis) {
  if (size % axis.size() == 0) return;
  throw Error(fmt::format(
      "dimension {} has {} elements, which cannot be split evenly over {} ranks of the tensor "
      "axis{}",
      dim, size, axis.size(),
      dim == kSequence ? ": under sequence parallelism a batch needs a multiple of as many tokens"
                       : ""));
}

using Map = std::function<at::Tensor(const at::Tensor&)>;

struct Pair : torch::CustomClassHolder {
  Pair(Map f, Map b) : forward(std::move(f)), backward(std::move(b)) {}
  Map forward, backward;
};

// A linear function of a tensor, and the one that maps its gradients.
struct AxisFunction : Function<AxisFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<Pair>& pair) {
    context->saved_data["pair"] = c10::IValue::make_capsule(pair);
    return pair->forward(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_once_differentiable("a function of a tensor axis");
    const auto holder = context->saved_data["pair"].toCapsule();
    return {static_cast<const Pair&>(*holder).backward(gradients[0]), at::Tensor()};
  }
};

at::Tensor apply(const at::Tensor& x, Map forward, Map backward) {
  return AxisFunction::apply(x, c10::make_intrusive<Pair>(std::move(forward), std::move(backward)));
}

at::Tensor unchanged(const at::Tensor& x) { return x.view_as(x); }

}  // namespace

at::Tensor copy_to_axis(const at::Tensor& x, Communicator& axis) {
  return apply(x, unchanged, [&axis](const at::Tensor& g) { return all_reduced(g, axis); });
}

at::Tensor reduce_over_axis(const at::Tensor& x, Communicator& axis) {
  return apply(
      x, [&axis](const at::Tensor& t) { return all_reduced(t, axis); }, unchanged);
}

at::Tensor gather_over_axis(const at::Tensor& x, std::int64_t dim, Communicator& axis,
                            Uncut gradient) {
  dim = c10::maybe_wrap_dim(dim, x.dim());
  const bool sums = gradient == Uncut::kPartial;
  return apply(
      x, [&axis, dim](const at::Tensor& t) { return all_gathered(t, dim, axis); },
      [&axis, dim, sums](const at::Tensor& g) {
        return sums ? reduce_scattered(g, dim, axis) : part_of(g, dim, axis);
      });
}

at::Tensor scatter_over_axis(const at::Tensor& x, std::int64_t dim, Communicator& axis,
                             Uncut x_is) {
  dim = c10::maybe_wrap_dim(dim, x.dim());
  require_equal_parts(x.size(dim), dim, axis);
  const bool sums = x_is == Uncut::kPartial;
  return apply(
      x,
      [&axis, dim, sums](const at::Tensor& t) {
        // A copy of its own: a view would keep all of x.
        return sums ? reduce_scattered(t, dim, axis) : part_of(t, dim, axis).clone();
      },
      [&axis, dim](const at::Tensor& g) { return all_gathered(g, dim, axis); });
}

std::int64_t TensorParallel::positions(std::int64_t tokens) const {
  if (!cuts_sequence()) return tokens;
  require_equal_parts(tokens, kSequence, *axis);
  return tokens / axis->size();
}

at::Tensor TensorParallel::enter(const at::Tensor& x) const {
  if (axis == nullptr) return x;
  return sequence ? gather_over_axis(x, kSequence, *axis) : copy_to_axis(x, *axis);
}

at::Tensor TensorParallel::leave(const at::Tensor& x) const {
  if (axis == nullptr) return x;
  return sequence ? scatter_over_axis(x, kSequence, *axis) : reduce_over_axis(x, *axis);
}

at::Tensor TensorParallel::whole(const at::Tensor& x) const {
  return cuts_sequence() ? gather_over_axis(x, kSequence, *axis, Uncut::kSame) : x;
}

}  // namespace zero::nn
