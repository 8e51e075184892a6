#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>

#include <cmath>
#include <utility>

#include <zero/distributed/narrowing.hpp>

namespace zero::dist {
namespace {

// Without scratch memory: reductions are part of the memory peak.
bool all_finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const auto [least, most] = at::aminmax(tensor.flatten());
  return std::isfinite(least.item<float>()) && std::isfinite(most.item<float>());
}

class NarrowingWork final : public Work::Backend {
 public:
  using Watch = std::function<void(const at::Tensor&, const std::vector<at::Tensor>&, bool)>;

  NarrowingWork(std::unique_ptr<Work::Backend> work, at::Tensor wide, at::Tensor result,
                Watch watch)
      : work_(std::move(work)),
        wide_(std::move(wide)),
        result_(std::move(result)),
        watch_(std::move(watch)) {}

  void wait() override {
    work_->wait();
    const at::NoGradGuard no_grad;
    result_.copy_(wide_.view_as(result_));
    // The sum was checked before rounding, but rounding may overflow.
    if (watch_ && !all_finite(result_) && all_finite(wide_)) watch_(result_, {}, true);
  }

 private:
  std::unique_ptr<Work::Backend> work_;
  at::Tensor wide_;
  at::Tensor result_;
  Watch watch_;
};

}  // namespace

std::unique_ptr<Work::Backend> narrowing(
    std::unique_ptr<Work::Backend> work, const at::Tensor& wide, const at::Tensor& result,
    std::function<void(const at::Tensor&, const std::vector<at::Tensor>&, bool)> watch) {
  if (work == nullptr || wide.scalar_type() == result.scalar_type()) return work;
  return std::make_unique<NarrowingWork>(std::move(work), wide, result, std::move(watch));
}

}  // namespace zero::dist
