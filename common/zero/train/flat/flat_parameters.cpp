#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include <zero/distributed/rank_order.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/flat/flat_parameters.hpp>
#include <zero/train/unsharded_read.hpp>

namespace zero::train {

using dist::Purpose;
using memory::Category;
using memory::Charge;

namespace {

ShardLayout layout_of(const nn::ParameterList& list, const std::vector<std::size_t>& members,
                      int world_size) {
  std::vector<std::int64_t> sizes;
  for (const std::size_t i : members) sizes.push_back(list.parameters[i].numel());
  return {std::move(sizes), world_size};
}

// If the caller has kept a gradient, its bytes must not be written again.
bool is_held_elsewhere(const at::Tensor& buffer) { return buffer.storage().use_count() > 1; }

}  // namespace

FlatParameters::FlatParameters(const nn::ParameterList& list, std::vector<std::size_t> members,
                               const FlatOptions& options, dist::Communicator& communicator,
                               memory::StoragePool& pool)
    : list_(list),
      members_(std::move(members)),
      options_(options),
      communicator_(&communicator),
      pool_(&pool),
      layout_(layout_of(list, members_, communicator.size())),
      trainable_(tensor(0).requires_grad()),
      read_too_early_(unsharded_read(list, members_)) {
  make_transfers();
}

void FlatParameters::make_transfers() {
  const Transfers& other = options_.transfers;
  const FlatBuffer buffer{layout_, tensor(0).options(), *pool_, options_.version};
  if (shards_parameters() && other.parameters) parameter_transfer_ = other.parameters(buffer);
  if (!parameter_transfer_) parameter_transfer_ = all_gather();
  const bool whole = options_.sharded == Sharded::kNothing || options_.all_reduces;
  if (trainable_ && !whole && other.gradients) gradient_transfer_ = other.gradients(buffer);
  if (gradient_transfer_) return;
  const dist::Reduction& average = options_.average;
  gradient_transfer_ = std::make_unique<Average>(
      *communicator_, whole ? Average::Of::kAll : Average::Of::kShard, average,
      layout_.shard() * communicator_->reduced_element_size(dtype(), average.type),
      other.ranks_outside);
}

// Members that lie in the shard use its bytes, so that nothing is copied of them.
std::unique_ptr<AllGather> FlatParameters::all_gather() const {
  return std::make_unique<AllGather>(*communicator_, shard_bytes(),
                                     options_.transfers.ranks_outside, /*fills_own_part=*/false);
}

bool FlatParameters::keeps_whole_gradient() const {
  return options_.sharded == Sharded::kNothing ||
         (options_.sharded == Sharded::kOptimizer && !options_.adds_averages);
}

std::vector<at::Tensor> FlatParameters::updated() const {
  std::vector<at::Tensor> parts;
  for (const ParameterShard& piece : updated_) {
    if (piece.tensor.defined()) parts.push_back(piece.tensor);
  }
  return parts;
}

std::int64_t FlatParameters::bytes() const {
  std::int64_t sum = 0;
  for (const std::size_t i : members_) sum += list_.parameters[i].bytes();
  return sum;
}

std::int64_t FlatParameters::shard_bytes() const {
  return layout_.shard() * static_cast<std::int64_t>(tensor(0).element_size());
}

std::int64_t FlatParameters::parameter_bytes() const {
  const std::int64_t shard = rests_elsewhere_ ? 0 : shard_bytes();
  return (shards_parameters() ? shard : full_bytes()) + parameter_transfer_->held_bytes();
}

SentBytes FlatParameters::sent(std::int64_t gathers) const {
  SentBytes sum;
  if (trainable_) sum += gradient_transfer_->sent();
  const bool refreshes = trainable_ && options_.sharded != Sharded::kNothing;
  sum += parameter_transfer_->sent(shards_parameters() ? gathers : refreshes ? 1 : 0);
  return sum;
}

at::Tensor FlatParameters::view_of(const at::Tensor& buffer, std::size_t m) const {
  return buffer.narrow(0, layout_.offset(m), layout_.size(m)).view(tensor(m).sizes());
}

at::Tensor FlatParameters::my_shard_of(const at::Tensor& buffer) const {
  return buffer.narrow(0, communicator_->rank() * layout_.shard(), layout_.shard());
}

// The elements of member `m` that lie in this rank's shard, in the whole buffer and in a shard.
at::Tensor FlatParameters::mine_of_full(std::size_t m) const {
  return full_.narrow(0, layout_.offset(m) + my_range(m).begin, my_range(m).size);
}

at::Tensor FlatParameters::mine_of_shard(const at::Tensor& shard, std::size_t m) const {
  return shard.narrow(0, my_range(m).in_shard, my_range(m).size);
}

// Whether the whole parameter uses the bytes of this rank's shard, in which all of it lies.
bool FlatParameters::uses_shard(std::size_t m) const {
  return !rounds() && !rests_elsewhere_ && my_range(m).size == layout_.size(m);
}

// ---- parameters

void FlatParameters::initialize(const FirstValue& first_value) {
  dist::Communicator* const replicas = options_.transfers.replicas;
  const bool is_first = communicator_->rank() == 0;
  const bool is_root = is_first && (replicas == nullptr || replicas->rank() == 0);
  // Parameters that were built with storage keep their values.
  std::vector<at::Tensor> own(members_.size());
  for (std::size_t m = 0; is_root && m < members_.size(); ++m) {
    if (memory::has_storage(tensor(m))) own[m] = memory::raw(tensor(m)).clone();
  }
  {
    const Charge charge(Category::kParameters);
    full_ = at::zeros({layout_.total()}, tensor(0).options().requires_grad(false));
  }
  shard_ = my_shard_of(full_);
  parameters_ = Parameters::kWhole;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const at::Storage before = tensor(m).storage();
    memory::place(tensor(m), full_, layout_.offset(m));
    memory::abandon(before, fmt::format("this tensor shares the memory that parameter '{}' had "
                                        "before a strategy took the model: clone() it before "
                                        "that, or read the parameter itself",
                                        list_.parameters[members_[m]].name));
    if (!is_root) continue;
    at::Tensor out = memory::raw(tensor(m));
    own[m].defined() ? static_cast<void>(out.copy_(own[m])) : first_value(members_[m], out);
  }
  // From group to group once, then inside each.
  if (is_first && replicas != nullptr) {
    replicas->broadcast(full_, /*root=*/0, Purpose::kSetup).wait();
  }
  communicator_->broadcast(full_, /*root=*/0, Purpose::kSetup).wait();
  if (shards_parameters()) keep_shard_only();
  choose_updated();
  note_versions();
}

