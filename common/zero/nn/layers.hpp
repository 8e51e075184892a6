#pragma once

#include <torch/types.h>

#include <cstdint>

#include <zero/nn/unit.hpp>

/// The layers of this project's models. Each holds its parameters, knows how they are initialised,
/// and calls one function of functional.hpp. Each is a leaf: it belongs to the unit around it,
/// except with Granularity::kLeaf.
namespace zero::nn {

/// y = x weight^T + bias, with `weight` [out, in] and `bias` [out].
class Linear : public Leaf {
 public:
  /// Without bias.
  Linear(std::int64_t in, std::int64_t out, Initializer weight, at::ScalarType dtype = at::kFloat);
  /// With bias.
  Linear(std::int64_t in, std::int64_t out, Initializer weight, Initializer bias,
         at::ScalarType dtype = at::kFloat);

  /// [..., in] to [..., out].
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
  at::Tensor bias_;  // undefined without bias
};

/// One vector per token id: `weight` [vocabulary, hidden].
class Embedding : public Leaf {
 public:
  Embedding(std::int64_t vocabulary, std::int64_t hidden, Initializer weight,
            at::ScalarType dtype = at::kFloat);

  /// int64 ids [...] to [..., hidden].
  at::Tensor forward(const at::Tensor& ids);

  /// [..., hidden] to logits [..., vocabulary] by the same weight: the output head of a model with
  /// a tied embedding.
  at::Tensor as_head(const at::Tensor& x);

 private:
  at::Tensor weight_;
};

/// Root mean square normalisation; `weight` [hidden] starts as ones.
class RmsNorm : public Leaf {
 public:
  RmsNorm(std::int64_t hidden, double eps, at::ScalarType dtype = at::kFloat);

  /// [..., hidden] to the same shape.
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
  double eps_;
};

}  // namespace zero::nn
