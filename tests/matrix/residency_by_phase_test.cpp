// What is alive at every named point of a step, and how many collectives a step takes: by chapter,
// from the allocator and the communicator, not from the strategy's own bookkeeping.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include <tests/support/ranks.hpp>
#include <tests/support/session.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/shard_layout.hpp>

namespace zero::testing {
namespace {

using dist::Purpose;
using memory::Category;

class Points : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Points, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return fmt::format("N{}", info.param); });

// Two units and a root, nothing frozen, every parameter used once.
SessionOptions plain_model() {
  SessionOptions options;
  options.model = {.inputs = 50, .width = 30, .parts = "aa", .tied = true};
  return options;
}

struct Held {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
};

using Phases = std::vector<std::pair<std::string, Held>>;

// One step, the first, with a look after each of its parts.
Phases phases_of_a_step(dist::Communicator& communicator, const std::string& mode,
                        const std::function<void(Session&, const std::string& point)>& look) {
  Phases phases;
  const memory::Snapshot before = memory::snapshot();
  Session session(communicator, mode, plain_model());
  const auto take = [&](const std::string& point) {
    const memory::Snapshot now = memory::snapshot();
    EXPECT_EQ(std::accumulate(now.current.begin(), now.current.end(), std::int64_t{0}), now.total)
        << mode << " " << point;
    phases.emplace_back(point, Held{now[Category::kParameters] - before[Category::kParameters],
                                    now[Category::kGradients] - before[Category::kGradients],
                                    now[Category::kOptimizer] - before[Category::kOptimizer]});
    look(session, point);
  };
  train::Strategy& strategy = session.strategy();
  take("start");
  at::Tensor loss = strategy.forward(session.batch(0));
  take("forward");
  strategy.backward(loss);
  loss = at::Tensor();
  take("backward");
  strategy.finish_backward();
  take("reduction");
  strategy.optimizer_step();
  take("optimizer");
  strategy.sync_parameters();
  take("sync");
  strategy.zero_grad();
  take("cleared");
  return phases;
}

// The lines of docs/memory.md for the stages that own whole parameters: of all parameters (V), of
// those that this rank owns (o), of the root's that it does not own (r).
Phases expected_phases(const std::string& mode, std::int64_t v, std::int64_t o, std::int64_t r) {
  const bool stage3 = mode.starts_with("zero3"), sharded = mode != "ddp" && mode != "ddp:flat";
  const bool late = mode == "zero2:after", keeps = !sharded || mode.starts_with("zero1");
  const std::int64_t parameters = stage3 ? o : v, gradients = keeps ? v : o;
  const std::int64_t moments = sharded ? 2 * o : 2 * v;
  std::int64_t in_forward = parameters;
  if (mode == "zero3") in_forward = o + r;
  if (mode == "zero3:whole") in_forward = v;
  return {{"start", {parameters, 0, 0}},
          {"forward", {in_forward, 0, 0}},
          {"backward", {parameters, late ? v : gradients, 0}},
          {"reduction", {parameters, gradients, 0}},
          {"optimizer", {parameters, gradients, moments}},
          {"sync", {parameters, gradients, moments}},
          {"cleared", {parameters, 0, moments}}};
}

void expect_phases(const Phases& phases, const Phases& expected, const std::string& mode) {
  ASSERT_EQ(phases.size(), expected.size()) << mode;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const auto& [point, held] = phases[i];
    const Held& wanted = expected[i].second;
    EXPECT_EQ(held.parameters, wanted.parameters) << mode << " " << point;
    EXPECT_EQ(held.gradients, wanted.gradients) << mode << " " << point;
    EXPECT_EQ(held.optimizer, wanted.optimizer) << mode << " " << point;
  }
}

TEST_P(Points, OfAStepHoldWhatTheStageSays) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string mode : {"ddp", "ddp:flat", "zero1", "zero1:naive", "zero2",
                                   "zero2:after", "zero2:placeholder", "zero3", "zero3:whole"}) {
      std::int64_t v = 0, o = 0, r = 0;
      const Phases phases =
          phases_of_a_step(communicator, mode, [&](Session& session, const auto&) {
            v = o = r = 0;
            for (std::size_t i = 0; i < session.strategy().list().size(); ++i) {
              const nn::Parameter& p = session.strategy().list().parameters[i];
              const bool mine = session.strategy().owns(i);
              v += p.bytes();
              if (mine) o += p.bytes();
              if (!mine && p.unit == 0) r += p.bytes();
            }
          });
      const Phases expected = expected_phases(mode, v, o, r);
      expect_phases(phases, expected, mode);
    }
  });
}

