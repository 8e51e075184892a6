#include "script.hpp"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <stdexcept>

#include <zero/base/error.hpp>

namespace zero::testing {
namespace {

constexpr const char* kNotFinite = "infinite or NaN";

at::Tensor every_other(const at::Tensor& x) {
  return x * at::arange(x.numel(), x.options()).remainder(2).view_as(x);
}

struct AfterAccumulation : torch::autograd::PostAccumulateGradHook {
  explicit AfterAccumulation(std::function<void(const at::Tensor&)> f) : function(std::move(f)) {}
  void operator()(const at::Tensor& parameter) override { function(parameter); }
  std::function<void(const at::Tensor&)> function;
};

struct BeforeAccumulation : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    return {every_other(gradients.front())};
  }
};

// What a program may write into its weights.
void clamp(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& p : parameters) at::clamp_(const_cast<at::Tensor&>(p), -0.1, 0.1);
}
void copy_parts(const std::vector<at::Tensor>& parameters) {
  const at::Tensor of_first = parameters.front().reshape({-1})[0];
  for (const at::Tensor& p : parameters) {
    if (p.numel() > 0) p.view({-1})[p.numel() / 2].copy_(of_first);
  }
}

// One run of a loop.
class Player {
 public:
  Player(const Program& program, Side& side, int rank)
      : program_(program), side_(side), rank_(rank) {}

  Record play() {
    try {
      for (number_ = 0; number_ < static_cast<int>(program_.loop.size()); ++number_) {
        act(program_.loop[static_cast<std::size_t>(number_)]);
      }
    } catch (const Error& error) {
      if (std::string(error.what()).find(kNotFinite) == std::string::npos) throw;
      note("not finite", at::tensor(number_));
    }
    read_weights();
    note("hooks called", at::tensor(calls_));
    for (const auto& lane : side_.lanes()) {
      if (lane.rank != rank_) continue;
      for (const auto& buffer : lane.model->named_buffers()) note(buffer.key(), buffer.value());
    }
    return std::move(record_);
  }

 private:
  void act(char letter) {
    switch (letter) {
      case 'b':
        return two_forwards();
      case 'j':
        return joined();
      case 'e':
        return evaluate();
      case 'u':
        forward(batches(50));
        return;
      case 'x':
      case 'y':
        return throws(letter == 'x');
      case 'g':
        return adversarial();
      case 'q':
        return penalised();
      case 'Q':
        return penalised_outside();
      case 'w':
        return read_weights();
      case 'l':
        rate_ /= 2;
        return side_.set_learning_rate(rate_);
      case 'n':
        if (micro_batches_ == 0) side_.begin_anew();
        return;
      case 'k':
        if (micro_batches_ == 0) side_.resume();
        return;
      case 'd':
        if (micro_batches_ == 0) side_.toggle(static_cast<std::size_t>(number_));
        return;
      case 't':
        return one_rank_has_none();
      default:
        return act_on_parameters(letter);
    }
  }
  void act_on_parameters(char letter) {
    switch (letter) {
      case 'f':
      case 'F':
        return frozen_meanwhile(letter == 'f');
      case 'v':
        return step_after([&] { forward(batches(50)); });
      case 'V':
        return evaluations_in_a_step();
      case 'o':
        backward(forward(batches(0)));
        return micro_batches_ == program_.accumulation ? step() : void();
      case 'G':
        return step_of_an_earlier_forward();
      case 'U':
        side_.set_aside(true);
        micro_batch(batches(0));
        return side_.set_aside(false);
      case 'c':
        if (micro_batches_ > 0) return;
        return side_.change([](auto& values, auto&, auto& numbers) { values.add_(numbers); });
      case 'p':
        return step_after([&] { change_gradients(); });
      case 's':
        return sharpness_aware();
      case 'C':
      case 'A':
        return side_.write(clamp, /*hides=*/letter == 'A');
      case 'T':
        return side_.write(copy_parts, /*hides=*/false);
      case 'K':
        return step_after([&] { side_.write(clamp, /*hides=*/false); });
      case 'h':
      case 'P':
      case 'H':
      case 'L':
      case 'R':
      case 'E':
        return act_on_hooks(letter);
      default:
        return micro_batch(batches(0));
    }
  }

  struct Losses {
    std::vector<at::Tensor> tensors;  // by lane
    std::vector<double> terms;        // by rank
  };

  // Of all ranks.
  std::vector<data::Batch> batches(int offset) const {
    std::vector<data::Batch> all;
    for (int rank = 0; rank < program_.ranks; ++rank) {
      all.push_back(fuzz_batch(program_, rank, number_ + offset));
    }
    return all;
  }

