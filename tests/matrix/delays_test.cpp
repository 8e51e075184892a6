// Ranks that are late, at random, before every collective and before every wait: the bits must not
// notice. A strategy that reads a tensor before it has arrived is right as long as nobody is late.

#include <chrono>
#include <thread>

#include <tests/support/hooked_communicator.hpp>
#include <tests/support/session.hpp>
#include <tools/ladder/data/random.hpp>

namespace zero::testing {
namespace {

// Delays of up to 2 ms, others on every rank; most are none at all, so that order changes too.
Hook random_delays(std::uint64_t seed, int rank, int& delays) {
  return [random = data::generator_for(seed, static_cast<std::uint64_t>(rank)), &delays](
             dist::Operation, dist::Purpose, bool) mutable {
    const std::uint64_t draw = random.below(6000);
    if (draw >= 2000) return;
    ++delays;
    std::this_thread::sleep_for(std::chrono::microseconds(draw));
  };
}

class Delays : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, Delays, ::testing::Values(1, 2, 3, 4, 5));

TEST_P(Delays, DoNotChangeABit) {
  on_ranks(3, [](dist::Communicator& communicator) {
    SessionOptions options = with_parts("antfs");
    options.trainer.clip_norm = 0.5;
    const auto train = [&](const std::string& mode) {
      Session session(communicator, mode, options);
      for (int s = 0; s < 2; ++s) {
        session.trainer().step({session.batch(2 * s), session.batch(2 * s + 1)});
      }
      return session.weights();
    };
    const std::vector<at::Tensor> reference = train("ddp");
    int delays = 0;
    const Hooked late(communicator, random_delays(GetParam(), communicator.rank(), delays));
    for (const std::string& mode : all_modes()) {
      const int before = delays;
      EXPECT_TRUE(same_bits(train(mode), reference)) << mode << " seed " << GetParam();
      EXPECT_GT(delays, before) << mode;
    }
  });
}

}  // namespace
}  // namespace zero::testing
