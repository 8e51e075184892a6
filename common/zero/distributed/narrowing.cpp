#include <ATen/core/grad_mode.h>

#include <utility>

#include <zero/distributed/narrowing.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {
namespace {

class NarrowingWork final : public Pending::Work {
 public:
  NarrowingWork(std::unique_ptr<Pending::Work> work, at::Tensor wide, at::Tensor result)
      : work_(std::move(work)), wide_(std::move(wide)), result_(std::move(result)) {}

  void wait() override {
    work_->wait();
    const at::NoGradGuard no_grad;
    result_.copy_(wide_.view_as(result_));
  }

 private:
  std::unique_ptr<Pending::Work> work_;
  at::Tensor wide_;
  at::Tensor result_;
};

}  // namespace

std::unique_ptr<Pending::Work> narrowing(std::unique_ptr<Pending::Work> work,
                                         const at::Tensor& wide, const at::Tensor& result) {
  if (work == nullptr || wide.scalar_type() == result.scalar_type()) return work;
  return std::make_unique<NarrowingWork>(std::move(work), wide, result);
}

std::string_view name(ReduceType type) {
  return type == ReduceType::kFloat32 ? "float32" : "their own type";
}

bool Communicator::widens(at::ScalarType dtype) const {
  if (size_ == 1) return false;  // nothing is added
  if (dtype == at::kHalf && order_ == ReductionOrder::kNative) return true;
  return reduce_type_ == ReduceType::kFloat32 && (dtype == at::kHalf || dtype == at::kBFloat16);
}

at::Tensor Communicator::widened(const at::Tensor& tensor) const {
  if (!widens(tensor.scalar_type())) return tensor;
  const at::NoGradGuard no_grad;
  const memory::Charge charge(memory::Category::kCommunication);
  return tensor.to(at::kFloat);
}

std::int64_t Communicator::reduced_element_size(at::ScalarType dtype) const {
  return static_cast<std::int64_t>(c10::elementSize(widens(dtype) ? at::kFloat : dtype));
}

}  // namespace zero::dist