void FlatParameters::keep_shard_only() {
  const Charge charge(Category::kParameters);
  shard_ = shard_.clone();
  rests_elsewhere_ = parameter_transfer_->takes(shard_);
  memory::release_storage(full_, read_too_early_);
  parameters_ = Parameters::kSharded;
  own_members_.resize(members_.size());
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (!uses_shard(m)) continue;
    memory::separate_storage(tensor(m));
    own_members_[m] = memory::raw(tensor(m));
  }
  hide_own_members();
}

void FlatParameters::choose_updated() {
  updated_.assign(members_.size(), {});
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (options_.sharded == Sharded::kNothing) {
      updated_[m] = {tensor(m), 0};
      continue;
    }
    // A frozen parameter is sharded like the others, but not updated.
    const at::Tensor mine = mine_of_shard(shard_, m);
    if (trainable_ && mine.numel() > 0) updated_[m] = {mine, my_range(m).begin};
  }
}

void FlatParameters::start_gather() {
  if (parameters_ != Parameters::kSharded) return;
  if (layout_.world_size() == 1 && !rests_elsewhere_) {
    parameters_ = Parameters::kWhole;  // the shard is everything
    show_own_members();
    return;
  }
  pool_->allocate(full_, Category::kParameters);
  start(*parameter_transfer_);
}

void FlatParameters::gather_exactly() {
  if (rounds() && layout_.world_size() > 1) {
    reshard();  // what is whole is rounded
    pool_->allocate(full_, Category::kParameters);
    start(*all_gather());
  }
  start_gather();
  finish_gather();
}

void FlatParameters::start_refresh() {
  wait_gather();  // of the last gather
  const bool updates_shard = trainable_ && options_.sharded != Sharded::kNothing;
  // A graph of another engine that has read the parameters knows them by their own version
  // counters, not by the shard's.
  for (std::size_t m = 0; updates_shard && m < members_.size(); ++m) {
    torch::autograd::impl::bump_version(tensor(m));
  }
  note_versions();
  if (updates_shard && !shards_parameters()) start(*parameter_transfer_);
}

