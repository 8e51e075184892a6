// A rank on the emulated accelerator that is lost or late in the middle of a backward: the others,
// and the late one itself, are told which operation did not complete. Ranks that gather different
// units are told so too.

#include <ATen/ops/ones.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <thread>
#include <utility>

#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/engine.hpp>
#include <zero/optim/adamw.hpp>

#include "toy_on.hpp"

namespace zero::testing {
namespace {

using ::testing::HasSubstr;

// Ranks that train under `mode`; when rank 1 has its first gradient in the second step, it does
// something. Then each expects an error of the step that says `words`.
std::vector<dist::RankExit> trained_until(const std::string& mode, std::chrono::seconds timeout,
                                          const std::function<void()>& on_rank_1,
                                          const std::function<void(const std::string&)>& seen) {
  emulated::enable_backend();
  return ranks_ended({.world_size = 3, .timeout = timeout, .backend = "emulated"},
                     [&](dist::Communicator& communicator) {
                       ToyOn run(communicator, mode, emulated::kDevice);
                       run.step(0);
                       run.strategy->passes().observe_gradients(
                           [&, once = false](std::size_t, const at::Tensor&) mutable {
                             if (run.rank == 1 && !std::exchange(once, true)) on_rank_1();
                           });
                       seen(error_of([&] { run.step(1); }));
                     });
}

const char* const kModes[] = {"ddp", "zero2", "engine1", "engine3", "hpz"};

TEST(EmulatedFault, ALostRankIsAnErrorThatNamesTheCall) {
  for (const std::string mode : kModes) {
    SCOPED_TRACE(mode);
    const auto exits = trained_until(
        mode, std::chrono::seconds(20), [] { std::_Exit(0); },
        [](const std::string& error) {
          EXPECT_THAT(error, ::testing::ContainsRegex("(reduce|reduce_scatter|all_reduce|"
                                                      "all_gather|broadcast) #[0-9]+ "));
          EXPECT_THAT(error, HasSubstr("the connection is lost"));
        });
    for (const std::size_t survivor : {0, 2}) {
      EXPECT_TRUE(exits[survivor].ok()) << describe_failures(exits);
    }
  }
}

TEST(EmulatedFault, ALateRankIsAnErrorOnEveryRank) {
  for (const std::string mode : kModes) {
    SCOPED_TRACE(mode);
    const TestFolder folder;
    const auto given_up = folder / "given up";
    const auto exits = trained_until(
        mode, std::chrono::seconds(2),
        [&] {
          while (!std::filesystem::exists(given_up)) std::this_thread::yield();
        },
        [&](const std::string& error) {
          EXPECT_THAT(error, ::testing::ContainsRegex(" #[0-9]+ \\((gradient|parameter), "));
          std::filesystem::create_directories(given_up);
        });
    EXPECT_EQ(describe_failures(exits), "");
  }
}

// A collective here does not wait for those of its own unit, so ranks compare the order afterwards;
// nothing that they have computed leaves the pass, and they do not go on.
TEST(EmulatedFault, UnitsInDifferentOrdersAreAnErrorAtTheEndOfThePass) {
  emulated::enable_backend();
  on_ranks({.world_size = 2, .backend = "emulated"}, [](dist::Communicator& communicator) {
    torch::nn::ModuleList blocks;
    for (int b = 0; b < 2; ++b) blocks->push_back(torch::nn::Linear(8, 8));
    blocks->to(emulated::kDevice);
    Engine engine(*blocks, communicator, optim::adamw(), {});
    const auto pass = [&](std::vector<std::size_t> order) {
      at::Tensor x = at::ones({2, 8}).to(emulated::kDevice);
      return [&, x, order]() mutable {
        for (const std::size_t b : order) x = blocks[b]->as<torch::nn::Linear>()->forward(x);
        return x.sum();
      };
    };
    engine.backward(engine.forward(pass({0, 1})));
    engine.step();
    const bool is_odd = communicator.rank() == 1;
    expect_error(
        [&] {
          engine.evaluate(
              pass(is_odd ? std::vector<std::size_t>{1, 0} : std::vector<std::size_t>{0, 1}));
        },
        {"ranks disagree about the order of units in forward", "rank 0 has 0", "rank 1 has 1",
         "units_named"});
    expect_error([&] { engine.forward(pass({0, 1})); }, {"units were mixed up"});
  });
}

}  // namespace
}  // namespace zero::testing
