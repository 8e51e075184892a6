#include "script.hpp"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include <tests/support/modes.hpp>
#include <zero/base/error.hpp>

namespace zero::testing {
namespace {

constexpr const char* kNotFinite = "infinite or NaN";
constexpr const char* kRefused = "a flat all-reduce needs one dtype";  // of ddp:flat, by its name

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
      case 'd':
        if (micro_batches_ == 0) side_.toggle(static_cast<std::size_t>(number_));
        return;
      case 't':
        return one_rank_has_none();
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
      losses.terms.push_back(static_cast<double>(batch.loss_terms));
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
    side_.give_up_step();
    micro_batches_ = 0;
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
    if (program_.uneven) {
      data::Batch& batch = all[static_cast<std::size_t>((number_ + 1) % program_.ranks)];
      batch.inputs = batch.inputs.narrow(0, 0, 0);
      batch.targets = batch.targets.narrow(0, 0, 0);
      batch.loss_terms = 0;
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
};

// How far a tensor may be from the other: to the last bit, or relative to its largest element.
bool are_close(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (a.sizes() != b.sizes() || !at::equal(a.isnan(), b.isnan())) return false;
  const at::Tensor one = a.nan_to_num(), other = b.nan_to_num();
  if (tolerance == 0 || a.numel() == 0) return at::equal(one, other);
  const auto largest = [](const at::Tensor& x) {
    return x.abs().max().to(at::kDouble).item<double>();
  };
  return largest(one - other) <= tolerance * (1 + largest(other));
}

// What differs first; empty if nothing does.
std::string difference(const Record& record, const Record& expected, double tolerance) {
  for (std::size_t i = 0; i < std::min(record.size(), expected.size()); ++i) {
    const auto& [name, tensor] = record[i];
    const auto& [expected_name, other] = expected[i];
    if (name != expected_name) return fmt::format("{} where {} was expected", name, expected_name);
    if (are_close(tensor, other, tolerance)) continue;
    return fmt::format("{} differs by {:.2g}", name,
                       (tensor - other).abs().max().to(at::kDouble).item<double>());
  }
  if (record.size() != expected.size()) return "one has more records";
  return "";
}

bool is_second_order(const Program& program) {
  return program.loop.find_first_of("qQ") != std::string::npos;
}

// How far the first mode may be from the plain program; all others must have its bits. The hooks of
// units group the terms of a sum that meet in the output of a unit. In a graph of second order such
// terms may come from within the unit too, and then the plain program adds them in another order.
// Only an update that is linear in the gradient keeps so small a difference small, and the sign of
// a gradient (g) does not.
double tolerance_of(const Program& program) {
  if (!is_second_order(program)) return 0;
  const bool is_linear = program.optimizer == "sgd" && program.loop.find('g') == std::string::npos;
  if (!is_linear || program.dtype == "bfloat16") return std::numeric_limits<double>::infinity();
  return program.dtype == "float" ? 1e-4 : 1e-12;
}

}  // namespace

Record play(const Program& program, Side& side, int rank) {
  return Player(program, side, rank).play();
}

std::string verdict(const Program& program, dist::Communicator& communicator) {
  Record expected;
  try {
    expected = play(program, *plain_side(program), communicator.rank());
  } catch (const std::exception& error) {
    return kInvalid + message_of(error);
  }
  double tolerance = tolerance_of(program);
  for (const std::string& mode : program.modes) {
    if (is_second_order(program) && is_stage_3(mode)) continue;  // it is refused there
    std::string text;
    try {
      const auto side = mode_side(program, mode, communicator);
      const Record record = play(program, *side, communicator.rank());
      text = difference(record, expected, std::exchange(tolerance, 0));
      expected = record;
    } catch (const std::exception& error) {
      const std::string message = message_of(error);
      if (message.find(kRefused) == std::string::npos) text = "error: " + message;
    }
    // All ranks go on, or none.
    for (const std::string& of_rank : communicator.exchange(text)) {
      if (!of_rank.empty()) return fmt::format("{}: {}", mode, of_rank);
    }
  }
  return "";
}

}  // namespace zero::testing
