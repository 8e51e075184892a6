#pragma once

#include <torch/types.h>

/// The operations that the layers of this project are made of, with backward functions of their
/// own.
///
/// They differ from LibTorch's in two ways. The gradient of a parameter is written straight into
/// its gradient destination (gradient_destination.hpp) instead of passing through a tensor of its
/// own. And they save for backward only what cannot be had cheaply again.
///
/// All work in every floating dtype; gradients have the dtype of what they are the gradient of. A
/// parameter that does not require a gradient is skipped, and so is an input that does not. They
/// can be differentiated once: backward with create_graph throws zero::Error. Gradients of
/// parameters go to `.grad` only: torch::autograd::grad() with respect to a parameter finds none.
namespace zero::nn {

/// y = x weight^T + bias. `x` [..., in], `weight` [out, in], `bias` [out] or undefined; gives
/// [..., out]. Saves x and weight.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

/// The rows of `weight` [vocabulary, hidden] that `ids` (int64, any shape [...]) names; gives
/// [..., hidden]. Throws c10::IndexError for an id outside the vocabulary. Backward adds rows one
/// after another in the order of `ids`, so that it gives the same bits every time; where the
/// parameter is tied to an output head it adds into the head's gradient.
at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight);

/// Root mean square normalisation over the last dimension (Zhang and Sennrich 2019, equation 4):
/// weight * x / sqrt(mean(x^2) + eps). `x` [..., hidden], `weight` [hidden]; gives the shape of x.
/// Half types are normalised in fp32 and rounded once before the product with `weight`, as Hugging
/// Face's LlamaRMSNorm does. Saves x, weight and one number per row.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// silu(gate) * up, the gated activation of Llama's MLP (Shazeer 2020, "GLU variants improve
/// transformer"). Both of the same shape. Saves gate and up, and computes the rest again.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace zero::nn
