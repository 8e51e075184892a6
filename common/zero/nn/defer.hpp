#pragma once

#include <torch/nn/module.h>

#include <functional>

namespace zero::nn {

namespace detail {
void construct_deferred(const std::function<torch::nn::Module&()>& construct);
}  // namespace detail

/// Constructs a module, of torch::nn or of nn::Layer, whose parameters have shapes and no values:
///
///     const auto net = zero::nn::defer([&] { return std::make_shared<Net>(options); });
///
/// So no rank ever holds the model. A strategy gives each rank its shards, with first values from a
/// ParameterSource, and no rank holds more than its stage allows, not even at the start. Acts on
/// this rank and thread alone.
///
/// While the module is constructed, a parameter loses its bytes before the operation that follows
/// its registration, so that at most one has any. An operation that writes into a parameter does
/// nothing. A tensor that is computed from one has no values either; it may become a parameter, as
/// by to(). Other tensors, such as buffers and numbers that the constructor reads, are as ever.
///
/// @throws zero::Error for an operation that needs the values of a parameter, as .item() does, for
/// a buffer that is computed from a parameter, and for one that is drawn at random: without
/// defer(), its values would depend on those that parameters drew before.
template <typename Make>
auto defer(const Make& make) {
  decltype(make()) module = nullptr;
  detail::construct_deferred([&]() -> torch::nn::Module& { return *(module = make()); });
  return module;
}

}  // namespace zero::nn