// The same for split tensors, by the bytes at rest, those of the whole padded buffers (f), and of
// the root's among them (r).
Phases expected_phases_of_shards(const std::string& mode, const train::ModelStateBytes& rest,
                                 std::int64_t f, std::int64_t r) {
  const bool whole = mode.ends_with(":whole"), stage3 = gathers_by_unit(mode) || whole;
  const std::int64_t in_forward = rest.parameters + (whole ? f : stage3 ? r : 0);
  return {{"start", {rest.parameters, 0, 0}},
          {"forward", {in_forward, 0, 0}},
          {"backward", {rest.parameters, rest.gradients, 0}},
          {"reduction", {rest.parameters, rest.gradients, 0}},
          {"optimizer", {rest.parameters, rest.gradients, rest.optimizer}},
          {"sync", {rest.parameters, rest.gradients, rest.optimizer}},
          {"cleared", {rest.parameters, 0, rest.optimizer}}};
}

TEST_P(Points, OfAStepHoldWhatTheStageSaysOfSplitTensors) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      if (!mode.starts_with("tensor_")) continue;
      train::ModelStateBytes rest;
      std::int64_t root = 0;
      const Phases phases =
          phases_of_a_step(communicator, mode, [&](Session& session, const auto&) {
            rest = session.strategy().predicted_bytes();
            const nn::ParameterList& list = session.strategy().list();
            std::vector<std::int64_t> sizes;
            for (const std::size_t i : list.units[0].parameters) {
              sizes.push_back(list.parameters[i].numel());
            }
            root = 4 * train::ShardLayout(sizes, communicator.size()).total();
          });
      const bool split = mode.starts_with("tensor_zero3");
      std::int64_t full = rest.parameters * (split ? communicator.size() : 1);
      // The shard of a rank by itself is everything: there is nothing to gather.
      if (split && communicator.size() == 1) full = root = 0;
      const Phases expected = expected_phases_of_shards(mode, rest, full, root);
      expect_phases(phases, expected, mode);
    }
  });
}

// Which parameters have bytes, one by one, where the sums above could cancel out.
TEST_P(Points, OfStage3LeaveInnerUnitsWithTheirOwnersOnly) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    phases_of_a_step(communicator, "zero3", [](Session& session, const std::string& point) {
      for (std::size_t i = 0; i < session.strategy().list().size(); ++i) {
        const nn::Parameter& p = session.strategy().list().parameters[i];
        const bool root_is_whole = point == "forward" && p.unit == 0;
        EXPECT_EQ(memory::has_storage(p.tensor), root_is_whole) << point << ": " << p.name;
        EXPECT_EQ(session.strategy().local_shard(i).tensor.defined(), session.strategy().owns(i));
      }
    });
  });
}

// Any chapter: before the first step and between steps nothing is alive but model states. The
// engine keeps the bytes of gradients that are cleared, if it may.
TEST_P(Points, OfRestHoldNothingButModelStates) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    std::vector<std::string> modes = all_modes();
    for (const char* stage : {"0", "1", "2", "3"}) {
      modes.push_back(std::string("engine") + stage + ":keep_gradients=false");
    }
    for (const std::string& mode : modes) {
      const bool keeps = mode.starts_with("engine") && !mode.ends_with("keep_gradients=false");
      const memory::Snapshot before = memory::snapshot();
      Session session(communicator, mode, plain_model());
      const train::ModelStateBytes formula = session.strategy().predicted_bytes();
      const auto alive = [&] { return memory::snapshot().total - before.total; };
      EXPECT_LE(alive(), formula.parameters + 64) << mode << " at the start";
      session.step(0);
      EXPECT_LE(alive(), formula.total() + 64) << mode << " after a step";
      session.trainer().zero_grad();
      EXPECT_LE(alive(), formula.total() - (keeps ? 0 : formula.gradients) + 64)
          << mode << " cleared";
    }
  });
}

struct Calls {
  std::int64_t gradient = 0;
  std::int64_t parameter = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t control = 0;
};

Calls calls_of_a_step(dist::Communicator& communicator, const std::string& mode,
                      const SessionOptions& options, int micro_batches) {
  Session session(communicator, mode, options);
  std::vector<data::Batch> batches;
  for (int m = 0; m < micro_batches; ++m) batches.push_back(session.batch(m));
  const dist::Traffic before = communicator.traffic();
  session.trainer().step(batches);
  const dist::Traffic sent = communicator.traffic().since(before);
  return {sent.calls(Purpose::kGradient), sent.calls(Purpose::kParameter),
          sent.bytes(Purpose::kGradient), sent.calls(Purpose::kControl)};
}

