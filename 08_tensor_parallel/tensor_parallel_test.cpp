// Every strategy on the data axis over a model that is split over a tensor axis of 2: the bits of
// DDP on the same split, the whole model's numbers, its norm, its bytes, and errors on all ranks.

#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/session.hpp>
#include <tests/support/split_run.hpp>
#include <tests/support/states.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kTensorRanks = 2;

// Runs `body` on `data_ranks` x 2 ranks.
void on_grid(int data_ranks, const std::function<void(TwoAxes&)>& body) {
  on_ranks(data_ranks * kTensorRanks, [&](dist::Communicator& world) {
    TwoAxes axes(world, kTensorRanks);
    body(axes);
    world.barrier();
  });
}

class TensorParallelTraining : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DataRanks, TensorParallelTraining, ::testing::Values(1, 2, 3),
                         name_of_ranks);

TEST_P(TensorParallelTraining, EveryModeHasTheBitsOfDdpOnTheSameSplit) {
  on_grid(GetParam(), [](TwoAxes& axes) {
    const auto trained = [&](SplitOptions options, const std::string& mode) {
      options.mode = mode;
      SplitRun run(axes.mesh, options);
      std::vector<at::Tensor> result;
      for (int s = 0; s < 2; ++s) {
        const double loss = run.step(s, 2).loss;
        result.push_back(at::tensor({loss}, at::kDouble));
      }
      const std::vector<at::Tensor> gradients = whole_gradients(*run.strategy);
      const std::vector<at::Tensor> weights = run.weights();
      result.insert(result.end(), gradients.begin(), gradients.end());
      result.insert(result.end(), weights.begin(), weights.end());
      return result;
    };
    for (const auto accumulation :
         {train::Accumulation::kLocal, train::Accumulation::kReduceEach}) {
      const bool sequence = accumulation == train::Accumulation::kReduceEach;
      const SplitOptions options{.sequence = sequence, .accumulation = accumulation};
      const std::vector<at::Tensor> ddp = trained(options, "ddp");
      for (const std::string& mode : all_modes()) {
        SCOPED_TRACE(fmt::format("{}, sequence {}", mode, sequence));
        EXPECT_TRUE(same_bits(trained(options, mode), ddp));
      }
    }
  });
}

// Gradients and norms in double precision, and weights after three steps of SGD.
TEST_P(TensorParallelTraining, HasTheNumbersOfTheWholeModel) {
  on_grid(GetParam(), [](TwoAxes& axes) {
    for (const bool sequence : {false, true}) {
      for (const std::string& mode : all_strategies()) {
        SCOPED_TRACE(fmt::format("{}, sequence {}", mode, sequence));
        SplitOptions options{.mode = mode, .sequence = sequence, .dtype = at::kDouble};
        options.optimizer = sgd(0.1);
        options.trainer.clip_norm = 0.05;  // less than any norm here
        SplitRun split(axes.mesh, options), whole(*axes.data, options);
        for (int s = 0; s < 3; ++s) {
          const tools::StepResult ours = split.step(s), theirs = whole.step(s);
          EXPECT_NEAR(ours.loss, theirs.loss, 1e-12 * theirs.loss);
          EXPECT_FLOAT_EQ(ours.gradient_norm, theirs.gradient_norm);
          EXPECT_GT(ours.gradient_norm, 0.05);
          // What every rank holds of a norm's weight is the same, and counts once.
          dist::verify_same(split.strategy->mesh().world(), "the norm",
                            fmt::format("{:a}", ours.gradient_norm));
        }
        EXPECT_TRUE(close_to(split.of_model(whole_gradients(*split.strategy)),
                             whole_gradients(*whole.strategy), 1e-12));
        EXPECT_TRUE(close_to(split.model_weights(), whole.weights(), 1e-12));
      }
    }
  });
}

TEST_P(TensorParallelTraining, ReplicatedParametersStayTheSameOnAllTensorRanks) {
  on_grid(GetParam(), [](TwoAxes& axes) {
    for (const bool sequence : {false, true}) {
      SplitRun run(axes.mesh, {.mode = "hsdp3", .sequence = sequence});
      for (int s = 0; s < 3; ++s) run.step(s);
      const std::vector<at::Tensor> weights = run.weights();
      int replicated = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const nn::Parameter& p = run.strategy->list().parameters[i];
        if (p.placement.is_cut()) continue;
        ++replicated;
        const at::Tensor all = at::empty({kTensorRanks, weights[i].numel()});
        axes.tensor->all_gather(all, weights[i], dist::Purpose::kControl).wait();
        EXPECT_TRUE(at::equal(all[0], all[1])) << p.name;
      }
      EXPECT_EQ(replicated, 2 * 2 + 1);
    }
  });
}

