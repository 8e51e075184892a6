#include "player.hpp"

#include <ATen/ops/zeros_like.h>

#include <numeric>
#include <utility>

#include <tests/support/whole_weights.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/optim/norm.hpp>
#include <zero/train/loop/step.hpp>

namespace zero::testing::loops {
namespace {

// ---- plain modules

class PlainTrained final : public Trained {
 public:
  PlainTrained(BatchModel& model, const optim::OptimizerFactory& optimizer,
               const EngineConfig& config, int ranks)
      : model_(model),
        config_(config),
        parameters_(parameters_of(model)),
        optimizer_(optimizer(parameters_)),
        of_rank_(static_cast<std::size_t>(ranks), std::vector<at::Tensor>(parameters_.size())) {}

  at::Tensor forward(const data::Batch& batch) override { return model_.loss(batch); }

  void backward(const OfRank& loss, const std::function<std::int64_t(int)>& terms) override {
    const int ranks = static_cast<int>(of_rank_.size());
    double all = 0;
    for (int r = 0; r < ranks; ++r) all += static_cast<double>(terms(r));
    if (micro_batches_++ == 0) terms_of_first_ = all;
    terms_ += all;
    for (int r = 0; r < ranks; ++r) {
      std::vector<at::Tensor>& gradients = of_rank_[static_cast<std::size_t>(r)];
      const at::Tensor value = loss(r);
      swap_gradients(gradients);
      train::weighted_loss(value, static_cast<double>(terms(r)), expected(), ranks).backward();
      swap_gradients(gradients);
    }
    if (micro_batches_ == config_.accumulation_steps) average();
  }

  bool step() override {
    if (micro_batches_ < config_.accumulation_steps) return false;
    if (config_.clip_norm > 0) {
      multiply(optim::clip_coefficient(gradient_norm(), config_.clip_norm));
    }
    optimizer_->step();
    give_up_step();
    return true;
  }

  void give_up_step() override {
    for (const at::Tensor& p : parameters_) p.mutable_grad().reset();
    for (auto& gradients : of_rank_) gradients.assign(parameters_.size(), at::Tensor());
    micro_batches_ = 0;
    terms_ = 0;
  }

  void set_learning_rate(double rate) override { optimizer_->set_learning_rate(rate); }

  void change(const Change& change) override {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      change(i, parameters_[i].detach().view({-1}), flat(parameters_[i].grad()), 0);
    }
  }

  float gradient_norm() override {
    std::vector<double> squares;
    for (const at::Tensor& p : parameters_) {
      squares.push_back(p.grad().defined() ? optim::squared_norm(p.grad()) : 0);
    }
    return static_cast<float>(optim::norm_from_squares(squares));
  }

  std::vector<at::Tensor> weights() override {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& p : parameters_) copies.push_back(p.detach().clone());
    return copies;
  }

 private:
  static at::Tensor flat(const at::Tensor& gradient) {
    return gradient.defined() ? gradient.view({-1}) : at::Tensor();
  }
  double expected() const {
    return terms_of_first_ * static_cast<double>(config_.accumulation_steps);
  }
  void swap_gradients(std::vector<at::Tensor>& gradients) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      std::swap(parameters_[i].mutable_grad(), gradients[i]);
    }
  }
  // In rank order; a rank without a gradient counts as zeros.
  void average() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor sum;
      bool used = false;
      for (std::vector<at::Tensor>& gradients : of_rank_) {
        used = used || gradients[i].defined();
        const at::Tensor mine =
            gradients[i].defined() ? gradients[i] : at::zeros_like(parameters_[i].detach());
        sum = sum.defined() ? sum + mine : mine.clone();
      }
      parameters_[i].mutable_grad() =
          used ? sum / static_cast<double>(of_rank_.size()) : at::Tensor();
    }
    if (expected() != terms_) multiply(expected() / terms_);
  }
  void multiply(double factor) {
    if (factor == 1.0) return;
    for (const at::Tensor& p : parameters_) {
      if (p.grad().defined()) p.mutable_grad().mul_(factor);
    }
  }

  BatchModel& model_;
  EngineConfig config_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<std::vector<at::Tensor>> of_rank_;  // gradients of the step
  std::int64_t micro_batches_ = 0;
  double terms_of_first_ = 0;
  double terms_ = 0;
};

