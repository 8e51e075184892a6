#include "whole_state.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <iterator>

#include <zero/safetensors/safetensors.hpp>

#include "error_of.hpp"

namespace zero::testing {
namespace {

constexpr const char* kKindNames[] = {"exp_avg",         "exp_avg_sq", "max_exp_avg_sq",
                                      "momentum_buffer", "sum",        "square_avg",
                                      "grad_avg",        "master",     "steps"};
constexpr int kKinds = std::size(kKindNames);
constexpr int kSteps = kKinds - 1;  // after the states

// This rank's states and step counts, at their places in one buffer for all parameters: zeros where
// other ranks have something, so that the sum over ranks is the whole.
at::Tensor spread_out(train::Strategy& strategy) {
  at::Tensor all = at::zeros({kKinds * strategy.list().numel()}, at::kDouble);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const std::int64_t elements = strategy.list().parameters[i].numel();
    const train::ParameterShard piece = strategy.placement(i).updated;
    if (piece.tensor.defined()) {
      const auto place = [&](int kind) {
        return all.narrow(0, offset + kind * elements + piece.begin, piece.tensor.numel());
      };
      const auto states = strategy.optimizer().state(piece.tensor);
      for (int kind = 0; kind < kSteps; ++kind) {
        const auto found = states.find(kKindNames[kind]);
        if (found != states.end()) place(kind).copy_(found->second);
      }
      // Of every element, so that a piece with another count than the rest shows.
      place(kSteps).fill_(static_cast<double>(strategy.optimizer().steps(piece.tensor)));
    }
    offset += kKinds * elements;
  }
  return all;
}

}  // namespace

WholeState whole_state(train::Strategy& strategy) {
  const nn::ParameterList& list = strategy.list();
  const std::vector<at::Tensor> weights = whole_weights(strategy);
  at::Tensor all = spread_out(strategy);
  if (dist::Communicator* const group = strategy.placements().group) {
    group->all_reduce(all, dist::Purpose::kControl, dist::ReduceOp::kSum).wait();
  }
  WholeState state;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::string& name = list.parameters[i].name;
    state["parameter/" + name] = weights[i];
    for (const std::string kind : kKindNames) {
      state[kind + "/" + name] = all.narrow(0, offset, weights[i].numel()).clone();
      offset += weights[i].numel();
    }
  }
  return state;
}

WholeState local_state(Session& session) {
  train::Strategy& strategy = session.strategy();
  WholeState state;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const std::string& name = strategy.list().parameters[i].name;
    const train::ParameterShard stored = strategy.placement(i).kept;
    if (stored.tensor.defined()) state["parameter/" + name] = stored.tensor.detach().clone();
  }
  state["states"] = spread_out(strategy);
  return state;
}

::testing::AssertionResult same_state(const WholeState& a, const WholeState& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "different numbers of tensors";
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    if (other == b.end()) return ::testing::AssertionFailure() << "only one has " << name;
    if (!at::equal(tensor, other->second))
      return ::testing::AssertionFailure() << name << " differs";
  }
  return ::testing::AssertionSuccess();
}

void keep(const std::filesystem::path& path, const WholeState& state) {
  safetensors::save(path, {state.begin(), state.end()});
}

WholeState kept(const std::filesystem::path& path) {
  const safetensors::File file(path);
  WholeState state;
  for (const std::string& name : file.names()) state[name] = file.read(name);
  return state;
}

SessionOptions checkpoint_options(std::uint64_t seed) {
  SessionOptions options = with_parts("anfsgt");
  options.seed = seed;
  return options;
}

io::CheckpointInfo note(std::int64_t step, const std::string& mode) {
  io::CheckpointInfo info;
  info.step = step;
  info.mode = mode;
  info.sampler = {{"seed", 0xfedcba9876543210U}, {"step", static_cast<std::uint64_t>(step)}};
  info.random = "state of a generator";
  return info;
}

std::string refusal_of_loading(Session& session, const std::filesystem::path& folder) {
  return error_of([&] { io::load_checkpoint(session.strategy(), folder); });
}

std::string refusal_of_saving(Session& session, const std::filesystem::path& folder,
                              const io::CheckpointInfo& info) {
  return error_of([&] { io::save_checkpoint(session.strategy(), folder, info); });
}

}  // namespace zero::testing
