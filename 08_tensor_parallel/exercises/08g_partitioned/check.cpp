// Runs layers on tensor ranks, and looks from inside them at what a rank holds and sends.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <grading/check.hpp>
#include <zero/memory/accounting.hpp>

#include "08g.hpp"

namespace exercise_08g {

using zero::dist::Communicator;
using zero::exercise::Mistake;

constexpr int kLayers = 3;
constexpr std::int64_t kTokens = 5, kHidden = 12, kFeatures = 30;
constexpr std::int64_t kInput = 4 * kTokens * kHidden;  // bytes

std::int64_t bytes_held() {
  const zero::memory::Snapshot now = zero::memory::snapshot();
  return now.total - now[zero::memory::Category::kCommunication];
}

at::Tensor random(at::IntArrayRef sizes, int seed) {
  at::manual_seed(seed);
  return at::randn(sizes);
}

// One rank's run. The layers are those of 08a without biases.
class Run {
 public:
  Run(const Answer& answer, Communicator& axis)
      : answer_(answer), axis_(axis), delta_(random({kTokens, kHidden}, 90)) {
    for (int layer = 0; layer < kLayers; ++layer) {
      first_.push_back(part(random({kHidden, kFeatures}, 2 * layer + 1).mul_(0.3), 1));
      second_.push_back(part(random({kFeatures, kHidden}, 2 * layer + 2).mul_(0.3), 0));
    }
    run_whole();
  }

  void check() {
    const Layers layers = {kLayers, [this](int l, const at::Tensor& x) { return forward(l, x); },
                           [this](int l, const at::Tensor& x, const at::Tensor& delta) {
                             return backward(l, x, delta);
                           }};
    held_before_ = bytes_held();
    sent_before_ = axis_.traffic().bytes() - sent_by_layers_;
    Forward result = answer_.forward(layers, random({kTokens, kHidden}, 80), axis_);
    check_forward(result);
    result.output.reset();
    kept_ = kLayers * kInput / axis_.size();
    const at::Tensor gradient =
        answer_.backward(layers, std::move(result.kept), delta_.clone(), {kTokens, kHidden}, axis_);
    check_backward(gradient);
  }

 private:
  at::Tensor part(const at::Tensor& whole, int dim) const {
    return whole.chunk(axis_.size(), dim)[static_cast<std::size_t>(axis_.rank())].contiguous();
  }

  // Adds up over the axis, and counts what that sends.
  at::Tensor summed(const at::Tensor& term) {
    const std::int64_t before = axis_.traffic().bytes();
    axis_.all_reduce(term, zero::dist::Purpose::kActivation, zero::dist::ReduceOp::kSum).wait();
    sent_by_layers_ += axis_.traffic().bytes() - before;
    return term;
  }

  at::Tensor output_of(int layer, const at::Tensor& x) {
    const auto l = static_cast<std::size_t>(layer);
    return summed(x.mm(first_[l]).tanh().mm(second_[l]));
  }

  at::Tensor gradient_of(int layer, const at::Tensor& x, const at::Tensor& delta) {
    const auto l = static_cast<std::size_t>(layer);
    const at::Tensor inner = x.mm(first_[l]).tanh();
    return summed((delta.mm(second_[l].t()) * (1 - inner.square())).mm(first_[l].t()));
  }

  // What the answer must have: inputs, output and gradient.
  void run_whole() {
    at::Tensor x = random({kTokens, kHidden}, 80);
    for (int layer = 0; layer < kLayers; ++layer) {
      inputs_.push_back(x);
      x = output_of(layer, x);
    }
    output_ = x;
    gradient_ = delta_;
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      gradient_ = gradient_of(layer, inputs_[static_cast<std::size_t>(layer)], gradient_);
    }
  }

  std::string rank() const { return fmt::format("rank {}", axis_.rank()); }

  // The answer calls the layers through these two.
  at::Tensor forward(int layer, const at::Tensor& x) {
    if (layer != forwards_++)
      throw Mistake(fmt::format("forward of layer {} is not its turn", layer));
    return output_of(layer, x);
  }

