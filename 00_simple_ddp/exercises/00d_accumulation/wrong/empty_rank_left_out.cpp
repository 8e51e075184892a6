// expects: ranks disagree about the next collective
#include "00d.hpp"

using exercise_00d::gradient_of_mean;
using exercise_00d::MicroBatch;
using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

at::Tensor accumulated_gradient(Communicator& communicator, const at::Tensor& weight,
                                const std::vector<MicroBatch>& batches) {
  if (batches.empty()) return at::zeros_like(weight);  // wrong: the others wait for this rank
  at::Tensor sum = at::zeros_like(weight);
  at::Tensor samples = at::zeros({1});
  for (const MicroBatch& batch : batches) {
    sum += gradient_of_mean(weight, batch) * batch.samples();
    samples += batch.samples();
  }
  communicator.all_reduce(sum, Purpose::kGradient, ReduceOp::kSum).wait();
  communicator.all_reduce(samples, Purpose::kControl, ReduceOp::kSum).wait();
  return sum / samples;
}
