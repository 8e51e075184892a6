#include "simple_ddp.hpp"

#include <cmath>

#include <tests/support/ranks.hpp>
#include <tests/support/reference_reducer.hpp>
#include <tests/support/toy.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/trainer.hpp>

namespace zero {
namespace {

using memory::Category;
using testing::on_ranks;
using testing::Toy;

train::StrategyArguments arguments(Toy& toy, dist::Communicator& communicator,
                                   const std::string& variant = "per_parameter") {
  return {*toy.model, communicator, optim::adamw(), &toy.values, variant};
}

TEST(SimpleDdp, EveryRankStartsFromRank0) {
  on_ranks(3, [](dist::Communicator& communicator) {
    Toy toy(/*seed=*/static_cast<std::uint64_t>(communicator.rank()));
    SimpleDdp ddp(arguments(toy, communicator));
    Toy of_rank_0(/*seed=*/0);
    nn::initialize_parameters(*of_rank_0.model, of_rank_0.values);
    const auto expected = of_rank_0.model->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(ddp.list().parameters[i].tensor, expected[i]));
    }
  });
}

// The average must be that of one process which sees all batches at once.
TEST(SimpleDdp, GradientsAreThoseOfTheConcatenatedBatch) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      Toy toy;
      SimpleDdp ddp(arguments(toy, communicator));
      ddp.backward(ddp.forward(toy.batch(communicator.rank(), 0)));
      ddp.finish_backward();
      Toy alone;
      nn::initialize_parameters(*alone.model, alone.values);
      alone.model->loss(alone.concatenated_batch(communicator.size(), 0)).backward();
      const auto expected = alone.model->parameters();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const at::Tensor ours = ddp.list().parameters[i].tensor.grad();
        const double largest = expected[i].grad().abs().max().item<double>();
        EXPECT_GT(largest, 0.0);
        EXPECT_LE((ours - expected[i].grad()).abs().max().item<double>(), 1e-5 * largest);
      }
    });
  }
}

// Beside PyTorch's own: the class behind DistributedDataParallel, on the same model and batches.
TEST(SimpleDdp, GradientsAreThoseOfPyTorchsReducer) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      Toy toy;
      SimpleDdp ddp(arguments(toy, communicator));
      ddp.backward(ddp.forward(toy.batch(communicator.rank(), 0)));
      ddp.finish_backward();
      Toy theirs;
      nn::initialize_parameters(*theirs.model, theirs.values);
      const std::vector<at::Tensor> parameters = theirs.model->parameters();
      dist::ReferenceReducer reducer(parameters, communicator, /*bucket_bytes=*/512);
      const at::Tensor loss = theirs.model->loss(theirs.batch(communicator.rank(), 0));
      reducer.prepare_for_backward(loss);
      loss.backward();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor ours = ddp.list().parameters[i].tensor.grad();
        const at::Tensor expected = parameters[i].grad();
        // It divides before it adds: the same bits up to 2 ranks, where dividing is exact and a sum
        // has one order.
        if (communicator.size() <= 2) {
          EXPECT_TRUE(at::equal(ours, expected)) << i;
        }
        EXPECT_LE((ours - expected).abs().max().item<double>(),
                  1e-6 * expected.abs().max().item<double>());
      }
    });
  }
}

TEST(SimpleDdp, RanksSeeDifferentBatches) {
  Toy toy;
  EXPECT_FALSE(at::equal(toy.batch(0, 0).inputs, toy.batch(1, 0).inputs));
}

