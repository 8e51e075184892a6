// Chapter 00, with which all others are compared, against one process that sees the batches of all
// ranks, to the last bit.

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <tests/support/deferred.hpp>
#include <tests/support/edge_case_model.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/parity.hpp>
#include <tests/support/same_bits.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::testing {
namespace {

// The model of run_edge_case_model() without a strategy.
class OneProcess {
 public:
  explicit OneProcess(const RunOptions& options)
      : options_(options), model_(make_deferred<EdgeCaseModel>()) {
    nn::SeededValues values(3);
    nn::initialize_parameters(*model_, values);
    list_ = nn::list_parameters(*model_);
    std::vector<at::Tensor> trainable;
    for (const nn::Parameter& p : list_.parameters) {
      if (p.tensor.requires_grad()) trainable.push_back(p.tensor);
    }
    optimizer_ = options.optimizer(trainable);
  }

  // What each of `ranks` would add up, added in their order and divided once.
  std::vector<at::Tensor> average(int ranks, int step) {
    std::vector<at::Tensor> sums(list_.size());
    for (int rank = 0; rank < ranks; ++rank) {
      for (int m = 0; m < options_.micro_batches; ++m) {
        const auto batch = edge_case_batch(17, rank, step * options_.micro_batches + m);
        (model_->loss(batch) / options_.micro_batches).backward();
      }
      for (std::size_t i = 0; i < sums.size(); ++i) {
        at::Tensor& mine = list_.parameters[i].tensor.mutable_grad();
        if (mine.defined()) sums[i] = sums[i].defined() ? sums[i] + mine : mine;
        mine.reset();
      }
    }
    for (at::Tensor& sum : sums) {
      if (sum.defined()) sum.div_(ranks);
    }
    return sums;
  }

  void update(const std::vector<at::Tensor>& gradients) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      list_.parameters[i].tensor.mutable_grad() = gradients[i];
    }
    optimizer_->step();
    for (const nn::Parameter& p : list_.parameters) p.tensor.mutable_grad().reset();
  }

  // Weights and moments; a parameter without a gradient has no moments, which count as zeros.
  void expect_in(const WholeState& state) const {
    for (const nn::Parameter& p : list_.parameters) {
      EXPECT_TRUE(at::equal(state.at("parameter/" + p.name), p.tensor)) << p.name;
      const auto mine = optimizer_->state(p.tensor);
      for (const std::string kind : {"exp_avg", "exp_avg_sq"}) {
        const at::Tensor found = state.at(kind + "/" + p.name);
        const auto moment = mine.find(kind);
        EXPECT_TRUE(at::equal(found, moment == mine.end() ? at::zeros_like(found)
                                                          : moment->second.flatten().to(found)))
            << kind << " of " << p.name;
      }
    }
  }

 private:
  RunOptions options_;
  std::shared_ptr<EdgeCaseModel> model_;
  nn::ParameterList list_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

ZERO_TESTS_ON_RANKS(OneProcessOfAllBatches, 1, 2, 3, 4);

TEST_P(OneProcessOfAllBatches, HasTheSameGradientsWeightsAndMoments) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    for (const RunOptions& options : {RunOptions(), RunOptions{.micro_batches = 3}}) {
      SCOPED_TRACE(options.micro_batches);
      const RunRecord record = run_edge_case_model(communicator, mode, options);
      OneProcess alone(options);
      for (int step = 0; step < options.steps; ++step) {
        const std::vector<at::Tensor> average = alone.average(communicator.size(), step);
        EXPECT_TRUE(same_bits(record.gradients.at(static_cast<std::size_t>(step)), average))
            << "step " << step;
        alone.update(average);
      }
      alone.expect_in(record.state);
    }
  });
}

// What makes a comparison of two runs of this model mean something.
TEST(ParityPremises, RanksDifferWeightsChangeAndUnusedOnesStay) {
  on_ranks(3, [](dist::Communicator& communicator) {
    const RunRecord first = run_edge_case_model(communicator, "ddp", {.steps = 1});
    const RunRecord later = run_edge_case_model(communicator, "ddp", {.steps = 4});
    std::set<std::string> unchanged;
    for (const auto& [name, tensor] : later.state) {
      if (!name.starts_with("parameter/")) continue;
      if (at::equal(tensor, first.state.at(name))) unchanged.insert(name);
    }
    EXPECT_EQ(unchanged, (std::set<std::string>{"parameter/never", "parameter/frozen.weight",
                                                "parameter/layers.frozen.weight"}));
    EXPECT_FALSE(later.state.at("exp_avg/never").any().item<bool>());
    EXPECT_TRUE(later.state.at("exp_avg/sometimes").any().item<bool>());
  });
}

TEST(ParityPremises, ClippingClips) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const RunRecord run = run_edge_case_model(communicator, "ddp", {.steps = 3, .clip_norm = 0.05});
    for (const float norm : run.norms) EXPECT_GT(norm, 0.05F);
  });
}

}  // namespace
}  // namespace zero::testing