  Losses forward(const std::vector<data::Batch>& batches) {
    Losses losses;
    for (std::size_t k = 0; k < side_.lanes().size(); ++k) {
      const int rank = side_.lanes()[k].rank;
      at::manual_seed(program_.seed + static_cast<std::uint64_t>(1000 * rank + forwards_));
      const at::Tensor loss = side_.forward(k, batches[static_cast<std::size_t>(rank)]);
      losses.tensors.push_back(loss);
      if (rank == rank_) note(fmt::format("loss {}", forwards_), loss);
    }
    ++forwards_;
    for (const data::Batch& batch : batches) {
      losses.terms.push_back(program_.own ? 1 : static_cast<double>(batch.loss_terms));
    }
    return losses;
  }

  void backward(const Losses& losses) {
    side_.backward(losses.tensors, losses.terms);
    ++micro_batches_;
  }

  void step() {
    const bool updated = side_.step();
    if (updated != (micro_batches_ == program_.accumulation)) throw Error("step() at another time");
    if (updated) micro_batches_ = 0;
  }

  void micro_batch(const std::vector<data::Batch>& batches) {
    backward(forward(batches));
    step();
  }

  void two_forwards() {
    const Losses first = forward(batches(0)), second = forward(batches(60));
    backward(second);
    step();
    if (micro_batches_ == 0) return;  // the graph of the first belongs to old weights
    backward(first);
    step();
  }

  void joined() {
    Losses losses = forward(batches(0));
    const Losses other = forward(batches(70));
    for (std::size_t k = 0; k < losses.tensors.size(); ++k) {
      losses.tensors[k] = losses.tensors[k] + 0.5 * other.tensors[k];
    }
    for (std::size_t r = 0; r < losses.terms.size(); ++r) {
      losses.terms[r] = (losses.terms[r] + other.terms[r]) / 2;
    }
    backward(losses);
    step();
  }