  at::Tensor backward(int layer, const at::Tensor& x, const at::Tensor& delta) {
    if (layer != kLayers - 1 - backwards_++) {
      throw Mistake(fmt::format("backward of layer {} is not its turn", layer));
    }
    const at::Tensor& right = inputs_[static_cast<std::size_t>(layer)];
    if (!x.defined() || x.sizes() != right.sizes() || !x.equal(right)) {
      throw Mistake(fmt::format("on {} layer {} is run again from another input than its own",
                                rank(), layer));
    }
    // The parts, this layer's input, and delta.
    const std::int64_t enough = kept_ + kInput + kInput;
    if (const std::int64_t held = bytes_held() - held_before_; held > enough) {
      throw Mistake(fmt::format(
          "in backward of layer {} {} holds {} bytes more than its parts, one whole input and its "
          "gradient: gather each input just before its layer",
          layer, rank(), held - enough));
    }
    return gradient_of(layer, x, delta);
  }

  void check_forward(const Forward& result) const {
    if (forwards_ != kLayers) {
      throw Mistake(fmt::format("forward runs {} of {} layers", forwards_, kLayers));
    }
    if (!result.output.defined() || !result.output.equal(output_)) {
      throw Mistake(fmt::format("the output on {} is not that of the layers", rank()));
    }
    const std::int64_t enough = kLayers * kInput / axis_.size();
    const std::int64_t held = bytes_held() - held_before_ - kInput;  // without the output
    if (held == enough) return;
    std::int64_t shown = 0;
    for (const at::Tensor& kept : result.kept) {
      if (kept.defined()) shown += static_cast<std::int64_t>(kept.nbytes());
    }
    throw Mistake(
        fmt::format("after forward {} holds {} bytes of checkpoints, and {} are enough: {}", rank(),
                    held, enough,
                    shown == enough ? "a view keeps the whole tensor in memory"
                                    : fmt::format("1/{} of each input", axis_.size())));
  }

  void check_backward(const at::Tensor& gradient) const {
    if (backwards_ != kLayers) {
      throw Mistake(fmt::format("backward runs {} of {} layers", backwards_, kLayers));
    }
    if (!gradient.defined() || !gradient.equal(gradient_)) {
      throw Mistake(fmt::format("the gradient of x on {} is not that of the layers", rank()));
    }
    const std::int64_t sent = axis_.traffic().bytes() - sent_by_layers_ - sent_before_;
    const std::int64_t enough = kLayers * kInput / axis_.size() * (axis_.size() - 1);
    if (sent == enough) return;
    throw Mistake(fmt::format(
        "{} sends {} bytes beside the layers' own, and one all-gather a layer sends {}{}", rank(),
        sent, enough,
        sent == 2 * enough ? ": an all-reduce of parts and zeros sends twice as much" : ""));
  }

  const Answer& answer_;
  Communicator& axis_;
  std::vector<at::Tensor> first_, second_, inputs_;
  at::Tensor delta_, output_, gradient_;
  int forwards_ = 0, backwards_ = 0;
  std::int64_t held_before_ = 0, kept_ = 0, sent_before_ = 0, sent_by_layers_ = 0;
};

// 7 elements on 2 ranks.
void check_refusal(const Answer& answer, Communicator& axis) {
  int runs = 0;
  const Layers layers = {1,
                         [&](int, const at::Tensor& x) {
                           ++runs;
                           return x.clone();
                         },
                         nullptr};
  std::string said;
  try {
    answer.forward(layers, at::ones({7, 1}), axis);
  } catch (const std::invalid_argument& error) {
    said = error.what();
  }
  if (said.empty()) throw Mistake("7 elements on 2 ranks are not refused: some would be lost");
  if (said.find('7') == std::string::npos || said.find('2') == std::string::npos) {
    throw Mistake(fmt::format("7 elements on 2 ranks are refused with '{}': name both", said));
  }
  if (runs > 0) throw Mistake("7 elements on 2 ranks are refused after a layer has run");
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& axis) { Run(answer, axis).check(); });
  zero::exercise::on_ranks(2, [&](Communicator& axis) { check_refusal(answer, axis); });
}

}  // namespace exercise_08g
