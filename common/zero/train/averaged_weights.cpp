#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/kept_error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/weight_average.hpp>
#include <zero/train/averaged_weights.hpp>

namespace zero::train {
namespace {

// Writes `values`, by parameter, into what this rank updates; returns what was there.
std::vector<at::Tensor> put_in(Strategy& strategy, const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  const memory::Charge charge(memory::Category::kParameters);
  // Units that a forward has left whole would hide the new values.
  for (std::size_t u = 0; u < strategy.list().units.size(); ++u) strategy.reshard(u);
  std::vector<at::Tensor> before(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    strategy.bring_shard(i);  // of all: after a load that failed it throws on every rank
    if (!values[i].defined()) continue;
    const at::Tensor mine = memory::raw(strategy.piece(i).tensor).view({-1});
    before[i] = mine.clone();
    mine.copy_(values[i]);
  }
  strategy.sync_parameters();
  strategy.passes().weights_changed();
  return before;
}

}  // namespace

void with_averaged_weights(Strategy& strategy, const std::function<void()>& function) {
  dist::Communicator& ranks = strategy.mesh().world();
  const dist::CallScope call(ranks, "train::with_averaged_weights");
  std::vector<at::Tensor> averages(strategy.list().size());
  dist::run_on_all_ranks(ranks, "the averaged weights cannot be shown", [&] {
    for (std::size_t i = 0; i < averages.size(); ++i) {
      if (strategy.stage_of_model().is_copy(i)) {
        throw Error("the first and the last stage share a parameter, and only one averages it");
      }
      const at::Tensor mine = strategy.piece(i).tensor;
      if (mine.defined()) averages[i] = optim::weight_average(strategy.optimizer(), mine);
    }
  });
  const std::vector<at::Tensor> weights = put_in(strategy, averages);
  base::KeptError problem;
  problem.keep(function);
  put_in(strategy, weights);
  dist::run_on_all_ranks(ranks, "under the averaged weights", [&] { problem.rethrow(); });
}

}  // namespace zero::train
