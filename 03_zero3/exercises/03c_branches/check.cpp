// Compares the owned weights after each step with those that one process computes for all ranks.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "03c.hpp"

namespace exercise_03c {

using zero::dist::Communicator;
using zero::exercise::Mistake;

constexpr int kSteps = 4;

Model first_model() {
  at::manual_seed(0);
  Model model;
  for (const auto& shape : kShapes) {
    model.main.push_back(at::randn(shape) * 0.3);
    model.extra.push_back(at::randn(shape) * 0.3);
  }
  return model;
}

// In step 0 all ranks take all branches, in step 1 every second, in step 2 rank 0 alone, in step 3
// none.
Batch batch_of(int rank, int step) {
  at::manual_seed(100 * step + rank);
  Batch batch;
  batch.inputs = at::randn({5, kShapes[0][0]});
  batch.targets = at::randn({5, kShapes[kLayers - 1][1]});
  for (int layer = 0; layer < kLayers; ++layer) {
    const bool takes[] = {true, (rank + layer) % 2 == 0, rank == 0, false};
    batch.takes_branch.push_back(takes[step]);
  }
  return batch;
}

// What the gradient of `extra` may wrongly be.
enum class Extra { kRight, kAllTakeTheBranch, kOwnerAlone };

// Autograd computes the gradients of one rank's batch.
Model gradients_of(const Model& whole, const Batch& batch, bool all_take_the_branch) {
  Model leaves, gradients;
  at::Tensor x = batch.inputs;
  for (int layer = 0; layer < kLayers; ++layer) {
    leaves.main.push_back(whole.main[layer].clone().requires_grad_());
    leaves.extra.push_back(whole.extra[layer].clone().requires_grad_());
    // With a factor of 1 or 0: the gradient of a branch that was not taken is 0.
    const at::Tensor extra =
        batch.takes_branch[layer] ? leaves.extra.back() : leaves.extra.back() * 0;
    x = (x.mm(leaves.main.back()) + x.mm(extra)).tanh();
  }
  ((x - batch.targets).square().sum() / 2).backward();
  for (int layer = 0; layer < kLayers; ++layer) {
    gradients.main.push_back(leaves.main[layer].grad());
    gradients.extra.push_back((all_take_the_branch ? leaves.main : leaves.extra)[layer].grad());
  }
  return gradients;
}

Model after_step(Model whole, int ranks, int step, Extra extra) {
  const Model before = whole;
  for (int layer = 0; layer < kLayers; ++layer) {
    whole.main[layer] = whole.main[layer].clone();
    whole.extra[layer] = whole.extra[layer].clone();
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const Model g = gradients_of(before, batch_of(rank, step), extra == Extra::kAllTakeTheBranch);
    for (int layer = 0; layer < kLayers; ++layer) {
      whole.main[layer] -= kLearningRate / ranks * g.main[layer];
      const double alone = layer % ranks == rank ? 1.0 : 0.0;
      whole.extra[layer] -=
          kLearningRate * (extra == Extra::kOwnerAlone ? alone : 1.0 / ranks) * g.extra[layer];
    }
  }
  return whole;
}

bool is_about(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() < 1e-5;
}

void check_weights(const Model& mine, const Model& before, int layer, int ranks, int step) {
  const Model right = after_step(before, ranks, step, Extra::kRight);
  if (!is_about(mine.main[layer], right.main[layer])) {
    throw Mistake(
        fmt::format("after step {} the main weight of layer {} is not right", step, layer));
  }
  if (is_about(mine.extra[layer], right.extra[layer])) return;
  const auto looks_like = [&](Extra extra) {
    return is_about(mine.extra[layer], after_step(before, ranks, step, extra).extra[layer]);
  };
  const std::string begin =
      fmt::format("after step {} the extra weight of layer {} is not right: ", step, layer);
  if (looks_like(Extra::kAllTakeTheBranch)) {
    throw Mistake(begin + "it is updated as if every rank had taken its branch");
  }
  if (looks_like(Extra::kOwnerAlone)) {
    throw Mistake(begin + "it is updated by the gradient of its owner alone");
  }
  throw Mistake(begin + (mine.extra[layer].equal(before.extra[layer])
                             ? "it has not changed"
                             : "is its gradient the average over all ranks?"));
}

void check_step(const Answer& answer, Communicator& communicator, Model& mine, Model& whole,
                int step) {
  const int ranks = communicator.size();
  const int rank = communicator.rank();
  const zero::dist::Traffic before = communicator.traffic();
  answer.train_step(communicator, mine, batch_of(rank, step));
  std::int64_t not_owned = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    if (layer % ranks == rank) {
      check_weights(mine, whole, layer, ranks, step);
      continue;
    }
    not_owned += 2 * 4 * kShapes[layer][0] * kShapes[layer][1];
    if (mine.main[layer].defined() || mine.extra[layer].defined()) {
      throw Mistake(
          fmt::format("after step {} rank {} still holds weights of layer {}, which it "
                      "does not own",
                      step, rank, layer));
    }
  }
  const auto sent = communicator.traffic().since(before).bytes(zero::dist::Purpose::kGradient);
  if (sent > not_owned) {
    throw Mistake(fmt::format(
        "rank {} sends {} bytes of gradients in a step, and one reduce of each weight to its owner "
        "is {}",
        rank, sent, not_owned));
  }
  whole = after_step(whole, ranks, step, Extra::kRight);
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& communicator) {
    Model whole = first_model();
    Model mine = whole;
    for (int layer = 0; layer < kLayers; ++layer) {
      mine.main[layer] = mine.main[layer].clone();
      mine.extra[layer] = mine.extra[layer].clone();
      reshard(communicator, mine, layer);
    }
    for (int step = 0; step < kSteps; ++step) check_step(answer, communicator, mine, whole, step);
  });
}

}  // namespace exercise_03c
