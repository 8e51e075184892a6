// What is done with gradients and weights around a step: second steps, masks, penalties, inner
// loops, accumulation.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <map>

#include "net.hpp"
#include "player.hpp"

namespace zero::testing::loops {
namespace {

// Sharpness-aware minimisation (Foret et al. 2021): the gradient is that at the worst weights
// nearby.
Tensors sharpness_aware(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd());
  for (int s = 0; s < kSteps; ++s) {
    const auto loss = [&](int r) { return trained.forward(batch_of(r, s)); };
    trained.backward(loss);
    const double scale = 0.05 / (trained.gradient_norm() + 1e-12);
    Parts before;
    trained.change(
        [&](std::size_t i, const at::Tensor& values, const at::Tensor& gradient, std::int64_t) {
          before[i] = values.clone();
          if (gradient.defined()) values.add_(gradient * scale);
        });
    trained.give_up_step();
    trained.backward(loss);
    trained.change([&](std::size_t i, const at::Tensor& values, const at::Tensor&, std::int64_t) {
      values.copy_(before.at(i));
    });
    trained.step();
  }
  return trained.weights();
}

// Gradient surgery: elements in which two tasks disagree are masked (Parascandolo et al. 2021).
Tensors gradient_surgery(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < kSteps; ++s) {
    trained.backward([&](int r) { return trained.forward(batch_of(r, s)); });
    Parts of_first;
    trained.change([&](std::size_t i, const at::Tensor&, const at::Tensor& gradient, std::int64_t) {
      if (gradient.defined()) of_first[i] = gradient.clone();
    });
    trained.give_up_step();
    trained.backward(
        [&](int r) { return net->predict(batch_of(r, s + 50).inputs).square().mean(); });
    trained.change([&](std::size_t i, const at::Tensor&, const at::Tensor& gradient, std::int64_t) {
      const at::Tensor& other = of_first.at(i);
      gradient.copy_(at::where(gradient.sign() == other.sign(), gradient + other, 0.0));
    });
    trained.step();
  }
  return trained.weights();
}

// Noise on the averaged gradient, from the same generator on every rank.
Tensors gradient_noise(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd(), {.clip_norm = 0.5});
  for (int s = 0; s < kSteps; ++s) {
    trained.backward([&](int r) { return trained.forward(batch_of(r, s)); });
    trained.change(
        [&](std::size_t i, const at::Tensor&, const at::Tensor& gradient, std::int64_t begin) {
          const at::Tensor drawn = noise({1000}, static_cast<int>(i), s, 11);
          gradient.add_(0.01 * drawn.narrow(0, begin, gradient.numel()));
        });
    trained.step();
  }
  return trained.weights();
}

// The slow weights of Lookahead (Zhang et al. 2019).
Tensors slow_weights(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, adam());
  Parts slow;
  for (int s = 0; s < 5; ++s) {
    if (s % 2 == 0) {
      trained.change([&](std::size_t i, const at::Tensor& values, const at::Tensor&, std::int64_t) {
        if (slow.contains(i)) values.copy_(slow.at(i) + 0.5 * (values - slow.at(i)));
        slow[i] = values.clone();
      });
    }
    trained.backward([&](int r) { return trained.forward(batch_of(r, s)); });
    trained.step();
  }
  return trained.weights();
}

// Reptile (Nichol et al. 2018): after some steps on a task, a part of the way back.
Tensors reptile(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd(0.05));
  for (int task = 0; task < 2; ++task) {
    Parts begin;
    trained.change([&](std::size_t i, const at::Tensor& values, const at::Tensor&, std::int64_t) {
      begin[i] = values.clone();
    });
    for (int s = 0; s < 3; ++s) {
      trained.backward([&](int r) { return trained.forward(batch_of(r, 10 * task + s)); });
      trained.step();
    }
    trained.change([&](std::size_t i, const at::Tensor& values, const at::Tensor&, std::int64_t) {
      values.copy_(begin.at(i) + 0.3 * (values - begin.at(i)));
    });
  }
  return trained.weights();
}

// Meta-learning of second order: an inner step of a context that is an input, then the loss with it
// (CAVIA, Zintgraf et al. 2019).
Tensors meta_learning_of_a_context(Player& player) {
  auto net = std::make_shared<Net>(NetOptions{.inputs = kInputs + 2});
  Trained& trained = player.train(net, adam());
  const auto loss = [&](const data::Batch& batch, const at::Tensor& context) {
    const at::Tensor inputs = at::cat({batch.inputs, context.expand({kSamples, 2})}, 1);
    return at::mse_loss(net->predict(inputs), batch.targets);
  };
  for (int s = 0; s < kSteps; ++s) {
    trained.backward([&](int r) {
      const at::Tensor context = at::zeros({1, 2}).requires_grad_();
      const at::Tensor gradient =
          torch::autograd::grad({loss(batch_of(r, s), context)}, {context}, {},
                                /*retain_graph=*/true, /*create_graph=*/true)
              .front();
      return loss(batch_of(r, s + 20), context - 0.5 * gradient);
    });
    trained.step();
  }
  return trained.weights();
}

