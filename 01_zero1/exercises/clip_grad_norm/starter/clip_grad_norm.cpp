#include <ATen/ops/zeros.h>

#include <01_zero1/exercises/clip_grad_norm/clip_grad_norm.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/optim/norm.hpp>

// What you have:
//   strategy.list().size()            parameters of the model, the same numbering on every rank
//   strategy.owns(i)                  whether this rank updates parameter i
//   strategy.piece(i).tensor.grad()   its averaged gradient, where this rank owns it; undefined
//                                     where no rank used the parameter, or it is frozen
//   strategy.communicator()           the other ranks: all_reduce(tensor, purpose, op).wait()
float clip_grad_norm(zero::train::Strategy& strategy, double max_norm) {
  static_cast<void>(strategy);
  static_cast<void>(max_norm);
  return 0.0F;
}
