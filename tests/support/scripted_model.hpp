#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tools/ladder/registry.hpp>
#include <zero/nn/layers.hpp>
#include <zero/train/strategy.hpp>

#include "batch_model.hpp"

/// A model into whose forward and backward a test can reach, and a rank that trains it.
namespace zero::testing {

struct ScriptedModelOptions {
  int blocks = 3;
  bool biases_only = false;  ///< everything else is frozen
  int forgets_run = -1;      ///< the block that does not hand its forward to run()
};

/// What other units do not see is in one of it: tanh(linear(x) * scale) + shift.
class ScriptedBlock : public nn::Unit {
 public:
  explicit ScriptedBlock(const ScriptedModelOptions& options);
  at::Tensor forward(const at::Tensor& x);
  at::Tensor forward_without_run(const at::Tensor& x);
  /// What happens to the linear layer's output, in the unit.
  std::function<at::Tensor(const at::Tensor&)> inside;

  at::Tensor scale, shift;
  std::shared_ptr<nn::Linear> linear;
};

class ScriptedModel : public BatchModel {
 public:
  explicit ScriptedModel(const ScriptedModelOptions& options);
  at::Tensor loss(const data::Batch& batch) override;
  at::Tensor predict(const data::Batch& batch);

  std::vector<std::shared_ptr<ScriptedBlock>> blocks;
  at::Tensor head;
  std::function<void(const data::Batch&)> before_loss;  ///< inside loss(), outside of every unit
  std::function<void()> in_forward;                     ///< in the root's forward, after all blocks
  std::function<void()> in_backward;                    ///< before the backward of the last block
  std::function<at::Tensor(const at::Tensor&)> after_block;  ///< what happens to a block's output

 private:
  at::Tensor outputs(at::Tensor x);
  ScriptedModelOptions options_;
};

/// One rank. Its batches differ from those of other ranks.
struct ScriptedRun {
  ScriptedRun(dist::Communicator& communicator, const std::string& mode,
              const ScriptedModelOptions& options = {});

  data::Batch batch(int step) const;
  void backward_of(const at::Tensor& loss);  ///< and the update
  void step(int number);
  /// Bytes of parameters at their peak in a step beyond those at rest.
  std::int64_t peak_of_step(int number);
  std::size_t unit_of(const std::string& parameter) const;

  int rank;
  nn::SeededValues values{4};
  std::shared_ptr<ScriptedModel> model;
  std::unique_ptr<train::Strategy> strategy;
};

/// The modes that keep parameters in shards.
std::vector<std::string> stage_3_modes();

/// Plays `script` under ddp and all modes on as many ranks, and compares weights to the last bit.
void expect_scripts_like_ddp(int world_size, const ScriptedModelOptions& options,
                             const std::function<void(ScriptedRun&)>& script);

}  // namespace zero::testing
