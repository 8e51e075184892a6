// Two models against each other, and inputs that are moved along their gradient.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/softplus.h>
#include <torch/csrc/autograd/autograd.h>

#include "net.hpp"
#include "player.hpp"

namespace zero::testing::loops {
namespace {

at::Tensor gradient_of(const at::Tensor& value, const at::Tensor& input, bool create_graph) {
  return torch::autograd::grad({value}, {input}, {}, /*retain_graph=*/create_graph, create_graph)
      .front();
}

// A judge of samples [n, kInputs] and a maker of samples from noise [n, 4].
struct Pair {
  Pair(Player& player, double maker_rate = 0.02)
      : judge(std::make_shared<Net>(NetOptions{.outputs = 1, .seed = 2})),
        maker(std::make_shared<Net>(NetOptions{.inputs = 4, .outputs = kInputs, .seed = 3})),
        trained_judge(player.train(judge, adam())),
        trained_maker(player.train(maker, adam(maker_rate))) {}

  static at::Tensor real(int rank, int step) { return noise({kSamples, kInputs}, rank, step, 4); }
  at::Tensor made(int rank, int step) const {
    return maker->predict(noise({kSamples, 4}, rank, step, 5));
  }
  at::Tensor made_detached(int rank, int step) const {
    const at::NoGradGuard no_grad;
    return made(rank, step);
  }
  Tensors weights() const { return joined(trained_judge.weights(), trained_maker.weights()); }

  std::shared_ptr<Net> judge;
  std::shared_ptr<Net> maker;
  Trained& trained_judge;
  Trained& trained_maker;
};

void train(Trained& trained, const Trained::OfRank& loss) {
  trained.backward(loss);
  trained.step();
}

// The non-saturating loss (Goodfellow et al. 2014); the judge's two losses are two micro-batches.
Tensors gan(Player& player) {
  auto judge = std::make_shared<Net>(NetOptions{.outputs = 1, .seed = 2});
  auto maker = std::make_shared<Net>(NetOptions{.inputs = 4, .outputs = kInputs, .seed = 3});
  Trained& trained_judge = player.train(judge, adam(), {.accumulation_steps = 2});
  Trained& trained_maker = player.train(maker, adam());
  for (int s = 0; s < kSteps; ++s) {
    const auto made = [&](int r) { return maker->predict(noise({kSamples, 4}, r, s, 5)); };
    trained_judge.backward(
        [&](int r) { return at::softplus(-judge->predict(Pair::real(r, s))).mean(); });
    trained_judge.backward(
        [&](int r) { return at::softplus(judge->predict(made(r).detach())).mean(); });
    trained_judge.step();
    train(trained_maker, [&](int r) { return at::softplus(-judge->predict(made(r))).mean(); });
  }
  return joined(trained_judge.weights(), trained_maker.weights());
}

// Least squares (Mao et al. 2017), with feature matching for the maker.
Tensors least_squares_gan(Player& player) {
  Pair pair(player);
  pair.judge->objective = [judge = pair.judge.get()](const data::Batch& batch) {
    return (judge->outputs(batch.inputs) - 1).square().mean() +
           judge->outputs(batch.targets).square().mean();
  };
  for (int s = 0; s < kSteps; ++s) {
    train(pair.trained_judge, [&](int r) {
      return pair.trained_judge.forward(
          {.inputs = Pair::real(r, s), .targets = pair.made_detached(r, s)});
    });
    train(pair.trained_maker, [&](int r) {
      const at::Tensor difference = pair.judge->predict(pair.made(r, s)).mean(0) -
                                    pair.judge->predict(Pair::real(r, s)).detach().mean(0);
      return difference.square().mean();
    });
  }
  return pair.weights();
}

// The critic trains three times as often, and its weights are clamped (Arjovsky et al. 2017).
Tensors wasserstein_gan(Player& player) {
  Pair pair(player);
  for (int s = 0; s < 2 * kSteps; ++s) {
    train(pair.trained_judge, [&](int r) {
      return pair.judge->predict(pair.made_detached(r, s)).mean() -
             pair.judge->predict(Pair::real(r, s)).mean();
    });
    pair.trained_judge.change([](std::size_t, const at::Tensor& values, const at::Tensor&,
                                 std::int64_t) { values.clamp_(-0.1, 0.1); });
    if (s % 3 < 2) continue;
    train(pair.trained_maker, [&](int r) { return -pair.judge->predict(pair.made(r, s)).mean(); });
  }
  return pair.weights();
}

// With a penalty on the critic's gradient between real and made samples (Gulrajani et al. 2017).
Tensors wasserstein_gan_with_penalty(Player& player) {
  Pair pair(player);
  for (int s = 0; s < kSteps; ++s) {
    train(pair.trained_judge, [&](int r) {
      const at::Tensor real = Pair::real(r, s), made = pair.made_detached(r, s);
      const at::Tensor share = noise({kSamples, 1}, r, s, 6).sigmoid();
      const at::Tensor between = (share * real + (1 - share) * made).requires_grad_();
      const at::Tensor gradient =
          gradient_of(pair.judge->predict(between).sum(), between, /*create_graph=*/true);
      const at::Tensor penalty = (gradient.square().sum(1).add(1e-12).sqrt() - 1).square().mean();
      return pair.judge->predict(made).mean() - pair.judge->predict(real).mean() + 10 * penalty;
    });
    train(pair.trained_maker, [&](int r) { return -pair.judge->predict(pair.made(r, s)).mean(); });
  }
  return pair.weights();
}

// ---- one model

// Inputs are moved along the sign of their gradient (Goodfellow et al. 2015).
Tensors adversarial_training(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd());
  for (int s = 0; s < kSteps; ++s) {
    train(trained, [&](int r) {
      data::Batch batch = batch_of(r, s);
      batch.inputs.requires_grad_();
      const at::Tensor clean = trained.forward(batch);
      const at::Tensor gradient = gradient_of(clean, batch.inputs, /*create_graph=*/false);
      batch.inputs = (batch.inputs + 0.1 * gradient.sign()).detach();
      return trained.forward(batch);
    });
  }
  return trained.weights();
}

// Several such steps, clamped (Madry et al. 2018), and both losses.
Tensors projected_gradient_training(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, sgd());
  for (int s = 0; s < kSteps; ++s) {
    train(trained, [&](int r) {
      const data::Batch batch = batch_of(r, s);
      at::Tensor moved = batch.inputs;
      for (int k = 0; k < 3; ++k) {
        moved = moved.detach().requires_grad_();
        const at::Tensor loss = at::mse_loss(net->predict(moved), batch.targets);
        const at::Tensor step = 0.05 * gradient_of(loss, moved, /*create_graph=*/false).sign();
        moved = (batch.inputs + (moved.detach() + step - batch.inputs).clamp(-0.1, 0.1)).detach();
      }
      return 0.5 * (trained.forward(batch) +
                    trained.forward({.inputs = moved, .targets = batch.targets}));
    });
  }
  return trained.weights();
}

