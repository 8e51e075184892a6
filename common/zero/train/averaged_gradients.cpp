#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/flatten_dense_tensors.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unflatten_dense_tensors.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <zero/distributed/agreement.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/norm.hpp>
#include <zero/optim/wide_sum.hpp>
#include <zero/train/averaged_gradients.hpp>

namespace zero::train {

using dist::Purpose;

namespace {

// The sum over all ranks of one group after the other.
optim::WideSum added_over(const std::vector<dist::Communicator*>& groups, optim::WideSum sum) {
  for (dist::Communicator* const group : groups) {
    const std::vector<double> all = dist::all_gather_scalars(*group, {sum.high(), sum.low()});
    sum = {};
    for (std::size_t k = 0; k < all.size(); k += 2) sum.add({all[k], all[k + 1]});
  }
  return sum;
}

}  // namespace

AveragedGradients::AveragedGradients(const nn::ParameterList& list, const StageOfModel& stage,
                                     const dist::Mesh& mesh, const Shards& shards,
                                     dist::ReduceType type, bool adds_averages)
    : list_(list),
      stage_(stage),
      mesh_(mesh),
      shards_(shards),
      type_(type),
      adds_averages_(adds_averages),
      used_(list.size(), false) {
  forget();
}

void AveragedGradients::complete(bool is_last_micro_batch) {
  norms_.clear();
  add_up_over_tensor_axis();
  drop_unused();
  if (adds_averages_) add_up(is_last_micro_batch);
}

// Of parameters that every tensor rank has whole, but saw with its own positions only. Each element
// by itself: the bits do not depend on how the strategy shards over the data axis.
void AveragedGradients::add_up_over_tensor_axis() {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;  // one message of each
  const Own mine = own();
  for (std::size_t k = 0; k < mine.indices.size(); ++k) {
    if (!list_.parameters[mine.indices[k]].placement.sums_gradient) continue;
    by_type[mine.gradients[k].scalar_type()].push_back(mine.gradients[k]);
  }
  for (const auto& [type, gradients] : by_type) {
    const memory::Charge charge(memory::Category::kCommunication);
    const at::Tensor all = at::flatten_dense_tensors(gradients);
    mesh_.tensor().all_reduce(all, Purpose::kGradient, {dist::ReduceOp::kSum, type_}).wait();
    at::_foreach_copy_(gradients, at::unflatten_dense_tensors(all, gradients));
  }
}

void AveragedGradients::drop_unused() {
  // A flag for each parameter that this rank has used, and a last one if this rank has added up
  // something that is not finite.
  const std::size_t count = used_.size();
  at::Tensor all = at::zeros({static_cast<std::int64_t>(count) + 1}, at::kInt);
  auto* flags = all.mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < count; ++i) flags[i] = used_[i] ? 1 : 0;
  flags[count] = take_suspicion() ? 1 : 0;
  mesh_.data().all_reduce(all, Purpose::kControl, dist::ReduceOp::kSum).wait();
  mesh_.tensor().all_reduce(all, Purpose::kControl, dist::ReduceOp::kSum).wait();
  suspect_ = suspect_ || flags[count] != 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (flags[i] == 0) {
      list_.parameters[i].tensor.mutable_grad().reset();
      gradient_of(i).reset();
    }
    used_[i] = false;
  }
}

void AveragedGradients::add_up(bool is_last_micro_batch) {
  for (std::size_t i = 0; i < accumulated_.size(); ++i) {
    at::Tensor& gradient = gradient_of(i);
    at::Tensor& sum = accumulated_[i];
    if (gradient.defined() && shards_.piece(i).tensor.defined()) {
      if (sum.defined()) {
        sum.add_(gradient);
      } else {
        sum = gradient;
      }
    }
    gradient = is_last_micro_batch ? std::exchange(sum, at::Tensor()) : at::Tensor();
  }
}

void AveragedGradients::forget() {
  sources_.assign(static_cast<std::size_t>(mesh_.data().size()), false);
  suspect_ = false;
  norms_.clear();
  used_.assign(used_.size(), false);  // noted by a backward() that threw
  accumulated_.assign(list_.size(), at::Tensor());
}

