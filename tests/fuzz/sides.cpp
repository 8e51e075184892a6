#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <tests/support/deferred.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/whole_weights.hpp>
#include <tools/ladder/registry.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/engine.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/norm.hpp>
#include <zero/train/loop/step.hpp>
#include <zero/train/unsharded_parameters.hpp>

#include "script.hpp"

namespace zero::testing {
namespace {

optim::OptimizerFactory optimizer_of(const Program& program) {
  optim::OptimizerFactory make = sgd(0.01);
  if (program.optimizer == "adamw") make = optim::adamw({.learning_rate = 0.01});
  if (program.optimizer == "adam")
    make = wrapped<torch::optim::Adam>(torch::optim::AdamOptions(0.01));
  if (program.optimizer == "rmsprop") {
    make = wrapped<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.9));
  }
  if (program.optimizer == "groups") {
    make = [](const std::vector<at::Tensor>& parameters) {
      std::vector<at::Tensor> matrices, others;
      for (const at::Tensor& p : parameters) (p.dim() == 2 ? matrices : others).push_back(p);
      return optim::make_adamw({{matrices, {.learning_rate = 0.02, .beta1 = 0.8}},
                                {others, {.learning_rate = 0.005, .weight_decay = 0.0}}});
    };
  }
  return program.dtype == "bfloat16" ? optim::with_master_weights(make) : make;
}

std::set<std::size_t> trainable(const nn::ParameterList& list) {
  std::set<std::size_t> all;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list.parameters[i].tensor.requires_grad()) all.insert(i);
  }
  return all;
}

// Chooses among what was trainable when the model was made. The first parameter stays trainable: a
// unit whose input has no gradient, and which passes it on, would have no backward on this rank.
void toggle_in(const nn::ParameterList& list, const std::set<std::size_t>& may, std::size_t which) {
  const std::size_t i = *std::next(may.begin(), static_cast<std::ptrdiff_t>(which % may.size()));
  const at::Tensor& tensor = list.parameters[i].tensor;
  if (i != 0) tensor.requires_grad_(!tensor.requires_grad());
}

std::vector<at::Tensor> tensors_of(const nn::ParameterList& list) {
  std::vector<at::Tensor> all;
  for (const nn::Parameter& p : list.parameters) all.push_back(p.tensor);
  return all;
}

// Of the elements of a parameter from `begin` on. What it takes is exact.
at::Tensor numbers_for(const at::Tensor& values, std::int64_t begin) {
  const at::Tensor places = at::arange(begin, begin + values.numel(), at::kLong);
  return (places.remainder(7) - 3).to(values.scalar_type()).mul(0.0078125);
}

// How the losses of a step are weighted: by loss terms, over all micro-batches and ranks. Until all
// are known each weighs relative to the first; update_factor() corrects that.
class StepWeights {
 public:
  explicit StepWeights(const Program& program) : program_(program) {}

  at::Tensor weighted(const at::Tensor& loss, const std::vector<double>& terms, int rank) const {
    const double first = all_.empty() ? sum(terms) : all_.front();
    return train::weighted_loss(loss, terms[static_cast<std::size_t>(rank)],
                                first * program_.accumulation, program_.ranks);
  }
  void add(const std::vector<double>& terms, const std::vector<at::Tensor>& losses) {
    all_.push_back(sum(terms));
    for (const at::Tensor& loss : losses) finite_ = finite_ && std::isfinite(loss.item<double>());
  }
  bool is_last() const { return std::ssize(all_) + 1 == program_.accumulation; }
  bool is_complete() const { return std::ssize(all_) == program_.accumulation; }
  double update_factor() const { return all_.front() * program_.accumulation / sum(all_); }
  /// Whether all losses are finite: one may overflow where its gradient does not, and such a step
  /// is refused.
  bool finite() const { return finite_; }
  void clear() {
    all_.clear();
    finite_ = true;
  }

 private:
  static double sum(const std::vector<double>& numbers) {
    double sum = 0;
    for (const double number : numbers) sum += number;
    return sum;
  }
  const Program& program_;
  std::vector<double> all_;  // of each micro-batch so far
  bool finite_ = true;
};

bool any_double(const std::vector<at::Tensor>& gradients) {
  return std::ranges::any_of(gradients,
                             [](const at::Tensor& x) { return x.scalar_type() == at::kDouble; });
}

