#pragma once

#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <zero/engine.hpp>
#include <zero/optim/optimizer.hpp>

/// Training loops that are written once and played twice: by an engine on every rank, and in one
/// process by the plain modules with an optimizer over all of it, for the batches of all ranks.
namespace zero::testing::loops {

/// What a loop needs of one model that it trains. A rank's part of a loop is a function of `rank`:
/// an engine calls it for its own, the plain program for one rank after the other.
class Trained {
 public:
  using OfRank = std::function<at::Tensor(int rank)>;

  virtual ~Trained() = default;
  /// The loss of rank `rank`'s batch, from BatchModel::loss().
  virtual at::Tensor forward(const data::Batch& batch) = 0;
  /// Backward of a micro-batch. `terms`: of that rank's batch, for the plain program; 1: all alike.
  virtual void backward(
      const OfRank& loss,
      const std::function<std::int64_t(int rank)>& terms = [](int) { return 1; }) = 0;
  /// What Engine::step() returns.
  virtual bool step() = 0;
  virtual void give_up_step() = 0;
  virtual void set_learning_rate(double rate) = 0;
  /// Calls `change` with parts of the parameters, the same elements under every stage, and their
  /// averaged gradients (undefined if there is none): for changes of each element by itself.
  /// `index`: of the parameter; `begin`: of the first element in it.
  using Change = std::function<void(std::size_t index, const at::Tensor& values,
                                    const at::Tensor& gradient, std::int64_t begin)>;
  virtual void change(const Change& change) = 0;
  /// Norm of the averaged gradient, between the last backward() and step().
  virtual float gradient_norm() = 0;
  /// Copies of all weights, whole.
  virtual std::vector<at::Tensor> weights() = 0;
};

/// Plays loops in one of the two ways.
class Player {
 public:
  virtual ~Player() = default;
  /// `model` lives until the player's end.
  virtual Trained& train(const std::shared_ptr<BatchModel>& model,
                         const optim::OptimizerFactory& optimizer,
                         const EngineConfig& config = {}) = 0;
  /// Numbers of the ranks whose part this process plays.
  virtual std::vector<int> ranks() const = 0;
  /// The mean over all ranks of a number of each, added in rank order.
  virtual double mean(const std::function<double(int rank)>& of_rank) = 0;
};

/// A loop returns what must be the same: weights, and what it has computed from them.
struct Loop {
  std::string name;
  std::function<std::vector<at::Tensor>(Player& player)> play;
  bool second_order = false;  ///< needs a second backward through units, which stage 3 refuses
};

/// The plain program of `ranks` ranks.
std::unique_ptr<Player> plain_player(int ranks);
/// Engines with the mode of `options`.
std::unique_ptr<Player> engine_player(dist::Communicator& communicator,
                                      const EngineConfig& options);

std::vector<Loop> adversarial_loops();
std::vector<Loop> gradient_loops();
std::vector<Loop> schedule_loops();
std::vector<Loop> objective_loops();

}  // namespace zero::testing::loops
