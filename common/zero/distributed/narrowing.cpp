#include <ATen/core/grad_mode.h>

#include <utility>

#include <zero/distributed/narrowing.hpp>

namespace zero::dist {
namespace {

class NarrowingWork final : public Work::Backend {
 public:
  NarrowingWork(std::unique_ptr<Work::Backend> work, at::Tensor wide, at::Tensor result)
      : work_(std::move(work)), wide_(std::move(wide)), result_(std::move(result)) {}

  void wait() override {
    work_->wait();
    const at::NoGradGuard no_grad;
    result_.copy_(wide_.view_as(result_));
  }

 private:
  std::unique_ptr<Work::Backend> work_;
  at::Tensor wide_;
  at::Tensor result_;
};

}  // namespace

std::unique_ptr<Work::Backend> narrowing(std::unique_ptr<Work::Backend> work,
                                         const at::Tensor& wide, const at::Tensor& result) {
  if (work == nullptr || wide.scalar_type() == result.scalar_type()) return work;
  return std::make_unique<NarrowingWork>(std::move(work), wide, result);
}

}  // namespace zero::dist