void FlatParameters::start(ParameterTransfer& transfer) {
  parameters_ = Parameters::kGathering;
  rounded_ = transfer.rounds();
  const bool copies = shards_parameters() && !transfer.fills_own_part();
  for (std::size_t m = 0; copies && m < members_.size(); ++m) {
    // The part that this rank keeps of a parameter that lies in several shards.
    if (my_range(m).size > 0 && !uses_shard(m)) {
      dist::copy_around_cache(mine_of_full(m), mine_of_shard(shard_, m));
    }
  }
  gathering_ = transfer.gather(full_, shard_);
}

void FlatParameters::finish_gather() {
  if (parameters_ != Parameters::kGathering) return;
  gathering_.wait_output();
  parameters_ = Parameters::kWhole;
  show_own_members();
  if (!shards_parameters()) note_writes(/*in_scope=*/false);  // while other ranks' values arrived
}

void FlatParameters::wait_gather() {
  finish_gather();
  gathering_.wait();
}

void FlatParameters::reshard() {
  wait_gather();
  if (!shards_parameters() || parameters_ != Parameters::kWhole) return;
  note_writes(/*in_scope=*/false);
  // The storage object stays and the next gather gives it bytes again, so that what autograd saved
  // of it becomes valid again.
  pool_->release(full_, read_too_early_);
  hide_own_members();
  parameters_ = Parameters::kSharded;
}

// The optimizer may update the shard at any time. The model shows its bytes only while those of the
// other ranks are there too, so that a read in the wrong place is an error on all ranks.
void FlatParameters::show_own_members() {
  for (std::size_t m = 0; shards_parameters() && m < members_.size(); ++m) {
    if (!uses_shard(m)) continue;
    const at::Tensor& piece = updated_[m].tensor;  // costs less than a new view
    memory::borrow_storage(own_members_[m], piece.defined() ? piece : mine_of_shard(shard_, m));
  }
}

void FlatParameters::hide_own_members() {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (!uses_shard(m)) continue;
    memory::release_storage(own_members_[m], unsharded_read(list_, {members_[m]}));
  }
}

// ---- what the program writes into parameters

void FlatParameters::note_versions() {
  versions_.clear();
  for (const std::size_t i : members_) {
    versions_.push_back(list_.parameters[i].tensor._version());
  }
}

// Those of a scope count.
void FlatParameters::note_writes(bool in_scope) {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (tensor(m)._version() == versions_[m]) continue;
    const std::string& name = list_.parameters[members_[m]].name;
    if (!in_scope || rounded_) {
      writes_.refuse(name, in_scope ? "where it had rounded values (quantize_parameters)"
                                    : "outside of a scope");
      continue;
    }
    writes_.add(name, tensor(m));
    // The optimizer sees it there; at stage 0 it has the parameter itself.
    if (updated_[m].tensor.defined() && options_.sharded != Sharded::kNothing) {
      torch::autograd::impl::bump_version(updated_[m].tensor);
    }
  }
  note_versions();
}

const ParameterWrites& FlatParameters::collect_writes(bool in_scope) {
  const std::vector<std::int64_t> before = versions_;
  note_writes(in_scope);
  if (in_scope && !rounded_ && versions_ != before) keep_shard_of_buffer();
  return writes_;
}

void FlatParameters::forget_writes() {
  note_versions();  // a load may follow an update that failed halfway
  writes_.forget();
}

void FlatParameters::keep_writes() {
  if (!is_whole()) return;
  note_writes(/*in_scope=*/true);
  if (!rounded_) keep_shard_of_buffer();
}

void FlatParameters::keep_shard_of_buffer() {
  if (!shards_parameters()) return;  // the shard is a part of the buffer
  wait_gather();
  if (rests_elsewhere_) return parameter_transfer_->written(full_);
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (my_range(m).size > 0 && !uses_shard(m)) mine_of_shard(shard_, m).copy_(mine_of_full(m));
  }
  if (parameter_transfer_->held_bytes() == 0) return;
  my_shard_of(full_).copy_(shard_);  // of members that use the shard, the buffer has old values
  parameter_transfer_->written(full_);
}

Placement FlatParameters::placement(std::size_t m) const {
  return {.updated = updated_[m],
          .kept = shards_parameters() ? share(m) : ParameterShard{memory::raw(tensor(m))},
          .saved = updated_[m].tensor.defined() ? updated_[m] : share(m)};
}

