// What is alive at every named point of a step, and how many collectives a step takes: by chapter,
// from the allocator and the communicator, not from the strategy's own bookkeeping.

#include <map>
#include <numeric>

#include <tests/support/session.hpp>
#include <tests/support/states.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/flat/shard_layout.hpp>

namespace zero::testing {
namespace {

using dist::Purpose;

ZERO_TESTS_ON_RANKS(Points, 1, 2, 3);

// Two units and a root, nothing frozen, every parameter used once.
SessionOptions plain_model() {
  SessionOptions options;
  options.model = {.inputs = 50, .width = 30, .parts = "aa", .tied = true};
  return options;
}

using Phases = std::vector<std::pair<std::string, train::ModelStateBytes>>;

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
    phases.emplace_back(point, states_since(before));
    look(session, point);
  };
  train::Strategy& strategy = session.strategy();
  take("start");
  at::Tensor loss = forward_batch(strategy, session.batch(0));
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

// The lines of docs/formulas.md: what is held at rest, what of parameters after forward, and what
// of gradients after backward.
Phases expected_phases(const train::ModelStateBytes& rest, std::int64_t in_forward,
                       std::int64_t after_backward) {
  const auto& [parameters, gradients, moments] = rest;
  return {{"start", {parameters, 0, 0}},
          {"forward", {in_forward, 0, 0}},
          {"backward", {parameters, after_backward, 0}},
          {"reduction", {parameters, gradients, 0}},
          {"optimizer", {parameters, gradients, moments}},
          {"sync", {parameters, gradients, moments}},
          {"cleared", {parameters, 0, moments}}};
}

void expect_phases(const Phases& phases, const Phases& expected, const std::string& mode) {
  ASSERT_EQ(phases.size(), expected.size()) << mode;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const auto& [point, held] = phases[i];
    EXPECT_EQ(text_of(held), text_of(expected[i].second)) << mode << " " << point;
  }
}

// The stages that own whole parameters: of all parameters (v), of those that this rank owns (o),
// and of the root's that it does not own (r).
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
      const bool stage3 = mode.starts_with("zero3"), sharded = !mode.starts_with("ddp");
      const train::ModelStateBytes rest{
          stage3 ? o : v, sharded && !mode.starts_with("zero1") ? o : v, 2 * (sharded ? o : v)};
      const std::int64_t in_forward = mode == "zero3" ? o + r : v;
      const std::int64_t after_backward = mode == "zero2:after" ? v : rest.gradients;
      expect_phases(phases, expected_phases(rest, in_forward, after_backward), mode);
    }
  });
}

// Split tensors, by the bytes at rest, those of the whole padded buffers, and of the root's among
// them.
TEST_P(Points, OfAStepHoldWhatTheStageSaysOfSplitTensors) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    if (!mode.starts_with("tensor_")) return;
    train::ModelStateBytes rest;
    std::int64_t root = 0;
    const Phases phases = phases_of_a_step(communicator, mode, [&](Session& session, const auto&) {
      rest = session.strategy().costs().at_rest;
      const nn::ParameterList& list = session.strategy().list();
      std::vector<std::int64_t> sizes;
      for (const std::size_t i : list.units[0].parameters) {
        sizes.push_back(list.parameters[i].numel());
      }
      root = 4 * train::ShardLayout(sizes, communicator.size()).total();
    });
    std::int64_t in_forward = rest.parameters;
    // The shard of a rank by itself is everything: there is nothing to gather.
    if (mode.starts_with("tensor_zero3") && communicator.size() > 1) {
      in_forward += mode.ends_with(":whole") ? rest.parameters * communicator.size() : root;
    }
    expect_phases(phases, expected_phases(rest, in_forward, rest.gradients), mode);
  });
}

dist::Traffic traffic_of_a_step(dist::Communicator& communicator, const std::string& mode,
                                const SessionOptions& options, int micro_batches) {
  Session session(communicator, mode, options);
  std::vector<data::Batch> batches;
  for (int m = 0; m < micro_batches; ++m) batches.push_back(session.batch(m));
  const dist::Traffic before = communicator.traffic();
  session.trainer().step(batches);
  return communicator.traffic().since(before);
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
        {"tensor_zero3:per_parameter", {all, root + 2 * inner}},
        {"tensor_zero3:whole", {units, units}}};
    for (const auto& [mode, calls] : stated) {
      const dist::Traffic one = traffic_of_a_step(communicator, mode, plain_model(), 1);
      EXPECT_EQ(one.calls(Purpose::kGradient), calls.first) << mode;
      // The shard of a rank by itself is everything: there is nothing to gather.
      const bool alone = mode.starts_with("tensor_zero3") && communicator.size() == 1;
      EXPECT_EQ(one.calls(Purpose::kParameter), alone ? 0 : calls.second) << mode;
      // The number of loss terms; all that ranks must know before the update.
      EXPECT_EQ(one.calls(Purpose::kControl), 2) << mode;
    }
  });
}

// The norm travels with what ranks tell each other anyway.
TEST_P(Points, ClippingTakesNoCollective) {
  on_all_modes(GetParam(), [](dist::Communicator& communicator, const std::string& mode) {
    SessionOptions options = plain_model();
    const dist::Traffic without = traffic_of_a_step(communicator, mode, options, 1);
    options.trainer.clip_norm = 0.01;
    const dist::Traffic with = traffic_of_a_step(communicator, mode, options, 1);
    EXPECT_EQ(with.calls(Purpose::kControl), without.calls(Purpose::kControl));
    EXPECT_EQ(with.calls(Purpose::kGradient), without.calls(Purpose::kGradient));
  });
}

}  // namespace
}  // namespace zero::testing
