// Losses of many kinds: several heads, several views, noise, recurrence, ties.

#include <ATen/ops/arange.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "net.hpp"
#include "player.hpp"

namespace zero::testing::loops {
namespace {

using Objective = std::function<at::Tensor(Net& net, int step, const data::Batch& batch)>;

// Trains a net on `objective` for some steps. Random numbers of LibTorch's own generator differ
// from rank to rank and from step to step.
Tensors trained_on(
    Player& player, const Objective& objective, bool labels = true,
    const std::function<void(Net&)>& prepare = [](Net&) {}) {
  auto net = std::make_shared<Net>();
  prepare(*net);
  int step = 0;
  net->objective = [&](const data::Batch& batch) { return objective(*net, step, batch); };
  Trained& trained = player.train(net, adam());
  for (; step < 4; ++step) {
    trained.backward([&](int r) {
      torch::manual_seed(static_cast<std::uint64_t>(1000 * r + step));
      return trained.forward(labels ? labelled(r, step) : batch_of(r, step));
    });
    trained.step();
  }
  return trained.weights();
}

Tensors label_smoothing(Player& player) {
  return trained_on(player, [](Net& net, int, const data::Batch& batch) {
    return at::cross_entropy_loss(net.outputs(batch.inputs), batch.targets, {}, at::Reduction::Mean,
                                  /*ignore_index=*/-100,
                                  /*label_smoothing=*/0.1);
  });
}

// Focal loss (Lin et al. 2017) with weights of classes.
Tensors focal_loss(Player& player) {
  return trained_on(player, [](Net& net, int, const data::Batch& batch) {
    const at::Tensor logs = net.outputs(batch.inputs).log_softmax(1);
    const at::Tensor focused = (1 - logs.exp()).square() * logs;
    return at::nll_loss(focused, batch.targets, at::tensor({1.0F, 2.0F, 0.5F}));
  });
}

// Two views of a batch, each of which must find the other (SimCLR, Chen et al. 2020).
Tensors contrastive_views(Player& player) {
  return trained_on(player, [](Net& net, int, const data::Batch& batch) {
    const auto view = [&] {
      const at::Tensor moved = batch.inputs + 0.1 * at::randn_like(batch.inputs);
      const at::Tensor z = net.outputs(moved);
      return z / z.norm(2, {1}, /*keepdim=*/true);
    };
    const at::Tensor first = view(), second = view();
    const at::Tensor alike = first.matmul(second.t()) / 0.5, self = at::arange(kSamples);
    return at::cross_entropy_loss(alike, self) + at::cross_entropy_loss(alike.t(), self);
  });
}

// One view predicts the other, which has no gradient (SimSiam, Chen and He 2021).
Tensors stopped_gradient(Player& player) {
  return trained_on(player, [](Net& net, int, const data::Batch& batch) {
    const at::Tensor moved = batch.inputs + 0.1 * at::randn_like(batch.inputs);
    const at::Tensor one = net.features(batch.inputs), other = net.features(moved);
    const auto distance = [&](const at::Tensor& x, const at::Tensor& target) {
      return at::mse_loss(net.last->forward(x), target.narrow(1, 0, kOutputs).detach());
    };
    return distance(one, other) + distance(other, one);
  });
}

Tensors triplets(Player& player) {
  return trained_on(player, [](Net& net, int, const data::Batch& batch) {
    const at::Tensor anchor = net.outputs(batch.inputs);
    const at::Tensor near = net.outputs(batch.inputs + 0.1 * at::randn_like(batch.inputs));
    const at::Tensor far = net.outputs(batch.inputs.flip(0));
    return ((anchor - near).square().sum(1) - (anchor - far).square().sum(1) + 1).relu().mean();
  });
}

// Tasks whose weights are learned (Kendall et al. 2018); each step uses one of two other heads.
Tensors tasks_with_learned_weights(Player& player) {
  at::Tensor scales;
  std::vector<torch::nn::Linear> heads;
  const auto prepare = [&](Net& net) {
    scales = net.register_parameter("scales", at::zeros({2}));
    for (const char* name : {"head0", "head1"}) {
      heads.push_back(net.register_module(name, torch::nn::Linear(kWidth, 1)));
    }
  };
  const auto objective = [&](Net& net, int step, const data::Batch& batch) {
    const at::Tensor features = net.features(batch.inputs);
    auto& head = heads[static_cast<std::size_t>(step % 2)];
    const at::Tensor losses =
        at::stack({at::cross_entropy_loss(net.last->forward(features), batch.targets),
                   at::binary_cross_entropy_with_logits(head->forward(features).squeeze(1),
                                                        (batch.targets > 0).to(at::kFloat))});
    return (losses * (-scales).exp() + scales).sum();
  };
  return trained_on(player, objective, /*labels=*/true, prepare);
}

// A loss after every block; the earlier ones do not reach the blocks before.
Tensors deep_supervision(Player& player) {
  return trained_on(
      player,
      [](Net& net, int, const data::Batch& batch) {
        at::Tensor x = net.first->forward(batch.inputs), loss = at::zeros({});
        for (const auto& block : net.blocks) {
          x = block->forward(x.detach());
          loss = loss + at::mse_loss(net.last->forward(x), batch.targets);
        }
        return loss + 0.1 * net.first->forward(batch.inputs).square().mean();
      },
      /*labels=*/false);
}

// The encoder's weight is the decoder's too, and half of the code is drawn (Kingma et al. 2014).
Tensors tied_variational_autoencoder(Player& player) {
  return trained_on(
      player,
      [](Net& net, int, const data::Batch& batch) {
        const at::Tensor code = net.features(batch.inputs);
        const at::Tensor mean = code.narrow(1, 0, 3), log_variance = code.narrow(1, 3, 3);
        const at::Tensor drawn = mean + (0.5 * log_variance).exp() * at::randn_like(mean);
        const at::Tensor hidden = at::cat({drawn, code.narrow(1, 3, 4)}, 1);
        const at::Tensor decoded = net.blocks[0]->forward(hidden).matmul(net.first->weight);
        const at::Tensor divergence =
            -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean();
        return at::mse_loss(decoded, batch.inputs) + 0.1 * divergence +
               0.01 * net.last->forward(code).square().mean();
      },
      /*labels=*/false);
}

// Mixed samples (Zhang et al. 2018).
Tensors mixup(Player& player) {
  return trained_on(player, [](Net& net, int, const data::Batch& batch) {
    const at::Tensor share = at::rand({});
    const at::Tensor logits =
        net.outputs(share * batch.inputs + (1 - share) * batch.inputs.flip(0));
    return share * at::cross_entropy_loss(logits, batch.targets) +
           (1 - share) * at::cross_entropy_loss(logits, batch.targets.flip(0));
  });
}

// The mask of dropout is drawn again when the checkpoint runs again.
Tensors dropout_under_checkpoints(Player& player) {
  return trained_on(
      player,
      [](Net& net, int, const data::Batch& batch) {
        return at::mse_loss(net.outputs(batch.inputs), batch.targets);
      },
      /*labels=*/false,
      [](Net& net) {
        for (const auto& block : net.blocks) {
          block->dropout = 0.3;
          block->checkpointed = true;
        }
      });
}

// Backpropagation through pieces of time: a block runs at every time, and the state is cut between
// pieces, each of which is a step.
Tensors truncated_recurrence(Player& player) {
  auto net = std::make_shared<Net>();
  std::map<int, at::Tensor> states;
  Trained& trained = player.train(net, sgd(), {.clip_norm = 1.0});
  for (int piece = 0; piece < 4; ++piece) {
    trained.backward([&](int r) {
      const data::Batch batch = batch_of(r, piece);
      net->objective = [&, r](const data::Batch& now) {
        at::Tensor state = states.contains(r) ? states.at(r) : at::zeros({1, kWidth});
        at::Tensor loss = at::zeros({});
        for (std::int64_t t = 0; t < kSamples; ++t) {
          state = net->blocks[0]->forward(state + net->first->forward(now.inputs.narrow(0, t, 1)));
          state = net->blocks[1]->forward(state);
          loss = loss + at::mse_loss(net->last->forward(state), now.targets.narrow(0, t, 1));
        }
        states[r] = state.detach();
        return loss / kSamples;
      };
      return trained.forward(batch);
    });
    trained.step();
  }
  return trained.weights();
}

// Policy gradient with a value as a baseline and a bonus for entropy.
Tensors policy_gradient(Player& player) {
  torch::nn::Linear value = nullptr;
  return trained_on(
      player,
      [&](Net& net, int, const data::Batch& batch) {
        const at::Tensor features = net.features(batch.inputs);
        const at::Tensor logs = net.last->forward(features).log_softmax(1);
        const at::Tensor action = logs.detach().exp().multinomial(1);
        const at::Tensor reward = (action.squeeze(1) == batch.targets).to(at::kFloat);
        const at::Tensor expected = value->forward(features.detach()).squeeze(1);
        const at::Tensor advantage = (reward - expected).detach();
        return -(logs.gather(1, action).squeeze(1) * advantage).mean() +
               at::mse_loss(expected, reward) + 0.01 * (logs.exp() * logs).sum(1).mean();
      },
      /*labels=*/true,
      [&](Net& net) { value = net.register_module("value", torch::nn::Linear(kWidth, 1)); });
}

// Embeddings that are the last layer too, over some of the words.
Tensors tied_embeddings(Player& player) {
  at::Tensor words;
  return trained_on(
      player,
      [&](Net& net, int, const data::Batch& batch) {
        at::Tensor x = at::embedding(words, batch.targets);
        for (const auto& block : net.blocks) x = block->forward(x);
        return at::cross_entropy_loss(x.matmul(words.t()), batch.targets.flip(0)) +
               0.01 * net.outputs(batch.inputs).square().mean();
      },
      /*labels=*/true,
      [&](Net& net) {
        words = net.register_parameter("words", at::randn({kOutputs, kWidth}));
      });
}

// A gate mixes blocks, all of which run.
Tensors mixture_of_experts(Player& player) {
  return trained_on(player, [](Net& net, int, const data::Batch& batch) {
    const at::Tensor x = net.first->forward(batch.inputs).tanh();
    const at::Tensor gate = net.last->forward(x).softmax(1);
    at::Tensor mixed = at::zeros_like(x);
    for (std::size_t b = 0; b < net.blocks.size(); ++b) {
      const auto share = gate.narrow(1, static_cast<std::int64_t>(b), 1);
      mixed = mixed + share * net.blocks[b]->forward(x);
    }
    return at::cross_entropy_loss(net.last->forward(mixed), batch.targets) +
           gate.mean(0).square().sum();
  });
}

}  // namespace

std::vector<Loop> objective_loops() {
  return {{"label smoothing", label_smoothing},
          {"focal loss", focal_loss},
          {"contrastive views", contrastive_views},
          {"stopped gradient", stopped_gradient},
          {"triplets", triplets},
          {"tasks with learned weights", tasks_with_learned_weights},
          {"deep supervision", deep_supervision},
          {"tied variational autoencoder", tied_variational_autoencoder},
          {"mixup", mixup},
          {"dropout under checkpoints", dropout_under_checkpoints},
          {"truncated recurrence", truncated_recurrence},
          {"policy gradient", policy_gradient},
          {"tied embeddings", tied_embeddings},
          {"mixture of experts", mixture_of_experts}};
}

}  // namespace zero::testing::loops