class PlainPlayer final : public Player {
 public:
  explicit PlainPlayer(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }
  Trained& train(const std::shared_ptr<BatchModel>& model, const optim::OptimizerFactory& optimizer,
                 const EngineConfig& config) override {
    models_.push_back(model);
    trained_.push_back(
        std::make_unique<PlainTrained>(*model, optimizer, config, static_cast<int>(ranks_.size())));
    return *trained_.back();
  }
  std::vector<int> ranks() const override { return ranks_; }
  double mean(const std::function<double(int)>& of_rank) override {
    double sum = 0;
    for (const int r : ranks_) sum += of_rank(r);
    return sum / static_cast<double>(ranks_.size());
  }

 private:
  std::vector<int> ranks_;
  std::vector<std::shared_ptr<BatchModel>> models_;
  std::vector<std::unique_ptr<PlainTrained>> trained_;
};

// ---- engines

class EngineTrained final : public Trained {
 public:
  EngineTrained(BatchModel& model, dist::Communicator& communicator,
                const optim::OptimizerFactory& optimizer, const EngineConfig& config)
      : rank_(communicator.rank()), engine_(model, communicator, optimizer, config) {}

  at::Tensor forward(const data::Batch& batch) override { return forward_batch(engine_, batch); }
  void backward(const OfRank& loss, const std::function<std::int64_t(int)>&) override {
    engine_.backward(loss(rank_));
  }
  bool step() override { return engine_.step(); }
  void give_up_step() override { engine_.give_up_step(); }
  void set_learning_rate(double rate) override {
    engine_.strategy().optimizer().set_learning_rate(rate);
  }
  void change(const Change& change) override {
    train::Strategy& strategy = engine_.strategy();
    for (std::size_t i = 0; i < strategy.list().size(); ++i) {
      const train::ParameterShard mine = strategy.placement(i).updated;
      if (!mine.tensor.defined()) continue;
      const at::Tensor& gradient = mine.tensor.grad();
      change(i, memory::raw(mine.tensor).view({-1}),
             gradient.defined() ? gradient.view({-1}) : at::Tensor(), mine.begin);
    }
    strategy.passes().weights_changed();
    strategy.sync_parameters();
  }
  float gradient_norm() override { return engine_.strategy().clip_grad_norm(1e30); }
  std::vector<at::Tensor> weights() override { return whole_weights(engine_.strategy()); }

 private:
  int rank_;
  Engine engine_;
};

class EnginePlayer final : public Player {
 public:
  EnginePlayer(dist::Communicator& communicator, const EngineConfig& options)
      : communicator_(communicator), options_(options) {}
  Trained& train(const std::shared_ptr<BatchModel>& model, const optim::OptimizerFactory& optimizer,
                 const EngineConfig& config) override {
    EngineConfig ours = options_;
    ours.accumulation_steps = config.accumulation_steps;
    ours.reduce_each_micro_batch = config.reduce_each_micro_batch;
    ours.clip_norm = config.clip_norm;
    ours.on_nonfinite_gradient = config.on_nonfinite_gradient;
    ours.broadcast_buffers = config.broadcast_buffers;
    ours.ignored = config.ignored;
    ours.loss_scale = config.loss_scale;
    models_.push_back(model);
    trained_.push_back(std::make_unique<EngineTrained>(*model, communicator_, optimizer, ours));
    return *trained_.back();
  }
  std::vector<int> ranks() const override { return {communicator_.rank()}; }
  double mean(const std::function<double(int)>& of_rank) override {
    double sum = 0;
    for (const double x :
         dist::all_gather_scalars(communicator_, {of_rank(communicator_.rank())})) {
      sum += x;
    }
    return sum / communicator_.size();
  }

 private:
  dist::Communicator& communicator_;
  EngineConfig options_;
  std::vector<std::shared_ptr<BatchModel>> models_;
  std::vector<std::unique_ptr<EngineTrained>> trained_;
};

}  // namespace

std::unique_ptr<Player> plain_player(int ranks) { return std::make_unique<PlainPlayer>(ranks); }

std::unique_ptr<Player> engine_player(dist::Communicator& communicator,
                                      const EngineConfig& options) {
  return std::make_unique<EnginePlayer>(communicator, options);
}

}  // namespace zero::testing::loops
