#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/flatten_dense_tensors.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unflatten_dense_tensors.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
#include <set>
#include <utility>

#include <zero/distributed/statement.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/norm.hpp>
#include <zero/train/averaged_gradients.hpp>

namespace zero::train {

using dist::Purpose;

AveragedGradients::AveragedGradients(const nn::ParameterList& list, const StageOfModel& stage,
                                     const dist::Mesh& mesh, const Placements& placements,
                                     const std::unique_ptr<optim::Optimizer>& optimizer,
                                     dist::ReduceType type, bool adds_averages)
    : list_(list),
      stage_(stage),
      mesh_(mesh),
      placements_(placements),
      optimizer_(optimizer),
      type_(type),
      adds_averages_(adds_averages),
      used_(list.size(), false) {
  forget();
}

void AveragedGradients::complete(bool is_last_micro_batch) {
  note_change();
  add_up_over_tensor_axis();
  if (adds_averages_) add_up(is_last_micro_batch);
  if (is_last_micro_batch && !leaves_to_report_) exchange(Ask::kNothing);
}

void AveragedGradients::note_change() {
  squares_.clear();
  finite_ = false;
  norm_.reset();
}

void AveragedGradients::exchange(Ask ask) {
  take(ask, dist::exchange(mesh_, {.numbers = report(ask)}));
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

std::vector<double> AveragedGradients::report(Ask ask) {
  suspect_ = take_suspicion() || suspect_;
  const bool looks = ask == Ask::kFinite && must_look();
  const bool well = !suspect_ && !(looks && first_nonfinite_here() < stage_.whole().size());
  const optim::WideSum sum = ask == Ask::kNorm ? sum_of_squares() : optim::WideSum();
  std::vector<double> mine = {well ? 0.0 : 1.0, sum.high(), sum.low()};
  const std::size_t flags = mine.size();
  mine.resize(flags + stage_.whole().size() / kBits + 1);
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const std::size_t place = stage_.place(i);
    if (used_[i]) mine[flags + place / kBits] += static_cast<double>(1U << (place % kBits));
  }
  return mine;
}

void AveragedGradients::take(Ask ask, const std::vector<std::vector<double>>& all,
                             std::size_t begin) {
  // Of the ranks that have copies of the same gradients the first ones count.
  const int parts = placements_.parts();
  bool well = true;
  optim::WideSum sum;
  std::vector<std::uint32_t> flags(stage_.whole().size() / kBits + 1);
  for (int rank = 0; rank < std::ssize(all); ++rank) {
    const double* const of_rank = &all[static_cast<std::size_t>(rank)][begin];
    well = well && of_rank[0] == 0;
    if (mesh_.place(rank, {"data"}) < parts) sum.add({of_rank[1], of_rank[2]});
    if (!mesh_.shares(rank, {"pipeline"})) continue;
    for (std::size_t k = 0; k < flags.size(); ++k) {
      flags[k] |= static_cast<std::uint32_t>(of_rank[3 + k]);
    }
  }
  suspect_ = !well;
  finite_ = well && ask == Ask::kFinite;
  if (ask == Ask::kNorm) norm_ = std::sqrt(sum.rounded());
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const std::size_t place = stage_.place(i);
    if ((flags[place / kBits] >> (place % kBits) & 1U) != 0) continue;
    list_.parameters[i].tensor.mutable_grad().reset();
    gradient_of(i).reset();
    squares_.clear();  // of other gradients than own() has now
    used_[i] = true;   // what a program sets in its place stays
  }
}

