// Wrong implementations of training on a model that is split over a tensor axis or into stages.

#include <cmath>
#include <map>

#include <zero/nn/parameters.hpp>

#include "mutants.hpp"
#include "wrong_hsdp.hpp"

namespace zero::testing {
namespace {

using train::StrategyArguments;

// A norm to which every tensor rank adds the whole model's.
struct NormCountedByTensorRanks final : WrongHsdp {
  using WrongHsdp::WrongHsdp;
  float clip_grad_norm(double max_norm) override {
    // Scaling the limit down is what counting n times does.
    const double ranks = mesh().tensor().size();
    return WrongHsdp::clip_grad_norm(max_norm / std::sqrt(ranks));
  }
};

// Under sequence parallelism every rank updates norms by the gradients of its own tokens.
struct GradientOfOwnTokens final : WrongHsdp {
  GradientOfOwnTokens(const StrategyArguments& arguments, const EngineConfig& config)
      : WrongHsdp(arguments, config) {
    for (const nn::Parameter& p : list().parameters) {
      const_cast<nn::TensorPlacement&>(p.placement).sums_gradient = false;
    }
  }
};

// The next rank's slice of every weight that is cut: the whole, turned by a slice before it is cut.
struct TurnedValues : nn::ParameterSource {
  explicit TurnedValues(const StrategyArguments& arguments) : source(*arguments.values) {
    const auto list = nn::list_parameters(arguments.module);
    for (const nn::Parameter& p : list.parameters) placements[p.name] = p.placement;
  }
  void fill(const nn::Parameter& parameter, at::Tensor& out) override {
    source.fill(parameter, out);
    const nn::TensorPlacement& placement = placements.at(parameter.name);
    if (!placement.is_cut()) return;
    out.copy_(out.roll(-out.size(placement.dim) / placement.parts(), placement.dim));
  }
  nn::ParameterSource& source;
  std::map<std::string, nn::TensorPlacement> placements;
};

struct SliceOfTheNextRank final : private TurnedValues, public WrongHsdp {
  SliceOfTheNextRank(const StrategyArguments& arguments, const EngineConfig& config)
      : TurnedValues(arguments), WrongHsdp(with(arguments, *this), config) {}
  static StrategyArguments with(StrategyArguments arguments, nn::ParameterSource& values) {
    arguments.values = &values;
    return arguments;
  }
};

// The gradients of a stage's first micro-batch are lost. It goes on to the other stages all the
// same.
struct SkippedMicroBatch final : WrongHsdp {
  using WrongHsdp::WrongHsdp;
  void backward(const at::Tensor& loss) override {
    WrongHsdp::backward(loss);
    if (backwards_++ > 0) return;
    for (std::size_t i = 0; i < count(); ++i) drop_gradient(i);
  }
  int backwards_ = 0;
};

}  // namespace

std::vector<Mutant> mutants_of_splits() {
  const std::string killed_by = "TensorParallelTraining.HasTheNumbersOfTheWholeModel";
  return {
      {"tensor_axis_norm_counted_n_times", "every tensor rank adds the norm of the whole model",
       killed_by, "hsdp2", make_mutant<NormCountedByTensorRanks>, "08_tensor_parallel"},
      {"tensor_axis_gradient_not_summed",
       "gradients of norms are not added up over tensor ranks that have different tokens",
       killed_by, "hsdp2", make_mutant<GradientOfOwnTokens>, "08_tensor_parallel"},
      {"tensor_axis_next_slice", "a tensor rank has the slice of the next", killed_by, "hsdp2",
       make_mutant<SliceOfTheNextRank>, "08_tensor_parallel"},
      {"skipped_micro_batch", "a stage of a pipeline loses a micro-batch",
       "Pipeline.EveryStrategyHasTheBitsOfPlainDdp", "hsdp2", make_mutant<SkippedMicroBatch>,
       "09_pipeline"},
  };
}

}  // namespace zero::testing
