#include "00d.hpp"

using exercise_00d::gradient_of_mean;
using exercise_00d::MicroBatch;
using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::dist::ReduceOp;

at::Tensor accumulated_gradient(Communicator& communicator, const at::Tensor& weight,
                                const std::vector<MicroBatch>& batches) {
  at::Tensor sum = at::zeros_like(weight);
  for (const MicroBatch& batch : batches) sum += gradient_of_mean(weight, batch);
  return sum;
}