// Virtual adversarial training: no labels (Miyato et al. 2018).
Tensors virtual_adversarial_training(Player& player) {
  auto net = std::make_shared<Net>();
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < kSteps; ++s) {
    train(trained, [&](int r) {
      const data::Batch batch = labelled(r, s);
      const at::Tensor logits = net->predict(batch.inputs);
      const at::Tensor before = logits.detach().softmax(1);
      const auto divergence = [&](const at::Tensor& moved) {
        return at::kl_div(net->predict(moved).log_softmax(1), before, at::Reduction::Mean);
      };
      const at::Tensor direction = noise({kSamples, kInputs}, r, s, 7).requires_grad_();
      const at::Tensor gradient = gradient_of(divergence(batch.inputs + 0.1 * direction), direction,
                                              /*create_graph=*/false);
      const at::Tensor worst = gradient / (gradient.norm() + 1e-6);
      return at::cross_entropy_loss(logits, batch.targets) +
             divergence(batch.inputs + 0.5 * worst.detach());
    });
  }
  return trained.weights();
}

// Samples of an energy walk down its gradient (Langevin dynamics); then real ones get less energy.
Tensors energy_based_model(Player& player) {
  auto net = std::make_shared<Net>(NetOptions{.outputs = 1});
  Trained& trained = player.train(net, adam());
  for (int s = 0; s < kSteps; ++s) {
    train(trained, [&](int r) {
      at::Tensor sample = noise({kSamples, kInputs}, r, s, 8);
      for (int k = 0; k < 3; ++k) {
        sample = sample.detach().requires_grad_();
        const at::Tensor gradient =
            gradient_of(net->predict(sample).sum(), sample, /*create_graph=*/false);
        sample = sample.detach() - 0.1 * gradient + 0.01 * noise({kSamples, kInputs}, r, k, 9);
      }
      const at::Tensor real = net->predict(batch_of(r, s).inputs), made = net->predict(sample);
      return real.mean() - made.mean() + 0.1 * (real.square() + made.square()).mean();
    });
  }
  return trained.weights();
}

// The gradient is reversed between features and a judge of their domain (Ganin et al. 2016).
Tensors gradient_reversal(Player& player) {
  auto net = std::make_shared<Net>(NetOptions{.outputs = kWidth});
  auto head = net->register_module("domain", torch::nn::Linear(kWidth, 1));
  net->objective = [&net = *net, head](const data::Batch& batch) mutable {
    const at::Tensor features = net.features(batch.inputs);
    const at::Tensor reversed = 2 * features.detach() - features;
    const at::Tensor domain = head->forward(reversed).squeeze(1);
    return net.last->forward(features).log_softmax(1).neg().mean() +
           at::softplus(-domain * batch.targets.select(1, 0).sign()).mean();
  };
  Trained& trained = player.train(net, sgd());
  for (int s = 0; s < kSteps; ++s) {
    train(trained, [&](int r) { return trained.forward(batch_of(r, s)); });
  }
  return trained.weights();
}

}  // namespace

std::vector<Loop> adversarial_loops() {
  return {{"GAN", gan},
          {"GAN with least squares", least_squares_gan},
          {"WGAN with clamped weights", wasserstein_gan},
          {"WGAN with a gradient penalty", wasserstein_gan_with_penalty, true},
          {"adversarial training", adversarial_training},
          {"projected gradient", projected_gradient_training},
          {"virtual adversarial training", virtual_adversarial_training},
          {"energy-based model", energy_based_model},
          {"gradient reversal", gradient_reversal}};
}

}  // namespace zero::testing::loops
