#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/train/averaged_gradients.hpp>
#include <zero/train/strategy.hpp>

namespace zero::train {

using dist::Purpose;

AveragedGradients::AveragedGradients(Strategy& strategy, bool adds_averages)
    : strategy_(strategy), adds_averages_(adds_averages), used_(strategy.list().size(), false) {
  forget();
}

void AveragedGradients::complete(bool is_last_micro_batch) {
  drop_unused();
  if (adds_averages_) add_up(is_last_micro_batch);
}

void AveragedGradients::drop_unused() {
  // A flag for each parameter that this rank has used, and a last one if this rank has added up
  // something that is not finite.
  const std::size_t count = used_.size();
  at::Tensor all = at::zeros({static_cast<std::int64_t>(count) + 1}, at::kInt);
  auto* flags = all.mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < count; ++i) flags[i] = used_[i] ? 1 : 0;
  flags[count] = take_suspicion() ? 1 : 0;
  strategy_.communicator().all_reduce(all, Purpose::kControl, dist::ReduceOp::kSum).wait();
  suspect_ = suspect_ || flags[count] != 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (flags[i] == 0) {
      strategy_.list().parameters[i].tensor.mutable_grad().reset();
      gradient_of(i).reset();
    }
    used_[i] = false;
  }
}

void AveragedGradients::add_up(bool is_last_micro_batch) {
  for (std::size_t i = 0; i < accumulated_.size(); ++i) {
    at::Tensor& gradient = gradient_of(i);
    at::Tensor& sum = accumulated_[i];
    if (gradient.defined() && strategy_.piece(i).tensor.defined()) {
      if (sum.defined()) {
        sum.add_(gradient);
      } else {
        sum = gradient;
      }
    }
    gradient = is_last_micro_batch ? std::exchange(sum, at::Tensor()) : at::Tensor();
  }
}

void AveragedGradients::set_loss_scale(double scale) {
  strategy_.optimizer().set_gradient_scale(scale);
  loss_scale_ = scale;
}

void AveragedGradients::forget() {
  sources_.assign(static_cast<std::size_t>(strategy_.communicator().size()), false);
  suspect_ = false;
  accumulated_.assign(strategy_.list().size(), at::Tensor());
}

// That of this rank's shard, or of the parameter itself where this rank has no shard.
at::Tensor& AveragedGradients::gradient_of(std::size_t index) const {
  const at::Tensor mine = strategy_.piece(index).tensor;
  return (mine.defined() ? mine : strategy_.list().parameters[index].tensor).mutable_grad();
}

AveragedGradients::Own AveragedGradients::own() const {
  Own own;
  for (std::size_t i = 0; i < strategy_.list().size(); ++i) {
    const at::Tensor tensor = strategy_.piece(i).tensor;
    if (!tensor.defined() || !tensor.grad().defined()) continue;
    own.indices.push_back(i);
    own.gradients.push_back(tensor.grad());
  }
  return own;
}

std::vector<double> AveragedGradients::contributions(const Own& own, optim::Norm kind) {
  strategy_.communicator().synchronize();  // the host is about to read
  return optim::contributions(kind, own.gradients);
}

std::vector<double> AveragedGradients::sums_by_parameter(optim::Norm kind) {
  // Only its owner computes a parameter's sum, and adding the others' zeros is exact. So every
  // rank, under every strategy that owns whole parameters, adds the same numbers in the same order.
  // Where tensors are split, the partial sums are in double: their order changes the resulting
  // float only if the sum lies at the edge between two floats.
  const Own mine = own();
  const std::vector<double> of_mine = contributions(mine, kind);
  at::Tensor sums = at::zeros({static_cast<std::int64_t>(strategy_.list().size())}, at::kDouble);
  auto* const of_parameter = sums.mutable_data_ptr<double>();
  for (std::size_t k = 0; k < of_mine.size(); ++k) of_parameter[mine.indices[k]] = of_mine[k];
  // If every rank owns everything, each has all the numbers already.
  if (strategy_.sharded()) {
    strategy_.communicator().all_reduce(sums, Purpose::kControl, dist::ReduceOp::kSum).wait();
  }
  const std::vector<double> of_part(of_parameter, of_parameter + sums.numel());
  return others_ == nullptr ? of_part : others_->of_all_parameters(of_part);
}

