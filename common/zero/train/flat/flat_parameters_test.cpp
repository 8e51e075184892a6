#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/variable.h>

#include <tests/support/ranks.hpp>
#include <tests/support/test_unit.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/flat/flat_gradients.hpp>

namespace zero::train {
namespace {

using testing::on_ranks;

// The first of two parameters: as many doubles, 0, 1, 2, …, sharded over the ranks.
struct OneBuffer {
  OneBuffer(dist::Communicator& communicator, const FlatOptions& options, std::int64_t elements,
            bool frozen = false) {
    weight = unit.add("weight", {elements});
    weight.set_requires_grad(!frozen);
    memory::raw(weight).copy_(at::arange(elements));
    unit.add("trained", {1});
    list = nn::list_parameters(unit);
    flat = std::make_unique<FlatParameters>(list, std::vector<std::size_t>{0}, options,
                                            communicator, pool);
    flat->initialize({});
    gradients = std::make_unique<FlatGradients>(*flat, communicator, pool);
  }

  testing::TestUnit unit;
  at::Tensor weight;
  nn::ParameterList list;
  memory::StoragePool pool;
  std::unique_ptr<FlatParameters> flat;
  std::unique_ptr<FlatGradients> gradients;
};

constexpr Sharded kAllStages[] = {Sharded::kNothing, Sharded::kOptimizer, Sharded::kGradients,
                                  Sharded::kParameters};

// A shard has 64 elements, so that of 65 the last one lies alone in rank 1's.
TEST(FlatParameters, OneElementOfAShardIsAPartLikeOthers) {
  on_ranks(2, [](dist::Communicator& communicator) {
    constexpr std::int64_t kElements = ShardLayout::kAlignment + 1;
    const std::int64_t mine = communicator.rank() == 0 ? kElements - 1 : 1;
    for (const Sharded sharded : {Sharded::kOptimizer, Sharded::kGradients, Sharded::kParameters}) {
      OneBuffer buffer(communicator, {.sharded = sharded}, kElements);
      FlatParameters& flat = *buffer.flat;
      EXPECT_EQ(flat.updated().size(), 1U);
      if (sharded == Sharded::kParameters) {
        ASSERT_TRUE(flat.placement(0).kept.tensor.defined());
        EXPECT_EQ(flat.placement(0).kept.tensor.numel(), mine);
      }
      ASSERT_TRUE(flat.placement(0).updated.tensor.defined());
      const auto whole = [&] {
        flat.start_gather();
        flat.wait_gather();
        return memory::raw(buffer.weight).clone();
      };
      const at::Tensor first = at::arange(kElements, at::kDouble);
      EXPECT_TRUE(at::equal(whole(), first));
      memory::raw(buffer.weight).add_(1);  // what a program writes between steps
      torch::autograd::impl::bump_version(buffer.weight);
      flat.keep_writes();
      flat.reshard();
      EXPECT_TRUE(at::equal(whole(), first + 1));
      buffer.gradients->view(0).fill_(3);
      buffer.weight.mutable_grad() = buffer.gradients->view(0);
      buffer.gradients->start_reduce();
      buffer.gradients->finish_reduce();
      EXPECT_TRUE(
          at::equal(flat.placement(0).updated.tensor.grad(), at::full({mine}, 3., at::kDouble)));
    }
  });
}

TEST(FlatParameters, AnAverageStaysWhileTheNextMicroBatchIsWritten) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const Sharded sharded : kAllStages) {
      OneBuffer buffer(communicator, {.sharded = sharded, .adds_averages = true}, /*elements=*/100);
      FlatParameters& flat = *buffer.flat;
      flat.start_gather();
      flat.wait_gather();
      buffer.gradients->view(0).fill_(3);
      buffer.weight.mutable_grad() = buffer.gradients->view(0);
      buffer.gradients->start_reduce();
      buffer.gradients->finish_reduce();
      // As AveragedGradients takes it.
      const at::Tensor average =
          std::exchange(flat.placement(0).updated.tensor.mutable_grad(), at::Tensor());
      buffer.gradients->view(0).fill_(5);
      EXPECT_TRUE(at::equal(average, at::full_like(average, 3.)));
    }
  });
}

TEST(FlatParameters, FrozenOnesSendNoMoreThanTheirGathers) {
  on_ranks(2, [](dist::Communicator& communicator) {
    for (const Sharded sharded : kAllStages) {
      OneBuffer buffer(communicator, {.sharded = sharded}, /*elements=*/65, /*frozen=*/true);
      const bool gathers = sharded == Sharded::kParameters;
      EXPECT_EQ(buffer.flat->sent(/*gathers=*/3).all, gathers ? 3 * buffer.flat->shard_bytes() : 0);
      EXPECT_EQ(buffer.gradients->sent().all, 0);
      EXPECT_EQ(buffer.gradients->bytes(), 0);
      EXPECT_TRUE(buffer.flat->updated().empty() || sharded == Sharded::kNothing);
      const dist::Traffic before = communicator.traffic();
      buffer.flat->start_refresh();
      buffer.flat->finish_gather();
      EXPECT_EQ(communicator.traffic().since(before).bytes(), 0);
    }
  });
}

}  // namespace
}  // namespace zero::train