// As the library says that it adds: in double; where the result is used in double, in a wider sum.
double norm_of(const std::vector<at::Tensor>& gradients) {
  if (!any_double(gradients)) {
    return optim::norm_from_squares(optim::squared_norms(gradients));
  }
  optim::WideSum sum;
  for (const optim::WideSum& one : optim::wide_squared_norms(gradients)) {
    sum.add(one);
  }
  return std::sqrt(sum.rounded());
}

class PlainSide final : public Side {
 public:
  explicit PlainSide(const Program& program) : program_(program), weights_(program) {
    for (int rank = 0; rank < program.ranks; ++rank) {
      models_.push_back(std::make_shared<FuzzModel>(program));
      nn::SeededValues values(program.seed);
      nn::initialize_parameters(*models_.back(), values);
      lists_.push_back(nn::list_parameters(*models_.back()));
      lanes_.push_back({rank, models_.back().get()});
    }
    may_toggle_ = trainable(lists_[0]);
    PlainSide::begin_anew();
  }

  const nn::ParameterList& list(std::size_t lane) override { return lists_[lane]; }
  at::Tensor forward(std::size_t lane, const data::Batch& batch) override {
    if (program_.broadcast && lane == 0 && c10::GradMode::is_enabled()) copy_buffers();
    return models_[lane]->loss(batch);
  }

  void backward(const std::vector<at::Tensor>& losses, const std::vector<double>& terms) override {
    std::exception_ptr thrown;  // by every rank alike
    for (std::size_t r = 0; r < losses.size(); ++r) {
      try {
        weights_.weighted(losses[r], terms, static_cast<int>(r)).backward();
      } catch (const std::exception&) {
        thrown = std::current_exception();
      }
    }
    if (thrown) std::rethrow_exception(thrown);
    weights_.add(terms, losses);
    if (!weights_.is_complete()) return;
    for (std::size_t i = 0; i < lists_[0].size(); ++i) {
      tensor(0, i).mutable_grad() = averaged(i);
    }
    const double factor = weights_.update_factor();
    if (factor != 1.0) at::_foreach_mul_(gradients(), factor);
  }
  bool step() override {
    if (!weights_.is_complete()) return false;
    try {
      clip();
    } catch (...) {
      give_up_step();
      throw;
    }
    optimizer_->step();
    copy_to_replicas();
    give_up_step();
    return true;
  }
  void give_up_step() override {
    for (std::size_t r = 0; r < models_.size(); ++r) {
      for (std::size_t i = 0; i < lists_[0].size(); ++i) tensor(r, i).mutable_grad().reset();
    }
    weights_.clear();
  }

  void set_learning_rate(double rate) override { optimizer_->set_learning_rate(rate); }
  void toggle(std::size_t parameter) override {
    for (const nn::ParameterList& list : lists_) toggle_in(list, may_toggle_, parameter);
  }

  void change(const Change& change) override {
    for (std::size_t i = 0; i < lists_[0].size(); ++i) {
      const at::Tensor values = tensor(0, i).detach().view({-1});
      const at::Tensor& gradient = tensor(0, i).grad();
      change(values, gradient.defined() ? gradient.view({-1}) : at::Tensor(),
             numbers_for(values, 0));
    }
    copy_to_replicas();
  }
  void write(const Write& write, bool) override {
    const c10::NoGradGuard no_grad;
    for (const nn::ParameterList& list : lists_) write(tensors_of(list));
  }
  float gradient_norm() override { return static_cast<float>(norm_of(gradients())); }
  void set_aside(bool) override {}
  Record weights() override {
    Record all;
    for (const nn::Parameter& p : lists_[0].parameters) all.emplace_back(p.name, p.tensor);
    return all;
  }
  void begin_anew() override {
    copy_buffers();
    optimizer_ = optimizer_of(program_)(tensors_of(lists_[0]));
  }
  void resume() override {}

 private:
  const at::Tensor& tensor(std::size_t rank, std::size_t i) const {
    return lists_[rank].parameters[i].tensor;
  }

  // ((r0 + r1) + r2) / N, in at least float32; undefined where no rank has one.
  at::Tensor averaged(std::size_t i) const {
    bool any = false;
    at::Tensor sum;
    for (std::size_t r = 0; r < models_.size(); ++r) {
      const at::Tensor& one = tensor(r, i).grad();
      any = any || one.defined();
      at::Tensor wide = one.defined() ? one : at::zeros_like(tensor(r, i).detach());
      if (wide.scalar_type() == at::kBFloat16) wide = wide.to(at::kFloat);
      sum = r == 0 ? wide : sum + wide;
    }
    if (!any) return {};
    return (sum / static_cast<double>(models_.size())).to(tensor(0, i).scalar_type());
  }

