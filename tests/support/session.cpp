#include "session.hpp"

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "deferred.hpp"

namespace zero::testing {

std::vector<std::string> all_strategies() {
  tools::Registry registry;
  tools::register_all_chapters(registry);
  std::vector<std::string> names;
  for (const tools::StrategyEntry& entry : registry.entries()) {
    if (!entry.rounds) names.push_back(entry.name);
  }
  return names;
}

bool gathers_by_unit(const std::string& mode) {
  const std::string name = mode.substr(0, mode.find(':'));
  return (name.ends_with("3") || name == "hpz") && !mode.ends_with(":whole");
}

Session::Session(dist::Communicator& communicator, const std::string& mode, SessionOptions options)
    : communicator_(communicator), options_(std::move(options)), values_(options_.seed) {
  model_ = make_deferred<RandomModel>(options_.model);
  strategy_ = make_strategy(mode, {*model_, communicator, options_.optimizer, &values_, "",
                                   options_.accumulation, options_.reduce_type});
  trainer_ = std::make_unique<tools::Trainer>(*strategy_, losses_of(*strategy_), options_.trainer);
}

Session::Session(dist::Communicator& communicator, const std::string& mode)
    : Session(communicator, mode, SessionOptions()) {}

std::vector<at::Tensor> Session::weights() { return whole_weights(*strategy_); }

std::vector<at::Tensor> whole_gradients(train::Strategy& strategy) {
  const std::vector<nn::Parameter>& parameters = strategy.list().parameters;
  const std::int64_t elements = strategy.list().numel(), count = std::ssize(parameters);
  // Each element has one owner: the others add zeros to it, in double, which holds every gradient
  // exactly. Behind all elements stands how many ranks have a gradient of each parameter.
  const at::Tensor all = at::zeros({elements + count}, at::kDouble);
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const train::ParameterShard mine = strategy.placement(static_cast<std::size_t>(i)).updated;
    if (mine.tensor.defined() && mine.tensor.grad().defined()) {
      const at::Tensor gradient = mine.tensor.grad().flatten();
      all.narrow(0, offset + mine.begin, gradient.numel()).copy_(gradient);
      all[elements + i].fill_(1);
    }
    offset += parameters[static_cast<std::size_t>(i)].numel();
  }
  if (dist::Communicator* const group = strategy.placements().group) {
    group->all_reduce(all, dist::Purpose::kControl, dist::ReduceOp::kSum).wait();
  }
  std::vector<at::Tensor> whole;
  offset = 0;
  for (const nn::Parameter& p : parameters) {
    const at::Tensor gradient = all.narrow(0, offset, p.numel()).view(p.tensor.sizes());
    const bool held = all[elements + std::ssize(whole)].item<double>() > 0;
    whole.push_back(held ? gradient.to(p.tensor.scalar_type(), false, /*copy=*/true)
                         : at::Tensor());
    offset += p.numel();
  }
  return whole;
}

::testing::AssertionResult close_to(const std::vector<at::Tensor>& a,
                                    const std::vector<at::Tensor>& b, double tolerance) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "different numbers of tensors";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].defined() && !b[i].defined()) continue;
    const at::Tensor ours = a[i].defined() ? a[i] : at::zeros_like(b[i]);
    const at::Tensor theirs = b[i].defined() ? b[i] : at::zeros_like(a[i]);
    const double off = (ours - theirs).abs().max().item<double>();
    const double largest = theirs.abs().max().item<double>();
    if (!(off <= tolerance * largest)) {
      return ::testing::AssertionFailure()
             << fmt::format("tensor {} is off by {} where the largest is {}", i, off, largest);
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace zero::testing