  void evaluate() {
    const c10::NoGradGuard no_grad;
    forward(batches(80));
  }
  void evaluations_in_a_step() {
    const Losses losses = forward(batches(0));
    evaluate();
    backward(losses);
    evaluate();
    step();
  }
  // Another thing between backward and step().
  void step_after(const std::function<void()>& other) {
    backward(forward(batches(0)));
    other();
    step();
  }
  void step_of_an_earlier_forward() {
    const Losses losses = forward(batches(0));
    backward(forward(batches(50)));
    give_up_step();
    backward(losses);
    step();
  }
  void give_up_step() {
    side_.give_up_step();
    micro_batches_ = 0;
  }
  bool at_a_whole_step() const { return micro_batches_ == 0 && program_.accumulation == 1; }
  void frozen_meanwhile(bool in_backward) {
    if (!at_a_whole_step()) return micro_batch(batches(0));
    const auto toggle = [&] {
      for (const int k : {0, 1}) side_.toggle(static_cast<std::size_t>(number_ + k));
    };
    const Losses losses = forward(batches(0));
    if (in_backward) toggle();
    backward(losses);
    if (!in_backward) toggle();
    step();
    toggle();
  }
  void change_gradients() {
    if (micro_batches_ < program_.accumulation) return;  // they are not all there
    side_.change([](auto&, auto& gradient, auto& numbers) {
      if (gradient.defined()) gradient.add_(numbers);
    });
  }
  // The gradient is that at worse weights nearby (Foret et al. 2021).
  void sharpness_aware() {
    if (!at_a_whole_step()) return micro_batch(batches(0));
    const std::vector<data::Batch> all = batches(0);
    backward(forward(all));
    const double scale = 0.05 / (side_.gradient_norm() + 1e-12);
    std::vector<at::Tensor> before;
    side_.change([&](auto& values, auto& gradient, auto&) {
      before.push_back(values.clone());
      if (gradient.defined()) values.add_(gradient * scale);
    });
    give_up_step();
    backward(forward(all));
    std::size_t i = 0;
    side_.change([&](auto& values, auto&, auto&) { values.copy_(before[i++]); });
    step();
  }
  void act_on_hooks(char letter) {
    for (std::size_t k = 0; k < side_.lanes().size(); ++k) {
      const int rank = side_.lanes()[k].rank;
      int* const calls = rank == rank_ ? &calls_ : &calls_of_others_;
      for (const nn::Parameter& parameter : side_.list(k).parameters) {
        const at::Tensor& p = parameter.tensor;
        if (letter == 'h' && p.requires_grad()) {
          p.register_hook([calls](const at::Tensor& gradient) {
            ++*calls;
            return every_other(gradient).clamp(-0.01, 0.02);
          });
        }
        if (letter == 'R' && p.requires_grad()) p.remove_hook(0);
        if (letter == 'P' && p.requires_grad()) {
          accumulators_.push_back(torch::autograd::impl::grad_accumulator(p));
          accumulators_.back()->add_pre_hook(std::make_unique<BeforeAccumulation>());
        }
        if (letter == 'H')
          set_after_accumulation(p, [calls](const at::Tensor& parameter) {
            ++*calls;
            parameter.mutable_grad() = parameter.grad().clamp(-0.01, 0.02);
          });
        if (letter == 'L' && rank == 0) set_after_accumulation(p, [](auto&) {});
        if (letter == 'E') torch::autograd::impl::set_post_acc_grad_hooks(p, nullptr);
      }
    }
  }
  static void set_after_accumulation(const at::Tensor& parameter,
                                     std::function<void(const at::Tensor&)> function) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameter, std::make_unique<AfterAccumulation>(std::move(function)));
  }

  void throws(bool in_forward) {
    for (const auto& lane : side_.lanes()) {
      const auto part = static_cast<std::size_t>(number_) + static_cast<std::size_t>(program_.seed);
      in_forward ? lane.model->throw_in_forward(part) : lane.model->throw_in_backward(part);
    }
    // The plain program goes on with its next rank: each throws.
    try {
      if (in_forward) {
        forward_that_throws();
      } else {
        backward(forward(batches(0)));
      }
      throw Error("nothing was thrown");
    } catch (const std::exception& error) {
      if (std::string(error.what()).find(FuzzModel::kThrown) == std::string::npos) throw;
    }
    give_up_step();
  }
  void forward_that_throws() {
    const std::vector<data::Batch> all = batches(0);
    for (std::size_t k = 0; k < side_.lanes().size(); ++k) {
      const int rank = side_.lanes()[k].rank;
      at::manual_seed(program_.seed + static_cast<std::uint64_t>(rank));
      try {
        side_.forward(k, all[static_cast<std::size_t>(rank)]);
      } catch (const std::exception& error) {
        if (k + 1 == side_.lanes().size()) throw;
        if (std::string(error.what()).find(FuzzModel::kThrown) == std::string::npos) throw;
      }
    }
  }

  static std::vector<data::Batch> with_gradients(std::vector<data::Batch> batches) {
    for (data::Batch& batch : batches) batch.inputs.requires_grad_();
    return batches;
  }

  void adversarial() {
    std::vector<data::Batch> all = with_gradients(batches(0));
    const Losses losses = forward(all);
    for (std::size_t k = 0; k < losses.tensors.size(); ++k) {
      at::Tensor& inputs = all[static_cast<std::size_t>(side_.lanes()[k].rank)].inputs;
      const at::Tensor slope = torch::autograd::grad({losses.tensors[k]}, {inputs})[0];
      inputs = (inputs + 0.1 * slope.sign()).detach();
    }
    micro_batch(all);
  }

  void penalised() {
    for (const auto& lane : side_.lanes()) lane.model->set_penalised(true);
    micro_batch(batches(0));
    for (const auto& lane : side_.lanes()) lane.model->set_penalised(false);
  }

  void penalised_outside() {
    const std::vector<data::Batch> all = with_gradients(batches(0));
    Losses losses = forward(all);
    for (std::size_t k = 0; k < losses.tensors.size(); ++k) {
      const at::Tensor& inputs = all[static_cast<std::size_t>(side_.lanes()[k].rank)].inputs;
      const auto slopes = torch::autograd::grad({losses.tensors[k]}, {inputs}, {},
                                                /*retain_graph=*/true, /*create_graph=*/true);
      losses.tensors[k] = losses.tensors[k] + 0.1 * slopes[0].to(at::kFloat).square().sum();
    }
    backward(losses);
    step();
  }

  void one_rank_has_none() {
    std::vector<data::Batch> all = batches(0);
    data::Batch& batch = all[static_cast<std::size_t>((number_ + 1) % program_.ranks)];
    batch.loss_terms = 0;
    if (program_.uneven) {  // no samples either, else those of another batch once more
      batch.inputs = batch.inputs.narrow(0, 0, 0);
      batch.targets = batch.targets.narrow(0, 0, 0);
    }
    micro_batch(all);
  }

  void read_weights() {
    for (const auto& [name, weight] : side_.weights()) note(name, weight);
  }

  void note(const std::string& name, const at::Tensor& tensor) {
    record_.emplace_back(fmt::format("{} at '{}' ({})", name, at_letter(), number_),
                         tensor.detach().clone());
  }

  char at_letter() const {
    const auto at = static_cast<std::size_t>(number_);
    return at < program_.loop.size() ? program_.loop[at] : '.';
  }

  const Program& program_;
  Side& side_;
  const int rank_;
  Record record_;
  int number_ = 0;    // of the letter
  int forwards_ = 0;  // of those that returned
  int micro_batches_ = 0;
  double rate_ = 0.01;
  int calls_ = 0, calls_of_others_ = 0;  // of hooks that change gradients
  std::vector<c10::intrusive_ptr<torch::autograd::Node>> accumulators_;
};

}  // namespace

Record play(const Program& program, Side& side, int rank) {
  return Player(program, side, rank).play();
}

}  // namespace zero::testing
