#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "batch_model.hpp"

namespace zero::testing {

/// A model described by a line, of which there can be many: for tests over shapes, not over one
/// shape. Every kind of part may come any number of times, in any order.
struct RandomModelConfig {
  std::int64_t inputs = 5;
  std::int64_t width = 7;
  /// A letter for each part between the first and the last layer:
  ///   a  a unit: tanh of a linear layer with bias
  ///   t  the first `a` once more (the same unit a second time)
  ///   f  a unit whose only weight is frozen
  ///   n  a unit that holds a unit and has a parameter of its own
  ///   l  a unit of layers, each of which holds its own parameters; the first is used twice
  ///   s  a unit of many parameters with 1 to 3 elements
  ///   g  a scalar of the root
  ///   d  a unit whose output is that of a unit within
  std::string parts = "anf";
  bool tied = true;  ///< the first weight is the last one too
  at::ScalarType dtype = at::kFloat;
};

/// The loss is the mean squared error over the rows of the batch: 0 for an empty one.
class RandomModel : public BatchModel {
 public:
  explicit RandomModel(const RandomModelConfig& config);

  at::Tensor loss(const data::Batch& batch) override;
  at::Tensor predict(const data::Batch& batch);

  /// Runs the first `parts` parts only, from now on: what comes after them is not used.
  void stop_after(std::size_t parts) { used_parts_ = parts; }
  /// Calls `function` in every forward from now on, between the first layer and the parts.
  void call_in_forward(std::function<void()> function) { in_forward_ = std::move(function); }
  /// Part `index` as a unit of its own, called from outside: [n, width] to [n, width].
  at::Tensor run_part(std::size_t index, const at::Tensor& x);
  const RandomModelConfig& config() const { return config_; }

 private:
  class Block;
  void add_part(char letter, std::shared_ptr<nn::Layer> holder);
  std::shared_ptr<Block> make_part(char letter);

  RandomModelConfig config_;
  std::size_t used_parts_ = 1000;
  std::function<void()> in_forward_;
  at::Tensor first_;  // [width, inputs]
  at::Tensor last_;   // the same, or another
  std::vector<std::shared_ptr<Block>> parts_;
  std::shared_ptr<Block> first_plain_;
};

/// [samples, inputs] and [samples, 1], different for every (seed, rank, step).
data::Batch random_model_batch(const RandomModelConfig& config, std::uint64_t seed, int rank,
                               int step, std::int64_t samples = 4);

/// Several batches as one, in their order.
data::Batch concatenate(const std::vector<data::Batch>& batches);

}  // namespace zero::testing
