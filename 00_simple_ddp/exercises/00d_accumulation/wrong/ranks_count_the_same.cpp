// expects: every rank counts the same
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
    sum += gradient_of_mean(weight, batch) * batch.samples();
    samples += batch.samples();
  }
  sum /= samples.clamp_min(1);  // wrong: ranks have different numbers of samples
  communicator.all_reduce(sum, Purpose::kGradient).wait();
  return sum;
}