  // All ranks get those of rank 0.
  void copy_buffers() {
    const c10::NoGradGuard no_grad;
    const auto buffers = models_[0]->buffers();
    for (const auto& model : models_) {
      for (std::size_t b = 0; b < buffers.size(); ++b) model->buffers()[b].copy_(buffers[b]);
    }
  }
  // The averages of a step.
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (std::size_t i = 0; i < lists_[0].size(); ++i) {
      if (tensor(0, i).grad().defined()) all.push_back(tensor(0, i).grad());
    }
    return all;
  }
  void copy_to_replicas() {
    const c10::NoGradGuard no_grad;
    for (std::size_t r = 1; r < models_.size(); ++r) {
      for (std::size_t i = 0; i < lists_[0].size(); ++i) tensor(r, i).copy_(tensor(0, i));
    }
  }
  void clip() const {
    if (!weights_.finite()) throw Error("a loss is infinite or NaN");
    const std::vector<at::Tensor> gradients = this->gradients();
    if (gradients.empty()) return;
    const c10::NoGradGuard no_grad;
    const double norm = norm_of(gradients);
    if (!std::isfinite(norm)) throw Error("a gradient is infinite or NaN");
    if (program_.clip == 0) return;
    const double limit = any_double(gradients)
                             ? optim::clip_coefficient(norm, program_.clip)
                             : optim::clip_coefficient(static_cast<float>(norm), program_.clip);
    if (limit == 1.0) return;
    for (const at::Tensor& gradient : gradients) gradient.mul_(limit);
  }

  const Program& program_;
  StepWeights weights_;
  std::vector<std::shared_ptr<FuzzModel>> models_;  // by rank
  std::vector<nn::ParameterList> lists_;
  std::set<std::size_t> may_toggle_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

// Through zero::Engine where the mode is one of its configurations, else through the strategy.
class ModeSide final : public Side {
 public:
  ModeSide(const Program& program, std::string mode, dist::Communicator& communicator)
      : program_(program), mode_(std::move(mode)), communicator_(communicator), weights_(program) {
    model_ = make_deferred<FuzzModel>(program);
    model_->held = [this](const at::Tensor& weight) { return held(weight); };
    lanes_ = {{communicator.rank(), model_.get()}};
    may_toggle_ = trainable(nn::list_parameters(*model_));
    make();
  }

  const nn::ParameterList& list(std::size_t) override { return strategy().list(); }
  at::Tensor forward(std::size_t, const data::Batch& batch) override {
    if (engine_ && program_.own) return model_->loss(batch);
    return engine_ && c10::GradMode::is_enabled() ? forward_batch(*engine_, batch)
                                                  : forward_batch(strategy(), batch);
  }
  void backward(const std::vector<at::Tensor>& losses, const std::vector<double>& terms) override {
    if (engine_) return engine_->backward(losses[0]);
    strategy_->set_requires_gradient_sync(weights_.is_last());
    strategy_->backward(weights_.weighted(losses[0], terms, communicator_.rank()));
    strategy_->finish_backward();
    weights_.add(terms, losses);
    if (!weights_.is_complete()) return;
    const double factor = weights_.update_factor();
    if (factor != 1.0) strategy_->averaged_gradients().multiply(factor);
  }
  bool step() override {
    if (engine_) return engine_->step();
    if (!weights_.is_complete()) return false;
    if (train::Step(*strategy_, {.clip_norm = program_.clip}, "Step").end(said_of_losses())) {
      strategy_->sync_parameters();
    }
    give_up_step();
    return true;
  }

  void give_up_step() override {
    if (engine_) return engine_->give_up_step();
    weights_.clear();
    strategy_->zero_grad();
  }

  void set_learning_rate(double rate) override { strategy().optimizer().set_learning_rate(rate); }
  void toggle(std::size_t parameter) override {
    toggle_in(strategy().list(), may_toggle_, parameter);
  }

