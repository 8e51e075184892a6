#include <zero/train/cost_sums.hpp>

namespace zero::train {

CostSums::CostSums(const Strategy& strategy) : others(strategy.communicator().size() - 1) {
  const dist::Communicator& communicator = strategy.communicator();
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const nn::Parameter& p = strategy.list().parameters[i];
    const bool owns = strategy.owns(i);
    parameters += p.bytes();
    if (owns) own_parameters += p.bytes();
    const at::Tensor mine = strategy.placement(i).updated.tensor;
    const bool trains = p.tensor.requires_grad();
    if (mine.defined() && (trains || strategy.optimizer().steps(mine) > 0)) {
      optimizer += strategy.optimizer().state_bytes(mine);
    }
    if (!trains) continue;
    const std::int64_t element =
        communicator.reduced_element_size(p.tensor.scalar_type(), strategy.reduction().type);
    trainable += p.bytes();
    reduced += p.numel() * element;
    all_reduced +=
        dist::all_reduce_bytes(p.numel(), element, communicator.rank(), communicator.size());
    if (!owns) continue;
    own_trainable += p.bytes();
    own_reduced += p.numel() * element;
  }
  optimizer = strategy.optimizer().resident_bytes(optimizer);
}

}  // namespace zero::train
