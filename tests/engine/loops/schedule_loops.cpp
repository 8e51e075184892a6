// What changes from step to step: rates, what is trained, data, and weights that follow others.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/smooth_l1_loss.h>

#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <tuple>

#include "net.hpp"
#include "player.hpp"

namespace zero::testing::loops {
namespace {

void step(Trained& trained, int number) {
  trained.backward([&](int r) { return trained.forward(batch_of(r, number)); });
  trained.step();
}

double evaluation(Player& player, Trained& trained) {
  const at::NoGradGuard no_grad;
  return player.mean([&](int r) { return trained.forward(batch_of(r, 1000)).item<double>(); });
}

Parts parts_of(Trained& trained) {
  Parts parts;
  trained.change([&](std::size_t i, const at::Tensor& values, const at::Tensor&, std::int64_t) {
    parts[i] = values.clone();
  });
  return parts;
}

void set_parts(Trained& trained, const Parts& parts) {
  trained.change([&](std::size_t i, const at::Tensor& values, const at::Tensor&, std::int64_t) {
    values.copy_(parts.at(i));
  });
}

void freeze(torch::nn::Module& module, bool frozen) {
  for (at::Tensor& p : module.parameters()) p.requires_grad_(!frozen);
}

// Warm-up, cosine, and a restart.
Tensors cosine_schedule(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < 6; ++s) {
    const double phase = (s % 3) / 3.0;
    trained.set_learning_rate(s == 0 ? 1e-3 : 0.02 * (1 + std::cos(std::numbers::pi * phase)));
    step(trained, s);
  }
  return trained.weights();
}

// The rate grows until the loss does; then training begins with a tenth of it, from the old
// weights.
Tensors learning_rate_finder(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, wrapped<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
  const Parts begin = parts_of(trained);
  double rate = 0.05, best = std::numeric_limits<double>::infinity(), rate_of_best = rate;
  for (int s = 0; s < 6; ++s, rate *= 3) {
    trained.set_learning_rate(rate);
    step(trained, s);
    const double loss = evaluation(player, trained);
    if (loss < best) {
      best = loss;
      rate_of_best = rate;
    }
    if (loss > 4 * best) break;
  }
  set_parts(trained, begin);
  trained.set_learning_rate(rate_of_best / 10);
  for (int s = 0; s < 3; ++s) step(trained, s);
  return joined(trained.weights(), {at::full({}, best, at::kDouble)});
}

// Ends with the best weights of an evaluation on all ranks.
Tensors early_stopping(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd(0.6));
  double best = std::numeric_limits<double>::infinity();
  Parts kept;
  int bad = 0, s = 0;
  for (; s < 12 && bad < 3; ++s) {
    step(trained, s);
    const double loss = evaluation(player, trained);
    ++bad;
    if (loss >= best) continue;
    best = loss;
    bad = 0;
    kept = parts_of(trained);
  }
  set_parts(trained, kept);
  return joined(trained.weights(), {at::full({}, s), at::full({}, best, at::kDouble)});
}

// A mean teacher (Tarvainen et al. 2017): an average of the weights teaches by its predictions.
Tensors average_teacher(Player& player) {
  auto net = std::make_shared<Net>(), teacher = std::make_shared<Net>();
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < 4; ++s) {
    trained.backward([&](int r) {
      const data::Batch batch = batch_of(r, s);
      const at::Tensor moved = batch.inputs + 0.1 * noise({kSamples, kInputs}, r, s, 12);
      at::Tensor taught;
      {
        const at::NoGradGuard no_grad;
        taught = teacher->predict(moved);
      }
      return trained.forward(batch) + at::mse_loss(net->predict(batch.inputs), taught);
    });
    trained.step();
    const at::NoGradGuard no_grad;
    const Tensors weights = trained.weights();
    const Tensors averages = teacher->parameters();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      at::Tensor(averages[i]).mul_(0.9).add_(weights[i], 0.1);
    }
  }
  return joined(trained.weights(), teacher->parameters());
}

