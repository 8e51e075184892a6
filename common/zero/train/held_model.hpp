#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <zero/nn/parameters.hpp>
#include <zero/train/strategy_arguments.hpp>

namespace zero::train {

/// What ranks compare when a strategy is made, for messages.
inline constexpr const char* kModelOrStrategy = "the model or the strategy";

/// Empty, unless LibTorch is in c10::InferenceMode now: what `call` makes there could be neither
/// changed nor differentiated afterwards.
std::string under_inference_mode(const std::string& call);

/// The model as a strategy holds it, from the strategy's constructor to release(). No other
/// strategy accepts the model in that time, and errors name this one.
class HeldModel {
 public:
  /// Makes the units of a model that no strategy holds, and returns its parameters. Called by all
  /// ranks. Throws zero::Error on all of them if on any rank a strategy holds the model, the rule
  /// for units throws, nn::list_parameters() refuses it, a
  /// trainable parameter is of another type than float32, float64, bfloat16 and float16 or has
  /// sparse gradients, a buffer uses the memory of a parameter, a tensor was made in
  /// c10::InferenceMode, that is on now, an ignored parameter has no values or is of a stage of a
  /// pipeline, or such a stage trains no parameter.
  static nn::ParameterList free_parameters(const StrategyArguments& arguments,
                                           std::optional<nn::ModelUnits>& units);

  /// `list` must outlive this object. `before_read` is called before another model's forward, which
  /// may read parameters.
  HeldModel(const StrategyArguments& arguments, const nn::ParameterList& list,
            const std::function<void()>& before_read);
  /// Without release(), marks the model as unusable, unless every parameter is whole, in storage of
  /// its own.
  ~HeldModel();
  HeldModel(const HeldModel&) = delete;
  HeldModel& operator=(const HeldModel&) = delete;

  /// The strategy's name, for messages.
  const std::string& mode() const { return mode_; }
  /// Blocks until the parameters of all other models of these ranks may be read: they may still
  /// arrive (ShardingOptions::defer_parameter_gather).
  void finish_others() const;
  /// Notes the storages of the parameters. Call when they stay the same until release().
  void note_storages();
  /// Throws zero::Error if the model has been released.
  void verify_not_released() const;
  /// The same if a parameter has another storage than note_storages() has seen, or is another part
  /// of it: an optimizer may update a shard of the noted one, and gathers write into it.
  void verify_storages() const;

  /// Gives every parameter storage of its own with `values`, flat and in the order of the list.
  void release(const std::vector<at::Tensor>& values);

 private:
  // The part of its storage that a tensor is.
  struct Window {
    explicit Window(const at::Tensor& tensor);
    bool operator==(const Window&) const = default;
    const void* storage;
    std::int64_t offset;
    std::vector<std::int64_t> sizes, strides;
  };
  static void verify_not_held(const torch::nn::Module& module);
  bool is_whole() const;

  const nn::ParameterList& list_;
  std::string mode_;
  const dist::Communicator& ranks_;
  std::function<void()> before_read_;
  std::vector<Window> origins_;    // by parameter, as the strategy got them
  std::vector<bool> had_storage_;  // the same
  std::vector<Window> windows_;    // by parameter, from note_storages()
  bool released_ = false;
};

}  // namespace zero::train