  void change(const Change& change) override {
    for (std::size_t i = 0; i < strategy().list().size(); ++i) {
      const train::ParameterShard mine = strategy().placement(i).updated;
      if (!mine.tensor.defined()) continue;
      const at::Tensor values = memory::raw(mine.tensor).view({-1});
      const at::Tensor& gradient = mine.tensor.grad();
      change(values, gradient.defined() ? gradient.view({-1}) : at::Tensor(),
             numbers_for(values, mine.begin));
    }
    strategy().passes().weights_changed();
    strategy().sync_parameters();
  }
  void write(const Write& write, bool hides) override {
    std::vector<std::unique_ptr<train::UnshardedParameters>> held;
    for (std::size_t u = 0; u < strategy().list().units.size(); ++u) {
      held.push_back(std::make_unique<train::UnshardedParameters>(strategy(), u));
    }
    const c10::NoGradGuard no_grad;
    std::vector<at::Tensor> parameters = tensors_of(strategy().list());
    for (at::Tensor& p : parameters) p = hides ? p.data() : p;
    write(parameters);
  }
  float gradient_norm() override { return strategy().clip_grad_norm(1e30); }
  void set_aside(bool aside) override {
    model_->after_part = [this, aside] {
      if (aside) train::UnshardedParameters(strategy(), strategy().list().units.size() - 1);
    };
  }
  Record weights() override {
    const std::vector<at::Tensor> whole = whole_weights(strategy());
    Record all;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      all.emplace_back(strategy().list().parameters[i].name, whole[i]);
    }
    return all;
  }

  void begin_anew() override {
    release();
    make();
  }
  void resume() override {
    const TestFolder mine;
    const std::filesystem::path folder = communicator_.exchange(mine.path().string()).front();
    io::save_checkpoint(strategy(), folder / "own", {});
    release();
    {
      const auto ddp = strategy_of("ddp");
      io::load_checkpoint(*ddp, folder / "own");
      io::save_checkpoint(*ddp, folder / "ddp", {});
      ddp->release();
    }
    const c10::NoGradGuard no_grad;
    for (at::Tensor& p : model_->parameters()) p.zero_();
    make();
    io::load_checkpoint(strategy(), folder / "ddp");
    communicator_.barrier();
  }

 private:
  // Their mean is not compared.
  train::Step::Losses said_of_losses() const {
    train::Step::Losses losses;
    losses.all_terms = 1;
    if (!weights_.finite()) losses.said.problem = "a loss is infinite or NaN on {ranks}";
    return losses;
  }

  train::Strategy& strategy() { return engine_ ? engine_->strategy() : *strategy_; }

  // For the time of a write in a forward.
  std::shared_ptr<void> held(const at::Tensor& weight) {
    const auto& parameters = strategy().list().parameters;
    const auto found = std::ranges::find_if(
        parameters, [&](const nn::Parameter& p) { return p.tensor.is_same(weight); });
    return std::make_shared<train::UnshardedParameters>(strategy(), found->unit);
  }
  void release() {
    engine_ ? engine_->release() : strategy_->release();
    engine_.reset();
    strategy_.reset();
  }
  std::unique_ptr<train::Strategy> strategy_of(const std::string& mode) {
    nn::SeededValues values(program_.seed);
    return make_strategy(mode, {.module = *model_,
                                .mesh = communicator_,
                                .optimizer = optimizer_of(program_),
                                .values = &values});
  }
  void make() {
    const bool has_options = mode_.find('=') != std::string::npos;
    const bool is_variant = mode_.find(':') != std::string::npos;
    if (mode_.starts_with("hddp") ||
        (!has_options && (is_variant || !mode_.starts_with("engine")))) {
      strategy_ = strategy_of(mode_);
      return;
    }
    nn::SeededValues values(program_.seed);
    tools::Registry registry;
    tools::register_all_chapters(registry);
    EngineConfig config = registry.config(mode_);
    config.accumulation_steps = program_.accumulation;
    config.clip_norm = program_.clip;
    config.broadcast_buffers = program_.broadcast;
    engine_ = std::make_unique<Engine>(*model_, communicator_, optimizer_of(program_), config,
                                       nn::default_units(), &values);
  }

  const Program& program_;
  const std::string mode_;
  dist::Communicator& communicator_;
  StepWeights weights_;
  std::shared_ptr<FuzzModel> model_;  // lives longer than what trains it
  std::set<std::size_t> may_toggle_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<train::Strategy> strategy_;
};

}  // namespace

std::unique_ptr<Side> plain_side(const Program& program) {
  return std::make_unique<PlainSide>(program);
}

std::unique_ptr<Side> mode_side(const Program& program, const std::string& mode,
                                dist::Communicator& communicator) {
  return std::make_unique<ModeSide>(program, mode, communicator);
}

}  // namespace zero::testing