// The mean of the weights at the ends of cycles (SWA, Izmailov et al. 2018), put into the model.
Tensors stochastic_weight_averaging(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd());
  Parts sum;
  for (int s = 0; s < 6; ++s) {
    step(trained, s);
    if (s % 2 == 0) continue;
    for (const auto& [i, values] : parts_of(trained)) {
      sum[i] = sum.contains(i) ? sum.at(i) + values : values;
    }
  }
  for (auto& [i, values] : sum) values.div_(3);
  set_parts(trained, sum);
  return joined(trained.weights(), {at::full({}, evaluation(player, trained), at::kDouble)});
}

// From the head down: blocks thaw one after the other. All were trainable when the engine was made.
Tensors gradual_thawing(Player& player) {
  auto net = std::make_shared<Net>(NetOptions{.blocks = 3});
  Trained& trained = player.train(net, adam());
  freeze(*net->first, true);
  for (const auto& block : net->blocks) freeze(*block, true);
  for (int s = 0; s < 5; ++s) {
    if (s > 0 && s < 4) freeze(*net->blocks[static_cast<std::size_t>(3 - s)], false);
    if (s == 4) freeze(*net->first, false);
    step(trained, s);
  }
  return trained.weights();
}

// A curriculum freezes what it has learned, in the middle of a run, and a single bias.
Tensors freezing_on_the_way(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, adam(), {.accumulation_steps = 2});
  for (int m = 0; m < 8; ++m) {
    if (m == 2) freeze(*net->blocks[0], true);
    if (m == 4) net->last->bias.requires_grad_(false);
    if (m == 6) freeze(*net->blocks[0], false);
    step(trained, m);
  }
  return trained.weights();
}

// Frozen between forward() and backward(): autograd gives a frozen parameter no gradient.
Tensors freezing_before_backward(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd());
  for (int s = 0; s < 4; ++s) {
    std::map<int, at::Tensor> losses;
    for (const int r : player.ranks()) losses[r] = trained.forward(batch_of(r, s));
    freeze(*net->blocks[static_cast<std::size_t>(s % 2)], true);
    net->first->weight.requires_grad_(false);
    trained.backward([&](int r) { return losses.at(r); });
    trained.step();
    freeze(*net, false);
  }
  return trained.weights();
}

// Frozen between backward() and step(): an optimizer updates it once more.
Tensors freezing_before_the_update(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, adam(), {.accumulation_steps = 2});
  for (int s = 0; s < 4; ++s) {
    for (const int m : {2 * s, 2 * s + 1}) {
      trained.backward([&](int r) { return trained.forward(batch_of(r, m)); });
    }
    freeze(*net->blocks[0], s % 2 == 0);
    net->first->bias.requires_grad_(s > 1);
    trained.step();
  }
  return trained.weights();
}

// Body and head in turns.
Tensors alternating_parts(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < 4; ++s) {
    freeze(*net, s % 2 == 0);
    freeze(*net->last, s % 2 == 1);
    step(trained, s);
  }
  return trained.weights();
}

// A block is left out of a step, the same on all ranks (stochastic depth, Huang et al. 2016).
Tensors stochastic_depth(Player& player) {
  auto net = std::make_shared<Net>(NetOptions{.blocks = 3});
  std::size_t left_out = 0;
  net->objective = [&net = *net, &left_out](const data::Batch& batch) {
    at::Tensor x = net.first->forward(batch.inputs);
    for (std::size_t b = 0; b < net.blocks.size(); ++b) {
      if (b != left_out) x = net.blocks[b]->forward(x);
    }
    return at::mse_loss(net.last->forward(x), batch.targets);
  };
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < 5; ++s) {
    left_out = static_cast<std::size_t>((2 * s) % 4);
    step(trained, s);
  }
  return trained.weights();
}