double AveragedGradients::norm(optim::Norm kind) {
  switch (kind) {
    case optim::Norm::kL1:
      return optim::norm_from_absolute_sums(sums_by_parameter(kind));
    case optim::Norm::kL2:
      return optim::norm_from_squares(sums_by_parameter(kind));
    case optim::Norm::kInfinity:
      return largest_over_ranks();
  }
  throw Error("an invalid norm");
}

double AveragedGradients::largest_over_ranks() {
  const auto largest_of = [](const std::vector<double>& values) {
    return optim::largest_magnitude(at::tensor(values, at::kDouble));
  };
  double largest = largest_of(contributions(own(), optim::Norm::kInfinity));
  if (strategy_.sharded()) {
    largest = largest_of(dist::all_gather_scalars(strategy_.communicator(), {largest}));
  }
  if (others_ == nullptr) return largest;
  // Every parameter of the part stands for the largest of all of them.
  return largest_of(others_->of_all_parameters(std::vector(strategy_.list().size(), largest)));
}

float AveragedGradients::clip(double max_norm, optim::Norm kind) {
  const double exact = norm(kind);
  const float before = static_cast<float>(exact) / static_cast<float>(loss_scale_);
  if (!std::isfinite(before)) return before;
  // Each in the precision of its gradients, as LibTorch does.
  multiply(optim::clip_coefficient(before, max_norm),
           optim::clip_coefficient(exact / loss_scale_, max_norm));
  return before;
}

void AveragedGradients::multiply(double factor) {
  multiply(factor, factor);
  suspect_ = true;  // they may overflow now
}

void AveragedGradients::multiply(double factor, double factor_of_doubles) {
  std::vector<at::Tensor> doubles, others;
  for (const at::Tensor& gradient : own().gradients) {
    (gradient.scalar_type() == at::kDouble ? doubles : others).push_back(gradient);
  }
  if (factor != 1.0 && !others.empty()) at::_foreach_mul_(others, factor);
  if (factor_of_doubles != 1.0 && !doubles.empty()) at::_foreach_mul_(doubles, factor_of_doubles);
}

bool AveragedGradients::take_suspicion() {
  const std::vector<bool> from = strategy_.communicator().take_not_finite();
  for (std::size_t r = 0; r < from.size(); ++r) sources_[r] = sources_[r] || from[r];
  return std::find(from.begin(), from.end(), true) != from.end();
}

std::size_t AveragedGradients::first_nonfinite_here() {
  const Own mine = own();
  const std::vector<double> largest = contributions(mine, optim::Norm::kInfinity);
  const auto found =
      std::find_if(largest.begin(), largest.end(), [](double m) { return !std::isfinite(m); });
  return found == largest.end() ? strategy_.list().size()
                                : mine.indices[static_cast<std::size_t>(found - largest.begin())];
}

std::optional<NonfiniteGradient> AveragedGradients::first_nonfinite() {
  const std::optional<NonfiniteGradient> mine = first_nonfinite_of_part();
  return others_ == nullptr ? mine : others_->first_nonfinite(mine);
}

std::optional<NonfiniteGradient> AveragedGradients::first_nonfinite_of_part() {
  // Averages that were checked may overflow when they are added to each other.
  if (strategy_.communicator().checks_gradients() && !adds_averages_ && !suspect_) {
    return std::nullopt;
  }
  std::vector<double> mine = {static_cast<double>(first_nonfinite_here())};
  for (const bool from : sources_) mine.push_back(from ? 1 : 0);
  const std::vector<double> all = dist::all_gather_scalars(strategy_.communicator(), mine);
  const std::size_t none = strategy_.list().size();
  const std::size_t ranks = sources_.size();
  std::size_t first = none;
  std::vector<int> holders, sources;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto of_rank = static_cast<std::size_t>(all[r * (ranks + 1)]);
    first = std::min(first, of_rank);
    if (of_rank < none) holders.push_back(static_cast<int>(r));
    bool is_source = false;
    for (std::size_t by = 0; by < ranks; ++by) is_source |= all[by * (ranks + 1) + 1 + r] != 0;
    if (is_source) sources.push_back(static_cast<int>(r));
  }
  if (first == none) return std::nullopt;
  return NonfiniteGradient{strategy_.list().parameters[first].name,
                           sources.empty() ? holders : sources};
}

}  // namespace zero::train
