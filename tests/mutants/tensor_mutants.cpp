// Wrong implementations of split tensors.

#include <ATen/ops/roll.h>
#include <ATen/ops/zeros.h>

#include <04_tensor_sharding/tensor_zero1.hpp>
#include <04_tensor_sharding/tensor_zero2.hpp>
#include <04_tensor_sharding/tensor_zero3.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/norm.hpp>

#include "mutants.hpp"

namespace zero::testing {
namespace {

// Shards go back into the buffer one element too far.
struct ShardOffByOne final : TensorZero1 {
  using TensorZero1::TensorZero1;
  void sync_parameters() override {
    TensorZero1::sync_parameters();
    for (std::size_t b = 0; b < flat_.size(); ++b) {
      at::Tensor full = flat_[b].full();
      full.copy_(at::roll(full, 1));
    }
  }
};

// A norm over whole shards, with whatever lies between the tensors: here a 1 in every gap.
struct PaddingInNorm final : TensorZero2 {
  using TensorZero2::TensorZero2;
  float clip_grad_norm(double max_norm) override {
    at::Tensor square = at::zeros({1}, at::kDouble);
    for (std::size_t i = 0; i < count(); ++i) {
      if (owns(i) && placement(i).updated.tensor.grad().defined()) {
        square += optim::squared_norm(placement(i).updated.tensor.grad());
      }
    }
    for (const auto& buffer : flat_.buffers()) square += gaps(buffer.layout());
    communicator_.all_reduce(square, dist::Purpose::kControl, dist::ReduceOp::kSum).wait();
    const float norm = optim::norm_from_squares({square.item<double>()});
    const float coefficient = optim::clip_coefficient(norm, max_norm);
    for (std::size_t i = 0; i < count(); ++i) {
      if (owns(i) && placement(i).updated.tensor.grad().defined()) {
        placement(i).updated.tensor.mutable_grad().mul_(coefficient);
      }
    }
    return norm;
  }
  // Elements of this rank's shard that belong to no tensor.
  double gaps(const train::ShardLayout& layout) const {
    std::int64_t elements = layout.shard();
    for (std::size_t t = 0; t < layout.tensors(); ++t) {
      elements -= layout.range(t, communicator_.rank()).size;
    }
    return static_cast<double>(elements);
  }
};

// One unit is never resharded after its first gather: the bytes stay, and the values grow old.
struct SkippedReshard final : TensorZero3 {
  using TensorZero3::TensorZero3;
  void drop(std::size_t unit) override {
    if (unit != 1) TensorZero3::drop(unit);
  }
};

// One group of stage 1 is gathered, but from the shards of the step before.
struct StaleShard final : TensorZero1 {
  using TensorZero1::TensorZero1;
  void optimizer_step() override {
    const std::vector<at::Tensor> pieces = flat_[0].updated();
    std::vector<at::Tensor> old;
    for (const at::Tensor& piece : pieces) old.push_back(piece.clone());
    TensorZero1::optimizer_step();
    for (std::size_t i = 0; i < old.size(); ++i) pieces[i].copy_(old[i]);
  }
};

// Stage 2 as stage 1: the averages are right, and the buffer that they came from stays.
struct ShardGradientsKeptWhole final : TensorZero2 {
  using TensorZero2::TensorZero2;
  void reduce(std::size_t buffer) override {
    const memory::Charge charge(memory::Category::kGradients);
    kept.push_back(at::zeros({flat_[buffer].layout().total()}));
    TensorZero2::reduce(buffer);
  }
  void zero_grad() override {
    kept.clear();
    TensorZero2::zero_grad();
  }
  std::vector<at::Tensor> kept;
};

}  // namespace

std::vector<Mutant> mutants_of_shards() {
  return {
      {"tensor_shard_off_by_one", "gathered shards lie one element too far", "Parity.AdamW",
       "tensor_zero1", make_mutant<ShardOffByOne>},
      {"tensor_padding_in_norm", "the clipping norm counts what lies between tensors",
       "Parity.ClippedGradients", "tensor_zero2", make_mutant<PaddingInNorm>},
      {"tensor_skipped_reshard", "one unit stays whole after its first gather",
       "Residency.ModelStatesAtRestAreThoseOfTheFormula", "tensor_zero3",
       make_mutant<SkippedReshard>},
      {"tensor_stale_parameters", "updated shards are never gathered", "Parity.AdamW",
       "tensor_zero2", make_mutant<StaleParameters<TensorZero2>>},
      {"tensor_stale_shard", "one shard is gathered as it was before the update", "Parity.Sgd",
       "tensor_zero1", make_mutant<StaleShard>},
      {"tensor_sum_for_mean", "gradients are summed, not averaged", "Parity.AdamW", "tensor_zero3",
       make_mutant<SumForMean<TensorZero3>>},
      {"tensor_gradients_kept_whole", "the gradient buffer outlives its reduce-scatter",
       "Residency.ModelStatesAtRestAreThoseOfTheFormula", "tensor_zero2",
       make_mutant<ShardGradientsKeptWhole>},
  };
}

}  // namespace zero::testing