// That of this rank's shard, or of the parameter itself if this rank has no shard.
at::Tensor& AveragedGradients::gradient_of(std::size_t index) const {
  const at::Tensor mine = shards_.piece(index).tensor;
  return (mine.defined() ? mine : list_.parameters[index].tensor).mutable_grad();
}

AveragedGradients::Own AveragedGradients::own() const {
  Own own;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const at::Tensor tensor = shards_.piece(i).tensor;
    if (!tensor.defined() || !tensor.grad().defined()) continue;
    own.indices.push_back(i);
    own.gradients.push_back(tensor.grad());
  }
  return own;
}

std::vector<double> AveragedGradients::read(const std::vector<at::Tensor>& losses,
                                            bool with_norms) {
  mesh_.data().synchronize();  // the host is about to read
  std::vector<at::Tensor> gradients = own().gradients;
  const at::Device device = losses.front().device();
  const bool reads_norms = with_norms && !gradients.empty() &&
                           gradients.front().device() == device && !device.is_cpu() &&
                           !has_doubles();  // whose squares may overflow
  if (!reads_norms) gradients.clear();
  std::vector<double> all = optim::detail::norms_by_list(gradients, 2, at::stack(losses).flatten());
  const auto values = all.begin() + std::ssize(gradients);
  norms_.assign(all.begin(), values);
  return {values, all.end()};
}

std::vector<double> AveragedGradients::squares(const Own& mine) const {
  if (norms_.empty()) return optim::squared_norms(mine.gradients);
  std::vector<double> all;
  for (const double norm : norms_) all.push_back(norm * norm);
  return all;
}

std::vector<double> AveragedGradients::squares_by_parameter() {
  // Only its owner computes a parameter's sum, and adding the others' zeros is exact. So every
  // rank, under every strategy that owns whole parameters, adds the same numbers in the same order.
  // If tensors are split, the partial sums are in double: their order changes the resulting
  // float only if the sum lies at the edge between two floats.
  const Own mine = own();
  const std::vector<double> of_mine = squares(mine);
  at::Tensor squares = at::zeros({std::ssize(stage_.whole().parameters)}, at::kDouble);
  auto* const of_parameter = squares.mutable_data_ptr<double>();
  for (std::size_t k = 0; k < of_mine.size(); ++k) {
    const std::size_t i = mine.indices[k];
    if (counts_here(i)) of_parameter[stage_.place(i)] = of_mine[k];
  }
  for (dist::Communicator* const group : groups_of_parts()) {
    group->all_reduce(squares, Purpose::kControl, dist::ReduceOp::kSum).wait();
  }
  return {of_parameter, of_parameter + squares.numel()};
}

// A number of the whole model is the sum over one of these groups after the other.
// Groups that hold copies are not among them: a copy does not count again.
std::vector<dist::Communicator*> AveragedGradients::groups_of_parts() const {
  std::vector<dist::Communicator*> groups = {&mesh_.tensor(), &mesh_.pipeline()};
  if (shards_.sharded()) groups.insert(groups.begin(), &shards_.shard_group());
  return groups;
}

// Tensor ranks hold some parameters whole, with the same gradient: the first rank counts these.
bool AveragedGradients::counts_here(std::size_t index) const {
  return mesh_.tensor().rank() == 0 || list_.parameters[index].placement.is_cut();
}

double AveragedGradients::norm() {
  mesh_.data().synchronize();  // the host is about to read
  if (!has_doubles()) return optim::norm_from_squares(squares_by_parameter());
  // The norm is used as a double: a sum in double for each shard would show in its last bits how
  // tensors are split.
  const Own mine = own();
  const std::vector<optim::WideSum> of_mine = optim::wide_squared_norms(mine.gradients);
  optim::WideSum here;
  for (std::size_t k = 0; k < of_mine.size(); ++k) {
    if (counts_here(mine.indices[k])) here.add(of_mine[k]);
  }
  return std::sqrt(added_over(groups_of_parts(), here).rounded());
}

