// Every strategy and variant against one process that sees the batches of all ranks at once.
// Equality between strategies cannot show an error that all of them share; this can.

#include <fmt/format.h>

#include <cstdlib>

#include <tests/support/session.hpp>
#include <tools/ladder/data/random.hpp>
#include <zero/optim/sgd.hpp>

namespace zero::testing {
namespace {

// How far a gradient may be from one process's, relative to the largest of its tensor.
double tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-10 : 1e-5; }

using Samples = std::function<std::int64_t(int rank, int step)>;

data::Batch batch_of_all(const RandomModelConfig& model, int ranks, int step,
                         const Samples& samples) {
  std::vector<data::Batch> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(random_model_batch(model, /*seed=*/17, rank, step, samples(rank, step)));
  }
  return concatenate(all);
}

// Trains `steps` steps under `mode` beside one process: gradients after every step, and weights at
// the end, which are further apart because every step starts from the last.
void expect_like_one_process(dist::Communicator& communicator, const std::string& mode,
                             const SessionOptions& options, int steps, const Samples& samples) {
  const double limit = tolerance(options.model.dtype);
  Session session(communicator, mode, options);
  SingleProcessReference alone(options);
  ASSERT_TRUE(same_bits(session.weights(), alone.parameters())) << mode;
  for (int step = 0; step < steps; ++step) {
    session.trainer().step({session.batch(step, samples(communicator.rank(), step))});
    alone.step(batch_of_all(options.model, communicator.size(), step, samples));
    std::vector<at::Tensor> expected;
    for (const at::Tensor& p : alone.parameters()) expected.push_back(p.grad());
    ASSERT_TRUE(close_to(session.gradients(), expected, limit)) << mode << " step " << step;
  }
  EXPECT_TRUE(close_to(session.weights(), alone.parameters(), 10 * limit)) << mode;
}

// Eight ranks share few cores: of each strategy only the default variant.
std::vector<std::string> modes_for(int ranks) { return ranks < 8 ? all_modes() : all_strategies(); }

ZERO_TESTS_ON_RANKS(Oracle, 1, 2, 3, 4, 8);

TEST_P(Oracle, GradientsAreThoseOfTheConcatenatedBatchInFloat64AndFloat32) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const auto dtype : {at::kDouble, at::kFloat}) {
      SessionOptions options;
      options.model = {.parts = "atfnsg", .dtype = dtype};
      options.optimizer = optim::sgd({.learning_rate = 0.05, .momentum = 0.9});
      for (const std::string& mode : modes_for(communicator.size())) {
        expect_like_one_process(communicator, mode, options, 3, [](int, int) { return 4; });
      }
    }
  });
}

// A seed decides model, world size, ownership, samples and optimizer. The mean is over samples, not
// over ranks; a rank without samples still takes part. ZERO_FUZZ_SEED=<n> runs another one; the
// seed is in the message of a failure.
void fuzz(std::uint64_t seed) {
  data::SplitMix64 random(seed);
  const int ranks = static_cast<int>(std::vector<int>{1, 2, 3, 4, 5}[random.below(5)]);
  SessionOptions options;
  options.model = random_config(random.next(), at::kDouble);
  options.seed = random.next();
  options.ownership = std::vector{train::Ownership::kBySize, train::Ownership::kByCount,
                                  train::Ownership::kByOffset}[random.below(3)];
  if (random.below(2) == 0) options.optimizer = optim::sgd({.learning_rate = 0.05});
  const std::uint64_t of_samples = random.next();
  const Samples samples = [of_samples](int rank, int step) {
    data::SplitMix64 own(of_samples + static_cast<std::uint64_t>(100 * rank + step));
    // Rank 0 always has one, so that the batch is never empty as a whole.
    return static_cast<std::int64_t>(own.below(6)) + (rank == 0 ? 1 : 0);
  };
  SCOPED_TRACE(fmt::format("seed {}: {} ranks, {}", seed, ranks, options.model.describe()));
  on_ranks(ranks, [&](dist::Communicator& communicator) {
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, options.model.describe()));
    for (const std::string& mode : all_modes()) {
      expect_like_one_process(communicator, mode, options, 2, samples);
    }
  });
}

class Fuzz : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, Fuzz, ::testing::Range<std::uint64_t>(1, 13));

TEST_P(Fuzz, AnyModelOnAnyNumberOfRanksIsLikeOneProcess) {
  const char* seed = std::getenv("ZERO_FUZZ_SEED");
  fuzz(seed == nullptr ? GetParam() : std::strtoull(seed, nullptr, 10) + GetParam() - 1);
}

// What makes the fuzz mean something: its models differ, and have what they are to have.
TEST(FuzzPremises, ModelsDifferAndEveryPartComesUp) {
  std::string parts;
  std::set<std::string> described;
  for (std::uint64_t seed = 1; seed < 13; ++seed) {
    data::SplitMix64 random(seed);
    random.below(5);
    const RandomModelConfig config = random_config(random.next(), at::kDouble);
    parts += config.parts;
    described.insert(config.describe());
  }
  EXPECT_EQ(described.size(), 12U);
  for (const char part : std::string("atfnsg")) {
    EXPECT_NE(parts.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace zero::testing
