// Another thread of the process trains a model of its own meanwhile, with and without layers of
// this project. What a rank trains stays the same.

#include <ATen/ops/linear.h>

#include <atomic>
#include <thread>

#include <tests/support/engine_run.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>

namespace zero::testing {
namespace {

// Trains until it is told to end. Its generators are its own: who draws from the default one in two
// threads gets other numbers in every run, with or without an engine.
class OtherThread {
 public:
  OtherThread() : thread_([this] { train(); }) {
    while (steps_ == 0) std::this_thread::yield();
  }
  ~OtherThread() {
    ends_ = true;
    thread_.join();
    EXPECT_GT(steps_, 0);
  }
  OtherThread(const OtherThread&) = delete;
  OtherThread& operator=(const OtherThread&) = delete;

 private:
  void train() {
    const Toy toy = Toy::alone();
    std::vector<at::Tensor> parameters = parameters_of(*toy.model);
    parameters.push_back(random({9, 5}, 1, /*gradient=*/true, at::kFloat));
    const auto optimizer = optim::adamw()(parameters);
    for (int s = 0; !ends_; ++s) {
      const data::Batch batch = toy.batch(/*rank=*/7, s % 10);
      const at::Tensor plain = at::linear(random({3, 5}, 2, false, at::kFloat), parameters.back());
      (data::loss_of(*toy.model, batch) + plain.square().mean()).backward();
      optimizer->step();
      for (const at::Tensor& p : parameters) p.mutable_grad().reset();
      ++steps_;
    }
  }

  std::atomic<bool> ends_ = false;
  std::atomic<int> steps_ = 0;
  std::thread thread_;
};

ZERO_TESTS_ON_RANKS(OtherThreads, 2, 3);

TEST_P(OtherThreads, ThatTrainTheirOwnModelChangeNothing) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    std::vector<EngineConfig> all;
    for (const int stage : {0, 2, 3}) all.push_back({.stage = stage});
    all.push_back({.stage = 3, .bucket_bytes = 500, .lookahead = 0, .whole_below = 50});
    all.push_back({.stage = 3, .whole_below = 100000});
    for (EngineConfig config : all) {
      config.accumulation_steps = 2;
      config.clip_norm = 0.1;
      const auto weights = [&] {
        EngineRun run(communicator, config);
        run.steps(0, 6);
        return run.weights();
      };
      const std::vector<at::Tensor> expected = weights();
      const OtherThread other;
      EXPECT_TRUE(same_bits(weights(), expected)) << base::text_of(config);
    }
  });
}

}  // namespace
}  // namespace zero::testing
