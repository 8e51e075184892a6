#include <ATen/ops/full_like.h>

#include <cmath>

#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/ranks.hpp>
#include <tests/support/toy.hpp>
#include <zero/distributed/statement.hpp>
#include <zero/train/averaged_gradients.hpp>

namespace zero::train {
namespace {

using Ask = AveragedGradients::Ask;
using testing::on_ranks;
using testing::Toy;

// Parameter i is that of rank i modulo the number of ranks.
struct Averages {
  explicit Averages(dist::Communicator& communicator, bool adds_averages = false,
                    at::ScalarType dtype = at::kFloat)
      : ranks(communicator),
        toy(alone_in(dtype)),
        gradients(list, stage, mesh, placements, optimizer, dist::ReduceType::kOwn, adds_averages) {
    placements.group = &communicator;
    for (std::size_t i = 0; i < list.size(); ++i) {
      placements.of.push_back({.updated = {owns(i) ? list.parameters[i].tensor : at::Tensor()}});
    }
  }
  static Toy alone_in(at::ScalarType dtype) {
    Toy toy = Toy::alone();
    toy.model->to(dtype);
    return toy;
  }
  bool owns(std::size_t i) const { return static_cast<int>(i) % ranks.size() == ranks.rank(); }

  // Ends a reduction after which every element of a gradient is `value`.
  void reduce(double value, bool is_last = true) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (owns(i)) grad(i) = at::full_like(list.parameters[i].tensor.detach(), value);
      gradients.note_used(i, true);
    }
    gradients.complete(is_last);
  }
  at::Tensor& grad(std::size_t i) { return list.parameters[i].tensor.mutable_grad(); }
  // Of the first gradient that this rank has.
  double element() { return grad(static_cast<std::size_t>(ranks.rank())).max().item<double>(); }

  dist::Communicator& ranks;
  const Toy toy;
  const nn::ParameterList list = nn::list_parameters(*toy.model);
  const StageOfModel stage{list, nullptr};
  const dist::Mesh mesh{ranks};
  Placements placements;
  std::unique_ptr<optim::Optimizer> optimizer = testing::sgd()(toy.model->parameters());
  AveragedGradients gradients;
};

ZERO_TESTS_ON_RANKS(Averaged, 2, 3);

TEST_P(Averaged, GradientsAreThoseThatSomeRankHasUsed) {
  on_ranks(GetParam(), [](dist::Communicator& ranks) {
    Averages averages(ranks);
    averages.reduce(1);
    averages.gradients.note_used(1, true);
    averages.gradients.forget();  // of a backward that threw
    averages.gradients.note_used(0, ranks.rank() == ranks.size() - 1);
    averages.gradients.complete(/*is_last_micro_batch=*/true);
    for (std::size_t i = 0; i < averages.list.size(); ++i) {
      EXPECT_EQ(averages.grad(i).defined(), i == 0 && averages.owns(i)) << i;
    }
  });
}

TEST_P(Averaged, GradientsAreClippedByTheNormOfAllRanks) {
  on_ranks(GetParam(), [](dist::Communicator& ranks) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      Averages averages(ranks, /*adds_averages=*/false, dtype);
      averages.reduce(8);
      averages.gradients.set_loss_scale(4);
      const float norm = 2 * std::sqrt(static_cast<float>(averages.list.numel()));
      EXPECT_FLOAT_EQ(averages.gradients.clip(2 * norm), norm);
      EXPECT_EQ(averages.element(), 8);
      EXPECT_FLOAT_EQ(averages.gradients.clip(norm / 2), norm);
      EXPECT_NEAR(averages.element(), 4, 1e-5) << c10::toString(dtype);
    }
  });
}

// In each rank's sum the second square is below half of the first one's last bit.
TEST_P(Averaged, TheNormHasBothHalvesOfAllSums) {
  on_ranks(GetParam(), [](dist::Communicator& ranks) {
    Averages averages(ranks);
    averages.reduce(0);
    const auto rank = static_cast<std::size_t>(ranks.rank());
    const auto size = static_cast<std::size_t>(ranks.size());
    averages.grad(rank).flatten()[0].fill_(1);
    averages.grad(rank + size).flatten()[0].fill_(std::ldexp(1.0, -27));
    std::vector<double> mine = averages.gradients.report(Ask::kNorm);
    EXPECT_EQ(mine[1], 1);
    EXPECT_EQ(mine[2], std::ldexp(1.0, -54));
    mine[1] = 3;
    mine[2] = 1;
    averages.gradients.take(Ask::kNorm, std::vector(size, mine));
    EXPECT_FLOAT_EQ(averages.gradients.clip(1e9), 2 * std::sqrt(static_cast<float>(size)));
  });
}

TEST_P(Averaged, GradientsOfMicroBatchesAddUpOutOfReachOfBackward) {
  on_ranks(GetParam(), [](dist::Communicator& ranks) {
    Averages averages(ranks, /*adds_averages=*/true);
    for (int step = 0; step < 2; ++step) {
      averages.reduce(1, /*is_last=*/false);
      for (std::size_t i = 0; i < averages.list.size(); ++i) {
        EXPECT_FALSE(averages.grad(i).defined());
      }
      averages.reduce(2);
      EXPECT_EQ(averages.element(), 3);
    }
    averages.reduce(1, /*is_last=*/false);
    averages.gradients.forget();
    averages.reduce(2);
    EXPECT_EQ(averages.element(), 2);
  });
}

// The last micro-batch alone does not say what is dropped: an earlier one has used the parameters.
TEST_P(Averaged, GradientsOfAnEarlierMicroBatchStay) {
  on_ranks(GetParam(), [](dist::Communicator& ranks) {
    Averages averages(ranks, /*adds_averages=*/true);
    averages.reduce(1, /*is_last=*/false);
    for (std::size_t i = 0; i < averages.list.size(); ++i) averages.gradients.note_used(i, false);
    averages.gradients.complete(/*is_last_micro_batch=*/true);
    for (std::size_t i = 0; i < averages.list.size(); ++i) {
      ASSERT_EQ(averages.grad(i).defined(), averages.owns(i)) << i;
    }
    EXPECT_EQ(averages.element(), 1);
  });
}

// Each was finite when it was averaged, and reductions found nothing.
TEST_P(Averaged, GradientsThatOverflowLaterAreFound) {
  on_ranks(GetParam(), [](dist::Communicator& ranks) {
    const auto expect_found = [](Averages& averages) {
      averages.gradients.take(
          Ask::kFinite,
          dist::exchange(averages.mesh, {.numbers = averages.gradients.report(Ask::kFinite)}));
      const auto found = averages.gradients.first_nonfinite();
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->parameter, averages.list.parameters[0].name);
      EXPECT_EQ(found->ranks.front(), 0);
      averages.gradients.forget();
    };
    Averages averages(ranks);
    averages.reduce(3e38);
    EXPECT_FALSE(averages.gradients.first_nonfinite().has_value());
    averages.gradients.multiply(4);
    expect_found(averages);
    Averages sums(ranks, /*adds_averages=*/true);
    sums.reduce(3e38, /*is_last=*/false);
    sums.reduce(3e38);
    expect_found(sums);
  });
}

}  // namespace
}  // namespace zero::train
