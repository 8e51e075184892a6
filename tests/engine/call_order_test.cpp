// Loops that call forward(), backward() and step() in other orders than one after the other. The
// measure is the plain module in one process: the same calls in the same order for the batches of
// all ranks, gradients averaged in rank order, one optimizer over everything.

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <tests/support/engine_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>

namespace zero::testing {
namespace {

ZERO_TESTS_ON_RANKS(CallOrder, 2, 3);

// What a loop does: "f3" runs forward of batch 3, "b3" backward of its loss, "s" calls step().
struct Loop {
  const char* calls;
  int accumulation_steps;
};

const std::vector<Loop> kLoops = {
    {"f0 b0 s f1 b1 s f2 b2 s", 1},
    {"f0 b0 f1 s f1 b1 f2 s f2 b2 s", 1},  // forward of the next batch before step()
    {"f0 f1 b1 s f2 f3 b2 s", 1},          // losses that nobody needs
    {"f0 f1 b0 s b1 s f2 f3 b2 s b3 s", 2},
    {"f0 f1 b1 s b0 s f2 f3 b3 s b2 s", 2},
    {"f0 b0 f1 b1 s f2 b2 f3 b3 s", 2},  // step() only where it updates
    {"f0 b0 f1 s b1 f2 s f2 b2 s f3 b3 s", 2},
    {"f0 f1 f2 b0 s b1 s b2 s f3 b3 s f4 f5 b5 s b4 s", 3},
};

template <typename Call>
void play(const Loop& loop, const Call& call) {
  std::istringstream calls(loop.calls);
  for (std::string word; calls >> word;) {
    call(word.front(), word.size() > 1 ? std::stoi(word.substr(1)) : 0);
  }
}

// The plain module with the batches of `ranks` ranks.
class PlainModule {
 public:
  PlainModule(int ranks, int accumulation_steps)
      : ranks_(ranks), accumulation_steps_(accumulation_steps) {
    nn::initialize_parameters(*toy_.model, toy_.values);
    parameters_ = parameters_of(*toy_.model);
    optimizer_ = optim::adamw()(parameters_);
    gradients_.resize(static_cast<std::size_t>(ranks), std::vector<at::Tensor>(parameters_.size()));
  }

  void call(char what, int batch) {
    if (what == 's') return step();
    for (int rank = 0; rank < ranks_; ++rank) {
      at::Tensor& loss = losses_[{rank, batch}];
      if (what == 'f') {
        loss = toy_.model->loss(toy_.batch(rank, batch));
      } else {
        backward(loss, gradients_[static_cast<std::size_t>(rank)]);
      }
    }
    if (what == 'b') ++micro_batches_;
  }

  const std::vector<at::Tensor>& weights() const { return parameters_; }

 private:
  void backward(const at::Tensor& loss, std::vector<at::Tensor>& gradients) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].mutable_grad() = gradients[i];
    }
    (accumulation_steps_ == 1 ? loss : loss / accumulation_steps_).backward();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      gradients[i] = std::exchange(parameters_[i].mutable_grad(), at::Tensor());
    }
  }

  void step() {
    if (micro_batches_ < accumulation_steps_) return;
    micro_batches_ = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor sum = gradients_[0][i];
      for (std::size_t r = 1; r < gradients_.size(); ++r) sum = sum + gradients_[r][i];
      parameters_[i].mutable_grad() = sum / ranks_;
      for (auto& of_rank : gradients_) of_rank[i] = at::Tensor();
    }
    optimizer_->step();
    for (at::Tensor& p : parameters_) p.mutable_grad().reset();
  }

  int ranks_;
  int accumulation_steps_;
  Toy toy_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::map<std::pair<int, int>, at::Tensor> losses_;
  std::vector<std::vector<at::Tensor>> gradients_;  // by rank
  int micro_batches_ = 0;
};

// The weights of the plain module after `loop`.
std::vector<at::Tensor> plain_weights(int ranks, const Loop& loop) {
  PlainModule plain(ranks, loop.accumulation_steps);
  play(loop, [&](char what, int batch) { plain.call(what, batch); });
  return plain.weights();
}

TEST_P(CallOrder, GivesTheBitsOfThePlainModule) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const Loop& loop : kLoops) {
      SCOPED_TRACE(loop.calls);
      const std::vector<at::Tensor> expected = plain_weights(communicator.size(), loop);
      for (const int stage : {0, 1, 2, 3}) {
        EngineRun run(communicator,
                      {.overlap = {.stage = stage}, .accumulation_steps = loop.accumulation_steps});
        std::map<int, at::Tensor> losses;
        play(loop, [&](char what, int batch) {
          if (what == 's') run.engine.step();
          if (what == 'f') losses[batch] = run.forward(batch);
          if (what == 'b') run.engine.backward(losses[batch]);
        });
        EXPECT_TRUE(same_bits(run.weights(), expected)) << "stage " << stage;
      }
    }
  });
}

TEST_P(CallOrder, RefusesABackwardWhoseForwardPrecededAnUpdate) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.overlap = {.stage = stage}});
    const at::Tensor first = run.forward(0), early = run.forward(1);
    run.engine.backward(first);
    EXPECT_TRUE(run.engine.step());
    for (const at::Tensor& loss : {early, early * 2, run.forward(2) + early}) {
      expect_error([&] { run.engine.backward(loss); },
                   {"backward() of a loss whose forward() came before the last update"});
    }
    // Nothing was damaged, so that no give_up_step() is needed.
    EXPECT_TRUE(run.step(2));
    EXPECT_TRUE(
        same_bits(run.weights(), plain_weights(communicator.size(), {"f0 b0 s f2 b2 s", 1})));
  });
}

// Gradients that are dropped between forward() and backward() do not make the graph old.
TEST_P(CallOrder, AStepThatIsGivenUpKeepsTheLossesOfItsForwards) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    EngineRun run(communicator, {.overlap = {.stage = stage}, .accumulation_steps = 2});
    run.engine.backward(run.forward(5));
    const at::Tensor first = run.forward(0), second = run.forward(1);
    run.engine.give_up_step();
    run.engine.backward(first);
    run.engine.backward(second);
    EXPECT_TRUE(run.engine.step());
    EXPECT_TRUE(
        same_bits(run.weights(), plain_weights(communicator.size(), {"f0 f1 b0 s b1 s", 2})));
  });
}

TEST(CallOrder, TellsHowManyBackwardsAStepHas) {
  on_ranks(2, [](dist::Communicator& communicator) {
    EXPECT_THROW(EngineRun(communicator, {.accumulation_steps = 0}), Error);
    EngineRun run(communicator, {.overlap = {.stage = 3}, .accumulation_steps = 2});
    EXPECT_THROW(run.engine.step(), Error);
    const auto micro_batch = [&] { run.engine.backward(run.forward(0)); };
    micro_batch();
    micro_batch();
    expect_error(micro_batch, {"backward() number 3 of a step of 2 micro-batches"});
    EXPECT_TRUE(run.engine.step());
  });
}

}  // namespace
}  // namespace zero::testing