TEST(SimpleDdp, HoldsFourCopiesAtRestAndSendsWhatTheFormulaSays) {
  on_ranks(3, [](dist::Communicator& communicator) {
    for (const char* variant : {"per_parameter", "flat"}) {
      const memory::Snapshot before = memory::snapshot();
      Toy toy;
      SimpleDdp ddp(arguments(toy, communicator, variant));
      train::Trainer trainer(ddp);
      trainer.step({toy.batch(communicator.rank(), 0)});
      const memory::Snapshot held = memory::snapshot();
      const std::int64_t v = ddp.list().bytes();
      EXPECT_EQ(held[Category::kParameters] - before[Category::kParameters], v);
      EXPECT_EQ(held[Category::kGradients] - before[Category::kGradients], v);
      EXPECT_EQ(held[Category::kOptimizer] - before[Category::kOptimizer], 2 * v);
      EXPECT_EQ(held[Category::kCommunication], before[Category::kCommunication]);
      const dist::Traffic traffic = communicator.traffic();
      trainer.step({toy.batch(communicator.rank(), 1)});
      EXPECT_EQ(communicator.traffic().since(traffic).bytes(dist::Purpose::kGradient),
                ddp.predicted_traffic());
    }
  });
}

TEST(SimpleDdp, SyncsOnlyOnTheLastMicroBatch) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    SimpleDdp ddp(arguments(toy, communicator));
    const dist::Traffic before = communicator.traffic();
    ddp.set_requires_gradient_sync(false);
    ddp.backward(ddp.forward(toy.batch(communicator.rank(), 0)));
    ddp.finish_backward();
    EXPECT_EQ(communicator.traffic().since(before).bytes(), 0);
    ddp.set_requires_gradient_sync(true);
    ddp.backward(ddp.forward(toy.batch(communicator.rank(), 1)));
    ddp.finish_backward();
    EXPECT_EQ(communicator.traffic().since(before).bytes(dist::Purpose::kGradient),
              ddp.predicted_traffic());
  });
}

TEST(SimpleDdp, GradientSyncAndPreForwardCanBeReplaced) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    SimpleDdp ddp(arguments(toy, communicator));
    int forwards = 0;
    int syncs = 0;
    ddp.set_pre_forward([&](SimpleDdp&) { ++forwards; });
    ddp.set_gradient_sync([&](SimpleDdp& self) {
      ++syncs;
      self.average_flat();
    });
    train::Trainer(ddp).step({toy.batch(communicator.rank(), 0)});
    EXPECT_EQ(forwards, 1);
    EXPECT_EQ(syncs, 1);
  });
}

TEST(SimpleDdp, RanksWithMoreLossTermsCountForMore) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const auto samples = [](int rank) { return rank == 0 ? 2 : 5; };
    Toy toy;
    SimpleDdp ddp(arguments(toy, communicator));
    train::Trainer trainer(ddp);
    trainer.step({toy.batch(communicator.rank(), 0, samples(communicator.rank()))});
    Toy alone;
    nn::initialize_parameters(*alone.model, alone.values);
    data::Batch all = toy.batch(0, 0, samples(0));
    const data::Batch other = toy.batch(1, 0, samples(1));
    all.inputs = at::cat({all.inputs, other.inputs});
    all.targets = at::cat({all.targets, other.targets});
    all.loss_terms += other.loss_terms;
    alone.model->loss(all).backward();
    const auto expected = alone.model->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(
          at::allclose(ddp.list().parameters[i].tensor.grad(), expected[i].grad(), 1e-4, 1e-7));
    }
  });
}

TEST(SimpleDdp, ALossThatIsNotFiniteStopsAllRanksBeforeTheStep) {
  const auto exits = testing::ranks_ended({.world_size = 2}, [](dist::Communicator& communicator) {
    Toy toy;
    SimpleDdp ddp(arguments(toy, communicator));
    data::Batch batch = toy.batch(communicator.rank(), 0);
    if (communicator.rank() == 1) batch.inputs.fill_(std::nan(""));
    train::Trainer(ddp).step({batch});
  });
  for (const dist::RankExit& exit : exits) {
    EXPECT_EQ(exit.exit_code, 1);
    EXPECT_NE(exit.output.find("NaN or infinite on rank 1"), std::string::npos) << exit.output;
  }
}

TEST(SimpleDdp, StepBeforeBackwardIsRefused) {
  on_ranks(1, [](dist::Communicator& communicator) {
    Toy toy;
    SimpleDdp ddp(arguments(toy, communicator));
    EXPECT_THROW(ddp.optimizer_step(), std::exception);
  });
}

}  // namespace
}  // namespace zero
