#include <ATen/OpMathType.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include <zero/base/error.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/cross_entropy.hpp>
#include <zero/nn/once_differentiable.hpp>

namespace zero::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Calls function(first row, number of rows) over all rows.
template <class F>
void for_each_block(const at::Tensor& logits, F function) {
  const std::int64_t rows = logits.size(0);
  const std::int64_t block = cross_entropy_rows(logits.device(), logits.size(1));
  for (std::int64_t first = 0; first < rows; first += block) {
    function(first, std::min(block, rows - first));
  }
}

// `classes` [N, 1]: targets, 0 for one that is ignored. On a device the kernel that reads them
// checks them; a check here would make the host wait in every forward.
void require_classes(const at::Tensor& classes, std::int64_t count) {
  if (classes.numel() == 0 || !classes.is_cpu()) return;
  const auto [smallest, largest] = at::aminmax(classes);
  const auto low = smallest.item<std::int64_t>(), high = largest.item<std::int64_t>();
  if (low >= 0 && high < count) return;
  throw Error(fmt::format("a target is {}, but must be a class, 0 to {}, or {} to be ignored",
                          low < 0 ? low : high, count - 1, kIgnoredTarget));
}

// Makes the logarithm of each row's sum, and its target's logit (0 on ranks that do not have it),
// those of the classes of all ranks. In rank order, so that all ranks get the same bits.
void combine(at::Tensor& log_sums, at::Tensor& of_targets, dist::Communicator& axis) {
  const at::Tensor mine = at::stack({log_sums, of_targets});  // [2, N]
  const at::Tensor all = at::empty({axis.size(), 2, mine.size(1)}, mine.options());
  axis.all_gather(all, mine, dist::Purpose::kActivation).wait();
  log_sums = all.select(1, 0).logsumexp(0);
  of_targets = all.select(1, 1).sum(0);
}

struct CrossEntropyFunction : Function<CrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& targets, double divisor, dist::Communicator* axis) {
    const at::Tensor counted = targets.ne(kIgnoredTarget);
    at::Tensor classes = targets.where(counted, 0).unsqueeze(1);  // [N, 1]
    at::Tensor here = counted;  // rows whose target is a class of this rank
    if (axis == nullptr) {
      require_classes(classes, logits.size(1));
    } else {
      require_classes(classes, logits.size(1) * axis->size());
      classes = classes - axis->rank() * logits.size(1);
      const at::Tensor own = classes.ge(0).logical_and_(classes.lt(logits.size(1)));
      here = own.squeeze(1).logical_and_(counted);
      classes = classes.where(own, 0);
    }
    const at::ScalarType wide = at::toOpMathType(logits.scalar_type());
    at::Tensor log_sums = at::empty({logits.size(0)}, logits.options().dtype(wide));
    for_each_block(logits, [&](std::int64_t first, std::int64_t rows) {
      log_sums.narrow(0, first, rows).copy_(logits.narrow(0, first, rows).to(wide).logsumexp(1));
    });
    at::Tensor of_targets = logits.gather(1, classes).squeeze(1).to(wide);
    if (axis != nullptr) {
      of_targets = of_targets.where(here, 0);
      combine(log_sums, of_targets, *axis);
    }
    const at::Tensor losses = log_sums - of_targets;
    context->save_for_backward({logits, classes, counted, log_sums, here});
    context->saved_data["divisor"] = divisor;
    return losses.where(counted, 0).sum().div_(divisor);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_once_differentiable("consuming_cross_entropy");
    if (context->saved_data.count("consumed") != 0) {
      throw Error(
          "backward ran twice through one loss: its logits were overwritten the first time; "
          "run forward again");
    }
    context->saved_data["consumed"] = true;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &classes = saved[1], &counted = saved[2], &log_sums = saved[3];
    const at::Tensor here = saved[4].unsqueeze(1);
    // Below autograd: other functions that saved the logits do not need their values any more.
    const at::Tensor logits = memory::raw(saved[0]);
    const double divisor = context->saved_data["divisor"].toDouble();
    const at::Tensor scales =
        (counted.to(log_sums.scalar_type()) * (gradients[0] / divisor)).unsqueeze(1);  // [N, 1]
    for_each_block(logits, [&](std::int64_t first, std::int64_t rows) {
      const at::Tensor block = logits.narrow(0, first, rows);
      const at::Tensor scale = scales.narrow(0, first, rows);
      at::Tensor softmax = block.to(log_sums.scalar_type());  // `block` itself if it is wide
      softmax.sub_(log_sums.narrow(0, first, rows).unsqueeze(1)).exp_().mul_(scale);
      softmax.scatter_add_(1, classes.narrow(0, first, rows),
                           scale.neg().where(here.narrow(0, first, rows), 0));
      if (!softmax.is_same(block)) block.copy_(softmax);
    });
    return {logits, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

std::int64_t cross_entropy_rows(at::Device device, std::int64_t classes) {
  const std::int64_t elements = device.is_cpu() ? 1 << 20 : 1 << 25;
  return std::max<std::int64_t>(1, elements / classes);
}

at::Tensor consuming_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                   std::int64_t terms, dist::Communicator* axis) {
  TORCH_INTERNAL_ASSERT(logits.dim() == 2 && logits.is_contiguous() && targets.dim() == 1 &&
                        targets.size(0) == logits.size(0));
  return CrossEntropyFunction::apply(logits, targets,
                                     static_cast<double>(std::max<std::int64_t>(terms, 1)), axis);
}

}  // namespace zero::nn