// Of 6 parameters in 3 units, 2 of them (tied, so really 5): a collective for each, no more.
TEST_P(Points, AStepTakesTheStatedNumberOfCollectives) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const std::int64_t root = 1, inner = 4, all = root + inner, units = 3;
    const std::map<std::string, std::pair<std::int64_t, std::int64_t>> stated = {
        {"ddp", {all, 0}},
        {"ddp:flat", {1, 0}},
        {"zero1", {all, all}},
        {"zero1:naive", {all, all}},
        {"zero2", {all, all}},
        {"zero2:after", {all, all}},
        {"zero2:placeholder", {all, all}},
        {"zero3", {all, root + 2 * inner}},  // the root is kept from forward to backward
        {"zero3:whole", {all, all}},
        // A buffer for each of the three units, or for each parameter.
        {"tensor_zero1", {units, units}},
        {"tensor_zero1:naive", {units, units}},
        {"tensor_zero1:per_parameter", {all, all}},
        {"tensor_zero2", {units, units}},
        {"tensor_zero2:per_parameter", {all, all}},
        {"tensor_zero3", {units, root + 2 * (units - 1)}},
        {"tensor_zero3:leaf", {units, root + 2 * (units - 1)}},  // units that hold their own
        {"tensor_zero3:per_parameter", {all, root + 2 * inner}},
        {"tensor_zero3:whole", {units, units}}};
    for (const auto& [mode, calls] : stated) {
      const Calls one = calls_of_a_step(communicator, mode, plain_model(), 1);
      EXPECT_EQ(one.gradient, calls.first) << mode;
      // The shard of a rank by itself is everything: there is nothing to gather.
      const bool alone = mode.starts_with("tensor_zero3") && communicator.size() == 1;
      EXPECT_EQ(one.parameter, alone ? 0 : calls.second) << mode;
      // The number of loss terms, the loss, and which parameters were used. A rank by itself adds
      // nothing up, so whether its gradients are finite is asked apart.
      EXPECT_EQ(one.control, communicator.size() == 1 ? 4 : 3) << mode;
    }
  });
}

TEST_P(Points, AccumulationReducesOnceOrEveryTimeAsAsked) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      SessionOptions options = plain_model();
      const Calls one = calls_of_a_step(communicator, mode, options, 1);
      const Calls local = calls_of_a_step(communicator, mode, options, 3);
      options.accumulation = train::Accumulation::kReduceEach;
      const Calls each = calls_of_a_step(communicator, mode, options, 3);
      EXPECT_EQ(local.gradient, one.gradient) << mode;
      EXPECT_EQ(local.gradient_bytes, one.gradient_bytes) << mode;
      EXPECT_EQ(each.gradient, 3 * one.gradient) << mode;
      EXPECT_EQ(each.gradient_bytes, 3 * one.gradient_bytes) << mode;
    }
  });
}

// The norm costs one small collective where ranks own different parameters, else none.
TEST_P(Points, ClippingTakesOneCollectiveAndGivesTheNormOfOneProcess) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const std::string& mode : all_modes()) {
      SessionOptions options = plain_model();
      const Calls without = calls_of_a_step(communicator, mode, options, 1);
      options.trainer.clip_norm = 0.01;
      const Calls with = calls_of_a_step(communicator, mode, options, 1);
      Session session(communicator, mode, options);
      // With one rank the norm also tells whether gradients are finite, which is asked apart
      // without.
      const int asked_apart = communicator.size() == 1 ? 1 : 0;
      EXPECT_EQ(with.control - without.control,
                (session.strategy().sharded() ? 1 : 0) - asked_apart)
          << mode;
      EXPECT_EQ(with.gradient, without.gradient) << mode;

      const float norm = session.step(0).gradient_norm;
      SingleProcessReference alone(options);
      std::vector<data::Batch> batches;
      for (int r = 0; r < communicator.size(); ++r) {
        batches.push_back(random_model_batch(options.model, 17, r, 0));
      }
      alone.model().loss(concatenate(batches)).backward();
      double squares = 0, after = 0;
      for (const at::Tensor& p : alone.parameters()) {
        squares += p.grad().to(at::kDouble).square().sum().item<double>();
      }
      EXPECT_NEAR(norm, std::sqrt(squares), 1e-5 * std::sqrt(squares)) << mode;
      EXPECT_GT(norm, 0.01F) << "nothing was clipped";
      for (const at::Tensor& g : session.gradients()) {
        after += g.to(at::kDouble).square().sum().item<double>();
      }
      EXPECT_NEAR(std::sqrt(after), 0.01, 1e-6) << mode;
    }
  });
}

}  // namespace
}  // namespace zero::testing
