#include "03c.hpp"

using exercise_03c::Batch;
using exercise_03c::Model;
using zero::dist::Communicator;
using zero::dist::Purpose;

void train_step(Communicator& communicator, Model& model, const Batch& batch) {
  // Averages the gradient of a weight and updates it, both on the owner alone.
  const auto reduce_and_update = [&](int layer, at::Tensor& weight, const at::Tensor& gradient) {
    const int owner = layer % communicator.size();
    communicator.reduce(gradient, owner, Purpose::kGradient).wait();
    if (owner == communicator.rank()) weight -= exercise_03c::kLearningRate * gradient;
  };

  std::vector<at::Tensor> activations = {batch.inputs};
  for (int layer = 0; layer < exercise_03c::kLayers; ++layer) {
    gather(communicator, model, layer);
    at::Tensor sum = activations[layer].mm(model.main[layer]);
    if (batch.takes_branch[layer]) sum += activations[layer].mm(model.extra[layer]);
    activations.push_back(sum.tanh());
    reshard(communicator, model, layer);
  }

  at::Tensor delta = activations.back() - batch.targets;
  for (int layer = exercise_03c::kLayers - 1; layer >= 0; --layer) {
    gather(communicator, model, layer);
    delta = delta * (1 - activations[layer + 1].square());  // the slope of tanh
    const at::Tensor main_gradient = activations[layer].t().mm(delta);
    const at::Tensor extra_gradient =
        batch.takes_branch[layer] ? main_gradient.clone() : at::zeros_like(main_gradient);
    at::Tensor below = delta.mm(model.main[layer].t());
    if (batch.takes_branch[layer]) below += delta.mm(model.extra[layer].t());
    delta = below;
    reshard(communicator, model, layer);
    reduce_and_update(layer, model.main[layer], main_gradient);
    reduce_and_update(layer, model.extra[layer], extra_gradient);
  }
}
