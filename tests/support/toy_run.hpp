#pragma once

#include <concepts>
#include <memory>
#include <string>

#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>

#include "batch_model.hpp"
#include "toy.hpp"

/// What the tests of the chapters share.
namespace zero::testing {

/// One rank that trains a toy with the class of a chapter. Made by all ranks.
template <class Strategy, class Model = Toy>
struct ToyRun {
  /// `more` is what the chapter's class takes besides.
  template <class... More>
  explicit ToyRun(dist::Communicator& communicator, const std::string& variant = "",
                  const More&... more)
      : communicator(communicator),
        owned(std::make_unique<Strategy>(arguments(variant), more...)),
        trainer(strategy, losses_of(strategy)) {}
  /// The same with what `make` makes of the arguments of a strategy.
  template <class Make>
  requires std::invocable<Make, train::StrategyArguments> ToyRun(dist::Communicator& communicator,
                                                                 const Make& make)
      : communicator(communicator),
        owned(make(arguments())),
        trainer(strategy, losses_of(strategy)) {}

  train::StrategyArguments arguments(const std::string& variant = "") {
    return {*toy.model, communicator, optim::adamw(), &toy.values, variant};
  }

  /// This rank's batch of `step`.
  data::Batch batch(int step) const { return toy.batch(communicator.rank(), step); }
  /// A step with that batch; what this rank sent in it.
  dist::Traffic step(int number) {
    const dist::Traffic earlier = communicator.traffic();
    trainer.step({batch(number)});
    return communicator.traffic().since(earlier);
  }
  /// Forward, backward and the reduction of gradients, without an update.
  void reduce(int number) {
    strategy.backward(forward_batch(strategy, batch(number)));
    strategy.finish_backward();
  }

  /// Bytes of a category that are alive, and their peak, beyond those from before the model.
  std::int64_t held(memory::Category category) const {
    return memory::snapshot()[category] - before[category];
  }
  std::int64_t peak(memory::Category category) const {
    return memory::snapshot().peak_of(category) - before[category];
  }

  memory::Snapshot before = memory::snapshot();
  dist::Communicator& communicator;
  Model toy;
  std::unique_ptr<Strategy> owned;
  Strategy& strategy = *owned;
  tools::Trainer trainer;
};

/// Bytes of the parameters that this rank owns.
inline std::int64_t owned_bytes(const train::Strategy& strategy) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    if (strategy.owns(i)) sum += strategy.list().parameters[i].bytes();
  }
  return sum;
}

/// Bytes of the largest parameter, of the parameters of a unit, and of the largest unit.
inline std::int64_t largest_parameter(const nn::ParameterList& list) {
  std::int64_t largest = 0;
  for (const nn::Parameter& p : list.parameters) largest = std::max(largest, p.bytes());
  return largest;
}
inline std::int64_t unit_bytes(const nn::ParameterList& list, std::size_t unit) {
  std::int64_t sum = 0;
  for (const std::size_t i : list.units[unit].parameters) sum += list.parameters[i].bytes();
  return sum;
}
inline std::int64_t largest_unit(const nn::ParameterList& list) {
  std::int64_t largest = 0;
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    largest = std::max(largest, unit_bytes(list, u));
  }
  return largest;
}

}  // namespace zero::testing
