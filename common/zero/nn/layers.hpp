#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <utility>

#include <zero/nn/layer.hpp>
#include <zero/nn/tensor_parallel.hpp>

/// The layers of this project's models. Each holds its parameters, knows how they are initialised,
/// and calls one function of functional.hpp.
namespace zero::nn {

/// y = x weight^T + bias, with `weight` [out, in] and `bias` [out].
class Linear : public Layer {
 public:
  /// Without bias.
  Linear(std::int64_t in, std::int64_t out, Initializer weight, at::ScalarType dtype = at::kFloat);
  /// With bias.
  Linear(std::int64_t in, std::int64_t out, Initializer weight, Initializer bias,
         at::ScalarType dtype = at::kFloat);

  /// [..., in] to [..., out].
  at::Tensor forward(const at::Tensor& x);

 protected:
  /// With parameters that are cut.
  Linear(std::int64_t in, std::int64_t out, Initializer weight, std::optional<Initializer> bias,
         at::ScalarType dtype, const TensorPlacement& placement);

 private:
  at::Tensor weight_;
  at::Tensor bias_;  // undefined without bias
};

/// A matrix with which half a layer begins, split over a tensor axis: each of n ranks has out / n
/// rows of `weight` and of `bias`, and computes those features. Without an axis it is Linear.
class ColumnParallelLinear : public Linear {
 public:
  /// `in` and `out` are those of the whole. Throws zero::Error if n does not divide `out`.
  ColumnParallelLinear(std::int64_t in, std::int64_t out, Initializer weight,
                       const TensorParallel& tensor, at::ScalarType dtype = at::kFloat);
  ColumnParallelLinear(std::int64_t in, std::int64_t out, Initializer weight, Initializer bias,
                       const TensorParallel& tensor, at::ScalarType dtype = at::kFloat);

  /// [..., in], as TensorParallel::enter() returns it, to [..., out / n]. Layers that read the same
  /// input share one enter().
  using Linear::forward;
};

/// The matrix with which it ends: each of n ranks has in / n columns of `weight`. Without an axis
/// it is Linear.
class RowParallelLinear : public Linear {
 public:
  /// `in` and `out` are those of the whole. Throws zero::Error if n does not divide `in`.
  RowParallelLinear(std::int64_t in, std::int64_t out, Initializer weight,
                    const TensorParallel& tensor, at::ScalarType dtype = at::kFloat);

  /// [B, S, in / n] to [B, S, out], added up over ranks: TensorParallel::leave().
  at::Tensor forward(const at::Tensor& x);

 private:
  TensorParallel tensor_;
};

/// One vector per token id: `weight` [vocabulary, hidden]. Split over a tensor axis, each of n
/// ranks has vocabulary / n rows.
class Embedding : public Layer {
 public:
  /// Throws zero::Error if the vocabulary cannot be split evenly.
  Embedding(std::int64_t vocabulary, std::int64_t hidden, Initializer weight,
            at::ScalarType dtype = at::kFloat, const TensorParallel& tensor = {});

  /// int64 ids [...] to [..., hidden]. With an axis, ids are [B, S], the same on all its ranks, and
  /// the result is the residual stream (TensorParallel::leave()); an id outside the vocabulary is
  /// then a row of zeros, not an error.
  at::Tensor forward(const at::Tensor& ids);

  /// [..., hidden] to logits [..., vocabulary] by the same weight: the output head of a model with
  /// a tied embedding. With an axis, `x` is as TensorParallel::enter() returns it, and the logits
  /// are those of this rank's vocabulary / n tokens.
  at::Tensor as_head(const at::Tensor& x);

  /// Adds to the weight's gradient what the backward of forward(ids) does, for `gradient` of the
  /// result of forward(). For a stage of a pipeline, where forward() ran in another stage: call it
  /// in a backward function, which returns what this returns as the weight's gradient (or adds it
  /// to that). With an axis, called by all its ranks.
  at::Tensor add_gradient(const at::Tensor& ids, const at::Tensor& gradient) const;

 private:
  // With an axis: ids among this rank's rows, and which are of other ranks (they read some row).
  std::pair<at::Tensor, at::Tensor> own_rows(const at::Tensor& ids) const;

  at::Tensor weight_;
  TensorParallel tensor_;
};

/// Root mean square normalisation; `weight` [hidden] starts as ones.
class RmsNorm : public Layer {
 public:
  /// `placement`: not cut (TensorParallel::on_residual()).
  RmsNorm(std::int64_t hidden, double eps, at::ScalarType dtype = at::kFloat,
          const TensorPlacement& placement = {});

  /// [..., hidden] to the same shape.
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
  double eps_;
};

}  // namespace zero::nn
