#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <zero/nn/parameters.hpp>
#include <zero/train/strategy.hpp>

namespace zero {

/// What this rank has of a parameter's averaged gradient, flat: from element `begin` of the
/// flattened parameter on.
using GradientCallback =
    std::function<void(const std::string& name, const at::Tensor& gradient, std::int64_t begin)>;

/// `.grad` of a model's parameters between the first backward() of a step and its step().
///
/// Most of the time it is not what an update uses: between the micro-batches it has gradients of
/// this rank alone, and after them, if gradients or optimizer states are sharded, at most parts of
/// the average. What programs do with `.grad` there, such as torch::nn::utils::clip_grad_norm_(),
/// would silently do something else. So gradients are hidden: `.grad` of every parameter is a
/// tensor without bytes. A read, a change and another backward() that adds to it throw c10::Error,
/// which names the parameter and says what to do. Where `.grad` is the average, a program may
/// change it, and the changes are watched.
///
/// Acts on this rank alone and sends nothing, but for call() and whole().
class StepGradients {
 public:
  /// `list` must outlive this object.
  explicit StepGradients(const nn::ParameterList& list) : list_(list) {}
  ~StepGradients() { forget(); }
  StepGradients(const StepGradients&) = delete;
  StepGradients& operator=(const StepGradients&) = delete;

  /// Takes all gradients, until show().
  void hide();
  /// Restores them to the parameters.
  void show();
  /// Engine::on_gradients(): calls `callback`, and says that gradients have changed. All ranks.
  static void call(train::Strategy& strategy, const GradientCallback& callback);
  /// Engine::gradient(), with the loss scale. All ranks; blocks.
  at::Tensor whole(train::Strategy& strategy, const std::string& name);
  /// Leaves them where they are, and notes what they are.
  void watch();
  /// Forgets what was hidden or watched. A `.grad` that was hidden is undefined then.
  void forget();

  /// The first parameter whose `.grad` was set or reset while it was hidden; list.size() if there
  /// is none.
  std::size_t first_taken() const;
  /// What was done to gradients while they were watched, a line for each parameter; empty if
  /// nothing was. Changes through Tensor::data(), such as those of clip_grad_norm_(), are not seen.
  std::string changes() const;

 private:
  bool is_hidden(std::size_t index) const;

  const nn::ParameterList& list_;
  std::vector<at::Tensor> gradients_;    // by parameter, hidden or watched; else empty
  std::vector<at::Tensor> shown_;        // the same, without bytes; made once
  std::vector<std::uint32_t> versions_;  // the same, if they are watched
};

}  // namespace zero