float AveragedGradients::clip(double max_norm) {
  const double exact = norm();
  const float before = static_cast<float>(exact) / static_cast<float>(loss_scale_);
  if (!std::isfinite(before)) return before;
  // In float or, as in LibTorch, in double if any of the gradients is.
  scale(has_doubles() ? optim::clip_coefficient(exact / loss_scale_, max_norm)
                      : optim::clip_coefficient(before, max_norm));
  return before;
}

// Of the whole model: the same on all ranks.
bool AveragedGradients::has_doubles() const {
  return std::ranges::any_of(stage_.whole().parameters, [](const nn::Parameter& p) {
    return p.tensor.scalar_type() == at::kDouble && p.tensor.requires_grad();
  });
}

void AveragedGradients::multiply(double factor) {
  scale(factor);
  suspect_ = true;  // they may overflow now
}

void AveragedGradients::scale(double factor) {
  norms_.clear();
  const std::vector<at::Tensor> gradients = own().gradients;
  if (factor != 1.0 && !gradients.empty()) shards_.scale(gradients, factor);
}

bool AveragedGradients::take_suspicion() {
  bool any = false;
  const std::vector<bool> from = mesh_.data().not_finite().take();
  for (std::size_t r = 0; r < from.size(); ++r) {
    sources_[r] = sources_[r] || from[r];
    any = any || from[r];
  }
  // The sum over the tensor axis may overflow too; then this rank holds what is not finite.
  const std::vector<bool> here = mesh_.tensor().not_finite().take();
  return any || std::find(here.begin(), here.end(), true) != here.end();
}

std::size_t AveragedGradients::first_nonfinite_here() {
  mesh_.data().synchronize();  // the host is about to read
  const Own mine = own();
  const std::vector<double> largest =
      norms_.empty() ? optim::largest_magnitudes(mine.gradients) : norms_;
  const auto found =
      std::find_if(largest.begin(), largest.end(), [](double m) { return !std::isfinite(m); });
  if (found == largest.end()) return stage_.whole().size();
  return stage_.place(mine.indices[static_cast<std::size_t>(found - largest.begin())]);
}

// Whether a gradient may be infinite or NaN; the same on all ranks.
bool AveragedGradients::must_look() {
  const bool checked = mesh_.data().checks_gradients() &&
                       (mesh_.tensor().size() == 1 || mesh_.tensor().checks_gradients());
  // Averages that were checked may overflow when they are added to each other.
  const bool mine = !checked || adds_averages_ || suspect_;
  const auto stages = dist::all_gather_scalars(mesh_.pipeline(), {mine ? 1.0 : 0.0});
  return std::ranges::any_of(stages, [](double must) { return must != 0; });
}

std::optional<NonfiniteGradient> AveragedGradients::first_nonfinite() {
  if (!must_look()) return std::nullopt;
  // Of each rank: its number, the place of its first gradient that is not finite in the whole
  // model, and for each rank of its data axis the number if that is the source of one, else -1.
  const auto number = [](const dist::Communicator& ranks, int rank) {
    return static_cast<double>(ranks.world_rank(rank));
  };
  std::vector<double> mine = {number(mesh_.world(), mesh_.world().rank()),
                              static_cast<double>(first_nonfinite_here())};
  for (std::size_t r = 0; r < sources_.size(); ++r) {
    mine.push_back(sources_[r] ? number(mesh_.data(), static_cast<int>(r)) : -1);
  }
  const std::vector<double> all = dist::all_gather_scalars(mesh_.world(), mine);
  const nn::ParameterList& whole = stage_.whole();
  std::size_t first = whole.size();
  std::set<int> holders, sources;
  for (std::size_t of_rank = 0; of_rank < all.size(); of_rank += mine.size()) {
    const auto place = static_cast<std::size_t>(all[of_rank + 1]);
    first = std::min(first, place);
    if (place < whole.size()) holders.insert(static_cast<int>(all[of_rank]));
    for (std::size_t r = 0; r < sources_.size(); ++r) {
      const auto source = static_cast<int>(all[of_rank + 2 + r]);
      if (source >= 0) sources.insert(source);
    }
  }
  if (first == whole.size()) return std::nullopt;
  const std::set<int>& ranks = sources.empty() ? holders : sources;
  return NonfiniteGradient{whole.parameters[first].name, {ranks.begin(), ranks.end()}};
}

}  // namespace zero::train