// Undefined if this rank's shard has nothing of the member.
ParameterShard FlatParameters::share(std::size_t m) const {
  const at::Tensor mine = mine_of_shard(shard_, m);
  return mine.numel() == 0 ? ParameterShard{} : ParameterShard{mine, my_range(m).begin};
}

// ---- gradients

at::Tensor FlatParameters::gradient_view(std::size_t m) {
  if (!full_gradient_.defined()) {
    full_gradient_ =
        memory::without_storage({layout_.total()}, full_.scalar_type(), full_.device());
    pool_->allocate(full_gradient_, Category::kGradients);
    zero_padding();
  }
  return view_of(full_gradient_, m);
}

// Padding is sent with the rest; zeros, so that no sum is computed from old bytes.
void FlatParameters::zero_padding() {
  const auto zero = [this](std::int64_t begin, std::int64_t end) {
    if (begin < end) full_gradient_.narrow(0, begin, end - begin).zero_();
  };
  std::int64_t end = 0;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    zero(end, layout_.offset(m));
    end = layout_.offset(m) + layout_.size(m);
  }
  zero(end, layout_.total());
}

void FlatParameters::collect(std::size_t m) {
  at::Tensor& gradient = tensor(m).mutable_grad();
  if (!gradient.defined()) return;
  // The layers of zero/nn have written it there already; ordinary autograd has not.
  if (full_gradient_.defined() && gradient.is_alias_of(full_gradient_) &&
      gradient.storage_offset() == layout_.offset(m)) {
    return;
  }
  at::Tensor place = gradient_view(m);
  place.copy_(gradient);
  gradient = place;
}

void FlatParameters::start_reduce() {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    collect(m);
    if (!tensor(m).grad().defined()) gradient_view(m).zero_();
  }
  is_reducing_ = true;
  const bool in_place = keeps_whole_gradient() || options_.all_reduces;
  gradient_shard_ = in_place ? my_shard_of(full_gradient_) : gradient_shard_buffer();
  reducing_ = gradient_transfer_->reduce(full_gradient_, gradient_shard_);
}

at::Tensor FlatParameters::gradient_shard_buffer() {
  if (kept_shard_.defined() && !is_held_elsewhere(kept_shard_)) return kept_shard_;
  const Charge charge(Category::kGradients);
  at::Tensor buffer = at::empty({layout_.shard()}, full_.options());
  if (options_.keeps_gradients && updates_any()) kept_shard_ = buffer;
  return buffer;
}

void FlatParameters::finish_reduce() {
  if (!is_reducing_) return;
  reducing_.wait();
  is_reducing_ = false;
  at::Tensor shard = std::exchange(gradient_shard_, at::Tensor());
  if (options_.sharded == Sharded::kNothing) {
    for (std::size_t m = 0; m < members_.size(); ++m) {
      tensor(m).mutable_grad() = view_of(full_gradient_, m);
    }
    // The averages remain as views. The next micro-batch gets a buffer of its own.
    if (options_.adds_averages) full_gradient_.reset();
    return;
  }
  if (!keeps_whole_gradient()) {
    if (options_.all_reduces) {
      const Charge charge(Category::kGradients);
      shard = shard.clone();
    }
    drop_full_gradient();
  }
  for (std::size_t m = 0; m < members_.size(); ++m) {
    // The optimizer holds these tensors since shard_optimizer().
    if (updated_[m].tensor.defined()) {
      updated_[m].tensor.mutable_grad() = mine_of_shard(shard, m);
    }
  }
  if (gradient_transfer_->has_rest()) rest_ = gradient_transfer_->reduce_rest(shard);
}

void FlatParameters::drop_full_gradient() {
  for (std::size_t m = 0; m < members_.size(); ++m) tensor(m).mutable_grad().reset();
  if (full_gradient_.defined()) pool_->release(full_gradient_);
  full_gradient_.reset();
}

void FlatParameters::drop_gradients() {
  finish_reduce();
  finish_rest();
  for (std::size_t m = 0; m < members_.size(); ++m) {
    tensor(m).mutable_grad().reset();
    if (updated_[m].tensor.defined()) updated_[m].tensor.mutable_grad().reset();
  }
  const auto drop = [this](at::Tensor& buffer, bool is_average) {
    const bool keeps = is_average && options_.keeps_gradients;
    if (buffer.defined() && (!keeps || is_held_elsewhere(buffer))) buffer.reset();
  };
  drop(full_gradient_, keeps_whole_gradient() && !options_.adds_averages);
  drop(kept_shard_, true);
}

}  // namespace zero::train
