// Compares the numbers with the formulas, and these with a pipeline on a clock and with the
// counters of small collectives.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <grading/check.hpp>

namespace exercise_09b {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::exercise::Mistake;

constexpr int kStages = 4, kMicroBatches = 12, kLayers = 24 / kStages;
constexpr double kTensor = 2, kData = 2;  // ranks
constexpr double kHidden = 2048, kTokens = 1024, kElement = 2, kMib = 1 << 20;

constexpr double bubble(int stages, int micro_batches) {
  return (stages - 1.0) / (micro_batches + stages - 1.0);
}

// What a rank sends of `bytes` in an all-gather or a reduce-scatter between `ranks`.
constexpr double sent(double bytes, double ranks) { return bytes * (ranks - 1) / ranks; }

// The part of the time in which a stage of a pipeline does nothing: all forwards, then all
// backwards, which 1F1B takes as long for.
double bubble_on_clock(int stages, int micro_batches) {
  constexpr int kForward = 1, kBackward = 2;
  std::vector<int> free(stages);  // when a stage is free
  const auto run = [&](int stage, int& arrives, int slots) {
    free[stage] = arrives = std::max(free[stage], arrives) + slots;
  };
  for (int m = 0; m < micro_batches; ++m) {
    for (int stage = 0, arrives = 0; stage < stages; ++stage) run(stage, arrives, kForward);
  }
  for (int m = 0; m < micro_batches; ++m) {
    for (int stage = stages - 1, arrives = 0; stage >= 0; --stage) run(stage, arrives, kBackward);
  }
  const double busy = micro_batches * (kForward + kBackward);
  return 1 - busy / *std::max_element(free.begin(), free.end());
}

// What two ranks count for small collectives must be what sent() says.
void check_counters(Communicator& communicator) {
  const auto counted = [&](double expected, const auto& collective) {
    const std::int64_t before = communicator.traffic().bytes();
    collective();
    if (static_cast<double>(communicator.traffic().bytes() - before) != expected) {
      throw Mistake("the counters do not agree with the formulas");
    }
  };
  const double bytes = 4 * 60, ranks = communicator.size();
  const at::Tensor whole = at::ones({60}), shard = at::ones({60 / communicator.size()});
  counted(2 * sent(bytes, ranks),
          [&] { communicator.all_reduce(whole, Purpose::kControl).wait(); });
  counted(sent(bytes, ranks),
          [&] { communicator.reduce_scatter(shard, whole, Purpose::kControl).wait(); });
  counted(sent(bytes, ranks),
          [&] { communicator.all_gather(whole, shard, Purpose::kControl).wait(); });
}

void check_time(const zero::exercise::Numbers& numbers) {
  if (std::abs(bubble_on_clock(kStages, kMicroBatches) - bubble(kStages, kMicroBatches)) > 1e-12) {
    throw Mistake("the pipeline on a clock does not agree with the formula");
  }
  numbers.expect(
      "bubble", bubble(kStages, kMicroBatches),
      {{3.0 / 12, "is the waiting as a part of the computing, not of the step"},
       {4.0 / 15, "counts four stages that wait for each other: a stage waits for three"}},
      1e-3);
  int enough = 1;
  while (bubble(kStages, enough) > 0.05 + 1e-12) ++enough;
  numbers.expect("micro_batches", enough,
                 {{60, "is right for the waiting as a part of the computing, not of the step"},
                  {enough - 1, "leaves a little more than 0.05"}});
}

void check_sent(const zero::exercise::Numbers& numbers) {
  const double activation = kTokens * kHidden * kElement / kMib;
  const double tensor = 4 * kLayers * kMicroBatches * 2 * sent(activation, kTensor);
  numbers.expect("tensor_mib", tensor,
                 {{tensor / 2, "counts two all-reduces of four, or half of each"},
                  {tensor * 2,
                   "takes an all-reduce for twice its tensor: of two ranks each sends "
                   "it once"},
                  {tensor * kStages, "counts the layers of all stages"},
                  {tensor / kMicroBatches, "is for one micro-batch"}});
  const double pipeline = 2 * kMicroBatches * activation;
  numbers.expect("pipeline_mib", pipeline,
                 {{pipeline / 2, "counts one direction: activations go on, gradients go back"},
                  {pipeline / kMicroBatches, "is for one micro-batch"},
                  {pipeline * kLayers, "counts every layer: only the last of a stage is sent on"}});
  const double parameters = 12 * kHidden * kHidden * kLayers / kTensor * kElement / kMib;
  const double once = sent(parameters, kData);
  numbers.expect("zero2_mib", 2 * once,
                 {{once, "is for one of the two collectives"},
                  {4 * once,
                   "forgets that a rank has half of each layer, or keeps half of what it "
                   "reduces"},
                  {2 * once * kStages, "counts the layers of all stages"},
                  {2 * once * kMicroBatches, "sends in each micro-batch, not after the last"}});
  numbers.expect("zero3_mib", (2 * kMicroBatches + 1) * once,
                 {{3 * once, "gathers twice in a step: it must in every micro-batch"},
                  {3 * kMicroBatches * once, "reduces gradients in every micro-batch"},
                  {(kMicroBatches + 1) * once, "gathers once for forward and backward"}});
}

void check_held(const zero::exercise::Numbers& numbers) {
  const double inputs = kLayers * kTokens * kHidden * kElement / kMib;  // of one micro-batch
  numbers.expect("first_mib", kStages * inputs,
                 {{kMicroBatches * inputs, "is for all micro-batches: that is GPipe"},
                  {inputs, "is for one micro-batch: stage 0 is ahead of the others"},
                  {(kStages - 1) * inputs, "forgets the micro-batch that runs"},
                  {kStages * inputs / kLayers, "is for one layer"}});
  numbers.expect("last_mib", inputs,
                 {{kStages * inputs, "is for stage 0: the last stage runs backward at once"},
                  {kMicroBatches * inputs, "is for all micro-batches"},
                  {0, "forgets the micro-batch that runs"}});
  numbers.expect("gpipe_mib", kMicroBatches * inputs, {{kStages * inputs, "is that under 1F1B"}});
  numbers.expect("split_mib", kStages * inputs / kTensor,
                 {{kStages * inputs, "is for whole inputs"},
                  {kMicroBatches * inputs / kTensor, "is for all micro-batches"}});
}

void check(const zero::exercise::Numbers& numbers) {
  check_time(numbers);
  check_sent(numbers);
  check_held(numbers);
  for (const int ranks : {2, 3}) zero::exercise::on_ranks(ranks, check_counters);
}

}  // namespace exercise_09b