TEST_P(TensorParallelTraining, GradientsOfNormsTravelInTheTypeThatTheyAreReducedIn) {
  on_grid(GetParam(), [](TwoAxes& axes) {
    const nn::LlamaConfig config = llama_to_split();
    const std::int64_t n = kTensorRanks, norms = (2 * config.layers + 1) * config.hidden;
    for (const auto& [type, bytes] :
         {std::pair{dist::ReduceType::kOwn, 2}, {dist::ReduceType::kFloat32, 4}}) {
      SplitRun run(axes.mesh, {.mode = "ddp",
                               .sequence = true,
                               .dtype = at::kBFloat16,
                               .optimizer = optim::with_master_weights(optim::adamw()),
                               .reduce_type = type});
      const dist::Traffic before = axes.tensor->traffic();
      run.step(0);
      EXPECT_EQ(axes.tensor->traffic().since(before).bytes(dist::Purpose::kGradient),
                norms * bytes * 2 * (n - 1) / n);
    }
  });
}

// 60,000 is the average of the data axis; the sum of two tensor ranks is too large for float16. In
// float32 it is not, before it is rounded.
TEST(TensorParallelOverflow, OfTheSumOverTheTensorAxisIsFound) {
  on_grid(2, [](TwoAxes& axes) {
    for (const dist::ReduceType type : {dist::ReduceType::kOwn, dist::ReduceType::kFloat32}) {
      for (const std::string& mode : all_strategies()) {
        SCOPED_TRACE(fmt::format("{} in {}", mode, dist::name(type)));
        SplitRun run(axes.mesh, {.mode = mode,
                                 .sequence = true,
                                 .dtype = at::kHalf,
                                 .optimizer = optim::with_master_weights(optim::adamw()),
                                 .reduce_type = type});
        run.step(0);
        const auto& parameters = run.strategy->list().parameters;
        run.strategy->passes().observe_gradients([&](std::size_t i, const at::Tensor& gradient) {
          if (parameters[i].placement.sums_gradient) gradient.detach().fill_(60000);
        });
        expect_error([&] { run.step(1); }, {"step 1", "norm", "is infinite or NaN"});
      }
    }
  });
}

TEST(TensorParallelErrors, AppearOnAllRanksWhicheverIsDifferent) {
  for (int other = 0; other < 4; ++other) {
    on_grid(2, [other](TwoAxes& axes) {
      const int rank = 2 * axes.data->rank() + axes.tensor->rank();
      nn::SeededValues values(3);
      nn::LlamaConfig config = llama_to_split();
      config.tied = rank != other;
      const auto model = make_deferred<nn::Llama>(config, nn::TensorParallel(*axes.tensor));
      expect_error(
          [&] {
            make_strategy("ddp", {*model, axes.mesh, optim::adamw(), &values});
          },
          {"ranks disagree about the model or the strategy", "lm_head.weight"});
      const auto good =
          make_deferred<nn::Llama>(llama_to_split(), nn::TensorParallel(*axes.tensor));
      const auto strategy = make_strategy("ddp", {*good, axes.mesh, optim::adamw(), &values});
      train::StepOptions options{.clip_norm = rank == other ? 2.0 : 1.0};
      expect_error([&] { tools::Trainer(*strategy, losses_of(*strategy), options); },
                   {"the step in Trainer::Trainer"});
    });
  }
}

// Each tensor rank has the gradient of its own tokens only.
TEST(TensorParallelErrors, HooksOfWhatRanksAddUpAreRefusedOnAllRanks) {
  on_grid(2, [](TwoAxes& axes) {
    for (const bool sequence : {false, true}) {
      SplitRun run(axes.mesh, {.sequence = sequence});
      for (const auto& p : run.model->named_parameters()) {
        if (p.key() != "model.norm.weight") continue;
        p.value().register_hook([](const at::Tensor& gradient) { return gradient.clamp(-1, 1); });
      }
      const std::string error = error_of([&] { run.step(0); });
      EXPECT_THAT(error,
                  sequence ? HasSubstr("parameter 'model.norm.weight' has a hook") : HasSubstr(""));
      EXPECT_EQ(error.empty(), !sequence);
    }
  });
}

TEST(TensorParallelErrors, AMeshWithoutTheModelsAxesIsRefusedOnAllRanks) {
  on_grid(2, [](TwoAxes& axes) {
    nn::SeededValues values(3);
    const auto split = make_deferred<nn::Llama>(llama_to_split(), nn::TensorParallel(*axes.tensor));
    const auto whole = make_deferred<nn::Llama>(llama_to_split());
    const auto refused = [&](nn::Llama& model, const dist::Mesh& mesh) {
      return error_of([&] { make_strategy("ddp", {model, mesh, optim::adamw(), &values}); });
    };
    dist::Communicator& world = axes.mesh.world();
    EXPECT_THAT(refused(*split, *axes.data),
                HasSubstr("a tensor axis that the mesh does not have"));
    EXPECT_THAT(refused(*split, world), HasSubstr("a tensor axis that the mesh does not have"));
    const dist::Mesh staged(world, {{"data", 2}, {"pipeline", 2}});
    EXPECT_THAT(refused(*whole, staged), HasSubstr("the model is whole, on a mesh of data 2 x"));
    const dist::Mesh named(world, {{"data", 2}, {"model", 2}});
    EXPECT_THAT(refused(*whole, named), HasSubstr("a mesh of data 2 x model 2: its axes must be"));
    SplitRun run(axes.mesh);  // the ranks still understand each other
    EXPECT_GT(run.step(0).loss, 0);
  });
}

}  // namespace
}  // namespace zero::testing
