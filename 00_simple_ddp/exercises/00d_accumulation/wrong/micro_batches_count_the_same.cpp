// expects: every micro-batch counts the same
#include "00d.hpp"

using exercise_00d::gradient_of_mean;
using exercise_00d::MicroBatch;
using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

at::Tensor accumulated_gradient(Communicator& communicator, const at::Tensor& weight,
                                const std::vector<MicroBatch>& batches) {
  at::Tensor sum = at::zeros_like(weight);
  at::Tensor samples = at::zeros({1});
  for (const MicroBatch& batch : batches) {
    sum += gradient_of_mean(weight, batch);  // wrong: a mean, whatever it is of
    samples += 1;
  }
  communicator.all_reduce(sum, Purpose::kGradient, ReduceOp::kSum).wait();
  communicator.all_reduce(samples, Purpose::kControl, ReduceOp::kSum).wait();
  return sum / samples;
}
