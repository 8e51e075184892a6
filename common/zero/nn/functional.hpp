#pragma once

#include <torch/types.h>

/// The operations of this project's layers, with their own backward functions.
///
/// They differ from LibTorch's in two ways. They write the gradient of a parameter straight into
/// its gradient destination (gradient_destination.hpp), without a temporary tensor. And they save
/// for backward only what cannot be recomputed cheaply.
///
/// All work in every floating dtype; a gradient has the dtype of its tensor. Parameters and inputs
/// that do not require a gradient are skipped. They can be differentiated once: backward with
/// create_graph throws zero::Error. Gradients of parameters go to `.grad` only:
/// torch::autograd::grad() with respect to a parameter finds none. Autograd has them as usual if
/// the program has set hooks on the parameter (register_hook()), or gives a weight that is no leaf.
namespace zero::nn {

/// y = x weight^T + bias. `x` [..., in], `weight` [out, in], `bias` [out] or undefined; returns
/// [..., out]. Saves x and weight.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});
/// What its backward does for the weight: adds transpose(gradient) x, of matrices [rows, out] and
/// [rows, in], to the gradient destination of `weight`, and returns
/// GradientDestination::to_autograd. For a backward function of your own.
at::Tensor accumulate_linear(const at::Tensor& weight, const at::Tensor& gradient,
                             const at::Tensor& x);

/// The rows of `weight` [vocabulary, hidden] named by `ids` (int64, any shape [...]); returns [...,
/// hidden]. Throws c10::IndexError for an id outside the vocabulary. Backward adds rows one after
/// another in the order of `ids`, so it returns the same bits every time; if the parameter is tied
/// to an output head it adds into the head's gradient.
at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight);
/// Its backward: adds `gradient` [..., hidden], of the result, to the gradient destination of
/// `weight`, and returns GradientDestination::to_autograd. For a backward function whose forward
/// was computed on another rank.
at::Tensor accumulate_embedding(const at::Tensor& ids, const at::Tensor& weight,
                                const at::Tensor& gradient);

/// Root mean square normalisation over the last dimension (Zhang and Sennrich 2019, equation 4):
/// weight * x / sqrt(mean(x^2) + eps). `x` [..., hidden], `weight` [hidden]; returns the shape of
/// x. Half types are normalised in fp32 and rounded once before the product with `weight`, as in
/// Hugging Face's LlamaRMSNorm. Saves x, weight and one number per row.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// silu(gate) * up, the gated activation of Llama's MLP (Shazeer 2020, "GLU variants improve
/// transformer"). Both have the same shape. Saves gate and up, and recomputes the rest.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace zero::nn