// Model-agnostic meta-learning whose inner loop trains the head, of second order (ANIL, Raghu et
// al. 2020): the head belongs to the root, which is whole in the model's own forward.
Tensors meta_learning_of_the_head(Player& player) {
  auto net = std::make_shared<Net>();
  net->objective = [&net = *net](const data::Batch& batch) {
    const at::Tensor features = net.features(batch.inputs);
    const auto half = [&](const at::Tensor& x, int which) {
      return x.narrow(0, which * kSamples / 2, kSamples / 2);
    };
    at::Tensor head = net.last->weight;
    for (int k = 0; k < 2; ++k) {
      const at::Tensor support =
          at::mse_loss(half(features, 0).matmul(head.t()), half(batch.targets, 0));
      head = head - 0.1 * torch::autograd::grad({support}, {head}, {}, /*retain_graph=*/true,
                                                /*create_graph=*/true)
                              .front();
    }
    return at::mse_loss(half(features, 1).matmul(head.t()) + net.last->bias,
                        half(batch.targets, 1));
  };
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < kSteps; ++s) {
    trained.backward([&](int r) { return trained.forward(batch_of(r, s)); });
    trained.step();
  }
  return trained.weights();
}

// A penalty on weights of the root, and on the Laplacian of the outputs: derivatives of
// derivatives.
Tensors laplacian_penalty(Player& player) {
  auto net = std::make_shared<Net>(NetOptions{.inputs = 2, .outputs = 1});
  net->objective = [&net = *net](const data::Batch& batch) {
    const at::Tensor x = batch.inputs.narrow(1, 0, 2).detach().requires_grad_();
    const auto derivative = [&](const at::Tensor& y) {
      return torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)
          .front();
    };
    const at::Tensor first = derivative(net.outputs(x));
    at::Tensor laplacian = at::zeros({kSamples});
    for (int d = 0; d < 2; ++d) {
      laplacian = laplacian + derivative(first.select(1, d)).select(1, d);
    }
    return (laplacian - batch.targets.select(1, 0)).square().mean() +
           1e-3 * net.last->weight.abs().sum();
  };
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < kSteps; ++s) {
    trained.backward([&](int r) { return trained.forward(batch_of(r, s)); });
    trained.step();
  }
  return trained.weights();
}

// Three micro-batches, clipped, and forward of the next step before the update.
Tensors clipped_accumulation(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, adam(), {.accumulation_steps = 3, .clip_norm = 0.1});
  for (int m = 0; m < 9; ++m) {
    trained.backward([&](int r) { return trained.forward(batch_of(r, m)); });
    trained.step();
  }
  return trained.weights();
}

// The last batch of an epoch is smaller, and on another rank smaller still: samples weigh alike.
Tensors ragged_batches(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, adam(), {.accumulation_steps = 2, .clip_norm = 0.1});
  for (int m = 0; m < 6; ++m) {
    const auto samples = [&](int r) { return std::int64_t{m % 3 == 2 ? 1 + r : kSamples}; };
    trained.backward(
        [&](int r) {
          data::Batch batch = batch_of(r, m, samples(r));
          batch.loss_terms = samples(r);
          return trained.forward(batch);
        },
        samples);
    trained.step();
  }
  return trained.weights();
}

// Two losses of different batches in one backward, one of them counted twice.
Tensors mixed_losses(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd());
  for (int s = 0; s < kSteps; ++s) {
    trained.backward([&](int r) {
      const at::Tensor labelled_loss = trained.forward(batch_of(r, s));
      const at::Tensor other = trained.forward(batch_of(r, s + 30));
      const at::Tensor outputs = net->predict(batch_of(r, s + 60).inputs);
      return labelled_loss + 2 * other.sqrt() + 0.1 * outputs.square().mean();
    });
    trained.step();
  }
  return trained.weights();
}

// A batch whose loss is NaN on any rank is left out by all of them, before backward.
Tensors skipped_bad_batches(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, adam());
  int skipped = 0;
  for (int s = 0; s < 2 * kSteps; ++s) {
    std::map<int, at::Tensor> losses;
    const double mean = player.mean([&](int r) {
      data::Batch batch = batch_of(r, s);
      if (s % 2 == 1 && r == 1) batch.inputs[0][0] = std::numeric_limits<float>::quiet_NaN();
      losses[r] = trained.forward(batch);
      return losses[r].item<double>();
    });
    if (!std::isfinite(mean) && ++skipped > 0) continue;
    trained.backward([&](int r) { return losses.at(r); });
    trained.step();
  }
  return joined(trained.weights(), {at::full({}, skipped)});
}

// A step whose gradient is too large is thrown away, and begun again with a part of the batch.
Tensors steps_thrown_away(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd());
  for (int s = 0; s < 2 * kSteps; ++s) {
    trained.backward([&](int r) { return trained.forward(batch_of(r, s)); });
    if (trained.gradient_norm() > 0.7) {
      trained.give_up_step();
      trained.backward([&](int r) { return 0.1 * trained.forward(batch_of(r, s, 2)); });
    }
    trained.step();
  }
  return trained.weights();
}

}  // namespace

std::vector<Loop> gradient_loops() {
  return {{"sharpness-aware minimisation", sharpness_aware},
          {"gradient surgery", gradient_surgery},
          {"gradient noise", gradient_noise},
          {"slow weights", slow_weights},
          {"Reptile", reptile},
          {"meta-learning of a context", meta_learning_of_a_context, true},
          {"meta-learning of the head", meta_learning_of_the_head},
          {"penalty on the Laplacian", laplacian_penalty, true},
          {"clipped accumulation", clipped_accumulation},
          {"ragged batches", ragged_batches},
          {"mixed losses", mixed_losses},
          {"bad batches are skipped", skipped_bad_batches},
          {"steps thrown away", steps_thrown_away}};
}

}  // namespace zero::testing::loops