// Batches grow; the rate falls when an evaluation no longer gets better.
Tensors growing_batches(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd(0.4));
  double rate = 0.4, last = std::numeric_limits<double>::infinity();
  for (int s = 0; s < 6; ++s) {
    trained.backward([&](int r) { return trained.forward(batch_of(r, s, 1 + s / 2)); });
    trained.step();
    const double loss = evaluation(player, trained);
    if (loss > last) trained.set_learning_rate(rate *= 0.5);
    last = loss;
  }
  return joined(trained.weights(), {at::full({}, rate, at::kDouble)});
}

// Values of a target network, a copy of some steps ago (DQN, Mnih et al. 2015).
Tensors target_network(Player& player) {
  auto net = std::make_shared<Net>(), target = std::make_shared<Net>();
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < 5; ++s) {
    if (s % 2 == 0) {
      const at::NoGradGuard no_grad;
      const Tensors weights = trained.weights(), copies = target->parameters();
      for (std::size_t i = 0; i < weights.size(); ++i) at::Tensor(copies[i]).copy_(weights[i]);
    }
    trained.backward([&](int r) {
      const data::Batch now = labelled(r, s), next = batch_of(r, s + 40);
      const at::Tensor value = net->predict(now.inputs).gather(1, now.targets.unsqueeze(1));
      const at::NoGradGuard no_grad;
      const at::Tensor wanted =
          next.targets.select(1, 0) + 0.9 * std::get<0>(target->predict(next.inputs).max(1));
      const at::AutoGradMode graph(true);
      return at::smooth_l1_loss(value.squeeze(1), wanted);
    });
    trained.step();
  }
  return trained.weights();
}

// Predictions of the model are the labels of the next round.
Tensors self_training(Player& player) {
  auto net = std::make_shared<Net>();
  net->objective = [&net = *net](const data::Batch& batch) {
    return at::cross_entropy_loss(net.outputs(batch.inputs), batch.targets);
  };
  Trained& trained = player.train(net, sgd());
  for (int round = 0; round < 3; ++round) {
    std::map<int, data::Batch> batches;
    for (const int r : player.ranks()) {
      batches[r] = labelled(r, round);
      if (round == 0) continue;
      const at::NoGradGuard no_grad;
      batches[r].targets = net->predict(batches[r].inputs).argmax(1);
    }
    for (int s = 0; s < 2; ++s) {
      trained.backward([&](int r) { return trained.forward(batches.at(r)); });
      trained.step();
    }
  }
  return trained.weights();
}

// A frozen teacher of another size (Hinton et al. 2015).
Tensors distillation(Player& player) {
  auto net = std::make_shared<Net>(NetOptions{.blocks = 1});
  auto teacher = std::make_shared<Net>(NetOptions{.blocks = 3, .seed = 9});
  freeze(*teacher, true);
  net->objective = [&net = *net, teacher](const data::Batch& batch) {
    constexpr double kTemperature = 2;
    const at::Tensor logits = net.outputs(batch.inputs);
    const at::Tensor taught = (teacher->predict(batch.inputs) / kTemperature).softmax(1);
    return at::cross_entropy_loss(logits, batch.targets) +
           at::kl_div((logits / kTemperature).log_softmax(1), taught, at::Reduction::Mean);
  };
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < 4; ++s) {
    trained.backward([&](int r) { return trained.forward(labelled(r, s)); });
    trained.step();
  }
  return trained.weights();
}

}  // namespace

std::vector<Loop> schedule_loops() {
  return {{"cosine schedule", cosine_schedule},
          {"learning-rate finder", learning_rate_finder},
          {"early stopping", early_stopping},
          {"average teacher", average_teacher},
          {"stochastic weight averaging", stochastic_weight_averaging},
          {"gradual thawing", gradual_thawing},
          {"freezing on the way", freezing_on_the_way},
          {"freezing before backward", freezing_before_backward},
          {"freezing before the update", freezing_before_the_update},
          {"alternating parts", alternating_parts},
          {"stochastic depth", stochastic_depth},
          {"growing batches", growing_batches},
          {"target network", target_network},
          {"self-training", self_training},
          {"distillation", distillation}};
}

}  // namespace zero::testing::loops
