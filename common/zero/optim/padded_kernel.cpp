#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>

#include <zero/memory/accounting.hpp>
#include <zero/optim/padded_kernel.hpp>

namespace zero::optim {
namespace {

constexpr std::int64_t kVector = 16;
constexpr std::size_t kGradient = 1;

// A device computes all elements of a tensor alike.
std::int64_t tail_of(const Operands& operands) {
  return operands.front().is_cpu() ? operands.front().numel() % kVector : 0;
}

// Copies between the tails of all parameters and their places in the scratch.
void copy_tails(const std::vector<Operands>& parameters, std::size_t operand,
                const at::Tensor& scratch, bool into_scratch) {
  std::vector<at::Tensor> theirs, ours;
  for (const Operands& operands : parameters) {
    const std::int64_t tail = tail_of(operands);
    if (tail == 0) continue;
    const at::Tensor& whole = operands[operand];
    ours.push_back(scratch.narrow(0, static_cast<std::int64_t>(ours.size()) * kVector, tail));
    theirs.push_back(whole.narrow(0, whole.numel() - tail, tail));
  }
  into_scratch ? at::_foreach_copy_(ours, theirs) : at::_foreach_copy_(theirs, ours);
}

}  // namespace

void run_padded(const std::vector<Operands>& parameters,
                const std::function<void(const std::vector<std::vector<at::Tensor>>&)>& kernel) {
  if (parameters.empty()) return;
  const std::size_t operands = parameters.front().size();
  std::vector<std::vector<at::Tensor>> lists(operands);
  std::int64_t scratch_elements = 0;
  for (const Operands& p : parameters) {
    const std::int64_t tail = tail_of(p), body = p.front().numel() - tail;
    if (tail != 0) scratch_elements += kVector;
    if (body == 0) continue;
    for (std::size_t i = 0; i < operands; ++i) {
      lists[i].push_back(tail == 0 ? p[i] : p[i].narrow(0, 0, body));
    }
  }
  std::vector<at::Tensor> scratch;
  if (scratch_elements > 0) {
    const memory::Charge charge(memory::Category::kOther);
    for (std::size_t i = 0; i < operands; ++i) {
      scratch.push_back(at::zeros({scratch_elements}, parameters.front()[i].options()));
      copy_tails(parameters, i, scratch[i], /*into_scratch=*/true);
      lists[i].push_back(scratch[i]);
    }
  }
  if (!lists.front().empty()) kernel(lists);
  for (std::size_t i = 0; i < scratch.size(); ++i) {
    if (i != kGradient) copy_tails(parameters, i, scratch[i], /*into_scratch=*/false);
  }
}

}  // namespace zero::optim