void AveragedGradients::add_up(bool is_last_micro_batch) {
  for (std::size_t i = 0; i < accumulated_.size(); ++i) {
    at::Tensor& gradient = gradient_of(i);
    at::Tensor& sum = accumulated_[i];
    if (gradient.defined() && updated(i).defined()) {
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
  changed_ = false;
  note_change();
  used_.assign(used_.size(), false);  // noted by a backward() that threw
  accumulated_.assign(list_.size(), at::Tensor());
}

// That of this rank's shard, or of the parameter itself if this rank has no shard.
at::Tensor& AveragedGradients::gradient_of(std::size_t index) const {
  return (updated(index).defined() ? updated(index) : list_.parameters[index].tensor)
      .mutable_grad();
}

AveragedGradients::Own AveragedGradients::own() const {
  Own own;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const at::Tensor& tensor = updated(i);
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
  squares_.assign(all.begin(), values);
  for (double& norm : squares_) norm *= norm;
  return {values, all.end()};
}

// Only its owner has a parameter's sum, and about 100 bits are added up: so the norm has the same
// bits under every strategy that owns whole parameters. If tensors are split, the sum of a part is
// in double: the resulting float differs only if the whole lies at the edge between two floats. A
// norm that is used as a double needs parts in 100 bits too.
optim::WideSum AveragedGradients::sum_of_squares() const {
  mesh_.data().synchronize();  // the host is about to read
  const Own mine = own();
  std::vector<optim::WideSum> squares;
  if (has_doubles()) {
    squares = optim::wide_squared_norms(mine.gradients);
  } else {
    for (const double square : squares_.empty() ? optim::squared_norms(mine.gradients) : squares_) {
      squares.emplace_back(square, 0);
    }
  }
  optim::WideSum sum;
  for (std::size_t k = 0; k < squares.size(); ++k) {
    // Tensor ranks hold some parameters whole, with the same gradient: the first rank counts these.
    const bool is_cut = list_.parameters[mine.indices[k]].placement.is_cut();
    if (is_cut || mesh_.tensor().rank() == 0) sum.add(squares[k]);
  }
  return sum;
}

float AveragedGradients::clip(double max_norm) {
  if (!norm_) exchange(Ask::kNorm);
  const double exact = *norm_;
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
  changed();
}

void AveragedGradients::changed() {
  note_change();
  changed_ = true;
}

void AveragedGradients::scale(double factor) {
  note_change();
  const std::vector<at::Tensor> gradients = own().gradients;
  if (factor != 1.0 && !gradients.empty()) optimizer_->scale_gradients(gradients, factor);
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
      squares_.empty() ? optim::largest_magnitudes(mine.gradients) : squares_;
  const auto found =
      std::find_if(largest.begin(), largest.end(), [](double m) { return !std::isfinite(m); });
  if (found == largest.end()) return stage_.whole().size();
  return stage_.place(mine.indices[static_cast<std::size_t>(found - largest.begin())]);
}

// Whether no reduction can have seen that a gradient is infinite or NaN.
bool AveragedGradients::must_look() const {
  const bool checked = mesh_.data().checks_gradients() &&
                       (mesh_.tensor().size() == 1 || mesh_.tensor().checks_gradients());
  // Averages that were checked may overflow when they are added to each other.
  return !checked || adds_averages_ || changed_;
}

std::optional<NonfiniteGradient> AveragedGradients::first_nonfinite() {
  if (finite_) return std::nullopt;
  // Of each rank: the place of its first gradient that is not finite in the whole model, and for
  // each rank of its data axis its number in the world if that is the source of one, else -1.
  std::vector<double> mine = {static_cast<double>(first_nonfinite_here())};
  for (std::size_t r = 0; r < sources_.size(); ++r) {
    mine.push_back(sources_[r] ? mesh_.data().world_rank(static_cast<int>(r)) : -1);
  }
  const std::vector<std::vector<double>> all = dist::exchange(mesh_, {.numbers = mine});
  const nn::ParameterList& whole = stage_.whole();
  std::size_t first = whole.size();
  std::set<int> holders, sources;
  for (int rank = 0; rank < std::ssize(all); ++rank) {
    const std::vector<double>& theirs = all[static_cast<std::size_t>(rank)];
    const auto place = static_cast<std::size_t>(theirs.front());
    first = std::min(first, place);
    if (place < whole.size()) holders.insert(mesh_.world().world_rank(rank));
    for (const double source : theirs | std::views::drop(1)) {
      if (source >= 0) sources.insert(static_cast<int>(source));
    }
  }
  if (first == whole.size()) return std::nullopt;
  const std::set<int>& ranks = sources.empty() ? holders : sources;
  return NonfiniteGradient{whole.parameters[first].name, {ranks.begin(), ranks.end()}};
}

}  // namespace zero::train
