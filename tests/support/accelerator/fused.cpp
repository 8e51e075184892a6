// Operations that GPUs have and the CPU has not: one launch, and the bits of the library's own
// operations on the CPU.

#include <ATen/OpMathType.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "checker.hpp"
#include "host_views.hpp"
#include "operations.hpp"
#include "streams.hpp"

namespace zero::testing::emulated {
namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

TwoTensors rms_norm(const at::Tensor& input, at::IntArrayRef,
                    const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  HostViews views;
  const at::Tensor x = views.of(input, false), w = views.of(*weight, false);
  Checker::get().launch(current_stream(), views.accesses(), "_fused_rms_norm");
  const at::Tensor wide = x.to(at::toOpMathType(x.scalar_type()));
  const at::Tensor inverse = wide.square().mean(-1, /*keepdim=*/true).add_(*eps).rsqrt_();
  const at::Tensor y = (wide * inverse).to(x.scalar_type()).mul_(w);
  return {views.on_device(y), views.on_device(inverse)};
}

TwoTensors rms_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                             at::IntArrayRef shape, const at::Tensor& rstd,
                             const std::optional<at::Tensor>& weight, std::array<bool, 2> mask) {
  HostViews views;
  const at::Tensor g = views.of(gradient, false), x = views.of(input, false);
  const at::Tensor inverse = views.of(rstd, false), w = views.of(*weight, false);
  Checker::get().launch(current_stream(), views.accesses(), "_fused_rms_norm_backward");
  const at::Tensor normal = x.to(inverse.scalar_type()) * inverse;
  const at::Tensor h = (g * w).to(inverse.scalar_type());
  const at::Tensor along = (h * normal).mean(-1, /*keepdim=*/true);
  const at::Tensor to_x = h.addcmul(normal, along, /*value=*/-1).mul_(inverse).to(x.scalar_type());
  const at::Tensor to_w = (g * normal.to(x.scalar_type())).reshape({-1, shape[0]}).sum(0);
  return {mask[0] ? views.on_device(to_x) : at::Tensor(),
          mask[1] ? views.on_device(to_w) : at::Tensor()};
}

}  // namespace

void register_fused_operations() {
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                             __LINE__);
  aten.impl("_fused_rms_norm", TORCH_FN(rms_norm));
  aten.impl("_fused_rms_norm_backward", TORCH_FN(rms_norm_backward));
}

}  // namespace zero::testing::emulated
