#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/train/trainer.hpp>

#include "zero1_sharding.hpp"

namespace zero {
namespace {

using memory::Category;
using testing::on_ranks;
using testing::Toy;

train::StrategyArguments arguments(Toy& toy, dist::Communicator& communicator,
                                   const std::string& variant = "owner",
                                   train::Ownership ownership = train::Ownership::kBySize) {
  return {*toy.model, communicator, optim::adamw(), &toy.values, variant, ownership};
}

// An optimizer that is not sharded passes every comparison of weights. It does not pass this.
TEST(Zero1, HoldsOptimizerStateForItsOwnParametersOnly) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      for (const auto ownership :
           {train::Ownership::kBySize, train::Ownership::kByCount, train::Ownership::kByOffset}) {
        const memory::Snapshot before = memory::snapshot();
        Toy toy;
        Zero1Sharding zero1(arguments(toy, communicator, "owner", ownership));
        train::Trainer(zero1).step({toy.batch(communicator.rank(), 0)});
        std::int64_t owned = 0;
        for (std::size_t i = 0; i < zero1.list().size(); ++i) {
          const nn::Parameter& p = zero1.list().parameters[i];
          EXPECT_EQ(zero1.optimizer().state(p.tensor).empty(), !zero1.owns(i)) << p.name;
          if (zero1.owns(i)) owned += p.bytes();
        }
        const memory::Snapshot held = memory::snapshot();
        const std::int64_t v = zero1.list().bytes();
        EXPECT_EQ(held[Category::kParameters] - before[Category::kParameters], v);
        EXPECT_EQ(held[Category::kGradients] - before[Category::kGradients], v);
        EXPECT_EQ(held[Category::kOptimizer] - before[Category::kOptimizer], 2 * owned);
        if (communicator.size() > 1) {
          EXPECT_LT(owned, v);
        }
      }
    });
  }
}

TEST(Zero1, EveryParameterHasOneOwner) {
  on_ranks(3, [](dist::Communicator& communicator) {
    Toy toy;
    Zero1Sharding zero1(arguments(toy, communicator));
    at::Tensor owners = at::zeros({static_cast<std::int64_t>(zero1.list().size())}, at::kInt);
    for (std::size_t i = 0; i < zero1.list().size(); ++i) {
      owners[static_cast<std::int64_t>(i)] = zero1.owns(i) ? 1 : 0;
    }
    communicator.all_reduce(owners, dist::Purpose::kControl, dist::ReduceOp::kSum).wait();
    EXPECT_TRUE(at::equal(owners, at::ones_like(owners))) << owners;
  });
}

TEST(Zero1, SendsWhatTheFormulaSaysAndNaiveSendsMore) {
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      std::int64_t sent[2] = {0, 0};
      for (const int naive : {0, 1}) {
        Toy toy;
        Zero1Sharding zero1(arguments(toy, communicator, naive ? "naive" : "owner"));
        train::Trainer trainer(zero1);
        const dist::Traffic before = communicator.traffic();
        trainer.step({toy.batch(communicator.rank(), 0)});
        const dist::Traffic traffic = communicator.traffic().since(before);
        sent[naive] =
            traffic.bytes(dist::Purpose::kGradient) + traffic.bytes(dist::Purpose::kParameter);
        EXPECT_EQ(sent[naive], zero1.predicted_traffic());
        if (!naive && communicator.size() == 2) {
          EXPECT_EQ(sent[0], zero1.list().bytes());
        }
      }
      EXPECT_LT(sent[0], sent[1]);
    });
  }
}

TEST(Zero1, AllRanksHoldTheSameParametersAfterAStep) {
  on_ranks(3, [](dist::Communicator& communicator) {
    Toy toy;
    Zero1Sharding zero1(arguments(toy, communicator));
    train::Trainer(zero1).step({toy.batch(communicator.rank(), 0)});
    for (const nn::Parameter& p : zero1.list().parameters) {
      at::Tensor of_rank_0 = p.tensor.detach().clone();
      communicator.broadcast(of_rank_0, 0, dist::Purpose::kControl).wait();
      EXPECT_TRUE(at::equal(of_rank_0, p.tensor)) << p.name;
    }
  });
}

TEST(Zero1, StepWithAClosureIsAStep) {
  on_ranks(2, [](dist::Communicator& communicator) {
    Toy toy;
    Zero1Sharding by_closure(arguments(toy, communicator));
    by_closure.step([&] {
      at::Tensor loss = by_closure.forward(toy.batch(communicator.rank(), 0));
      by_closure.backward(loss);
      return loss;
    });
    Toy other;
    Zero1Sharding by_trainer(arguments(other, communicator));
    train::Trainer(by_trainer).step({toy.batch(communicator.rank(), 0)});
    for (std::size_t i = 0; i < by_trainer.list().size(); ++i) {
      EXPECT_TRUE(at::equal(by_closure.list().parameters[i].tensor,
                            by_trainer.list().parameters[i].tensor));
    }
  });
}

}  // namespace
}  // namespace zero
