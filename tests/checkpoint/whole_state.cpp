#include "whole_state.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <zero/error.hpp>
#include <zero/nn/safetensors.hpp>

namespace zero::testing {
namespace {

// What ranks hold in pieces, put together: the others add zeros to each element.
at::Tensor whole(Session& session, std::int64_t elements, std::int64_t begin,
                 const at::Tensor& mine) {
  at::Tensor sum = at::zeros({elements}, at::kDouble);
  if (mine.defined()) sum.narrow(0, begin, mine.numel()).copy_(mine);
  if (session.strategy().sharded()) {
    session.communicator().all_reduce(sum, dist::Purpose::kControl, dist::ReduceOp::kSum).wait();
  }
  return sum;
}

}  // namespace

WholeState whole_state(Session& session) {
  train::Strategy& strategy = session.strategy();
  WholeState state;
  const std::vector<at::Tensor> weights = session.weights();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::string& name = strategy.list().parameters[i].name;
    const train::Piece piece = strategy.piece(i);
    const bool mine = piece.tensor.defined();
    state["parameter/" + name] = weights[i];
    const auto states =
        mine ? strategy.optimizer().state(piece.tensor) : std::map<std::string, at::Tensor>();
    for (const std::string kind : {"exp_avg", "exp_avg_sq", "momentum_buffer"}) {
      const auto found = states.find(kind);
      state[kind + "/" + name] = whole(session, weights[i].numel(), piece.begin,
                                       found == states.end() ? at::Tensor() : found->second);
    }
    // Of every element, so that a piece with another count than the rest shows.
    const double steps = mine ? static_cast<double>(strategy.optimizer().steps(piece.tensor)) : 0.0;
    state["steps/" + name] =
        whole(session, weights[i].numel(), piece.begin,
              mine ? at::full({piece.tensor.numel()}, steps, at::kDouble) : at::Tensor());
  }
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
  nn::save_safetensors(path, {state.begin(), state.end()});
}

WholeState kept(const std::filesystem::path& path) {
  const nn::SafetensorsFile file(path);
  WholeState state;
  for (const std::string& name : file.names()) state[name] = file.read(name);
  return state;
}

SessionOptions checkpoint_options(std::uint64_t seed) {
  SessionOptions options;
  options.model.parts = "anfsgt";
  options.seed = seed;
  return options;
}

train::CheckpointInfo note(std::int64_t step, const std::string& mode) {
  train::CheckpointInfo info;
  info.step = step;
  info.mode = mode;
  info.sampler = data::DistributedSampler::State{0xfedcba9876543210U, 1000, 24, step};
  info.random = "state of a generator";
  return info;
}

std::string refusal_of_loading(Session& session, const std::filesystem::path& folder) {
  try {
    train::load_checkpoint(session.strategy(), folder);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string refusal_of_saving(Session& session, const std::filesystem::path& folder,
                              const train::CheckpointInfo& info) {
  try {
    train::save_checkpoint(session.strategy(), folder, info);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace zero::testing
