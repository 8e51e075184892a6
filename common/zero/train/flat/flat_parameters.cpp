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
      trainable_(member(0).requires_grad()),
      read_too_early_(unsharded_read(list, members_)) {
  if (shards_parameters() && options_.transfers.parameters) {
    transfer_ = options_.transfers.parameters(buffer());
  }
  if (!transfer_) transfer_ = all_gather();
}

FlatBuffer FlatParameters::buffer() const {
  return {layout_, member(0).options(), *pool_, options_.version};
}

// Members that lie in the shard use its bytes, so that nothing is copied of them.
std::unique_ptr<AllGather> FlatParameters::all_gather() const {
  return std::make_unique<AllGather>(*communicator_, shard_bytes(),
                                     options_.transfers.ranks_outside, /*fills_own_part=*/false);
}

std::vector<at::Tensor> FlatParameters::updated() const {
  std::vector<at::Tensor> parts;
  for (const ParameterShard& part : updated_) {
    if (part.tensor.defined()) parts.push_back(part.tensor);
  }
  return parts;
}

std::int64_t FlatParameters::bytes() const {
  std::int64_t sum = 0;
  for (const std::size_t i : members_) sum += list_.parameters[i].bytes();
  return sum;
}

std::int64_t FlatParameters::shard_bytes() const {
  return layout_.shard() * static_cast<std::int64_t>(member(0).element_size());
}

std::int64_t FlatParameters::parameter_bytes() const {
  const std::int64_t shard = rests_elsewhere_ ? 0 : shard_bytes();
  return (shards_parameters() ? shard : full_bytes()) + transfer_->held_bytes();
}

SentBytes FlatParameters::sent(std::int64_t gathers) const {
  const bool refreshes = trainable_ && options_.sharded != Sharded::kNothing;
  return transfer_->sent(shards_parameters() ? gathers : refreshes ? 1 : 0);
}

at::Tensor FlatParameters::view_of(const at::Tensor& buffer, std::size_t m) const {
  return buffer.narrow(0, layout_.offset(m), layout_.size(m)).view(member(m).sizes());
}

at::Tensor FlatParameters::shard_of(const at::Tensor& buffer) const {
  return buffer.narrow(0, communicator_->rank() * layout_.shard(), layout_.shard());
}

at::Tensor FlatParameters::part_of(const at::Tensor& shard, std::size_t m) const {
  return shard.narrow(0, range(m).in_shard, range(m).size);
}

// Whether the whole member uses the bytes of this rank's shard, in which all of it lies.
bool FlatParameters::uses_shard(std::size_t m) const {
  return !rounds() && !rests_elsewhere_ && range(m).size == layout_.size(m);
}

// ---- parameters

void FlatParameters::initialize(const FirstValue& first_value) {
  dist::Communicator* const replicas = options_.transfers.replicas;
  const bool is_first = communicator_->rank() == 0;
  const bool is_root = is_first && (replicas == nullptr || replicas->rank() == 0);
  // Parameters that were built with storage keep their values.
  std::vector<at::Tensor> own(members_.size());
  for (std::size_t m = 0; is_root && m < members_.size(); ++m) {
    if (memory::has_storage(member(m))) own[m] = memory::raw(member(m)).clone();
  }
  {
    const Charge charge(Category::kParameters);
    full_ = at::zeros({layout_.total()}, member(0).options().requires_grad(false));
  }
  shard_ = shard_of(full_);
  parameters_ = Parameters::kWhole;
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const at::Storage before = member(m).storage();
    memory::place(member(m), full_, layout_.offset(m));
    memory::abandon(before, fmt::format("this tensor shares the memory that parameter '{}' had "
                                        "before a strategy took the model: clone() it before "
                                        "that, or read the parameter itself",
                                        list_.parameters[members_[m]].name));
    if (!is_root) continue;
    at::Tensor out = memory::raw(member(m));
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
  rests_elsewhere_ = transfer_->takes(shard_);
  memory::release_storage(full_, read_too_early_);
  parameters_ = Parameters::kSharded;
  in_shard_.resize(members_.size());
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (!uses_shard(m)) continue;
    memory::separate_storage(member(m));
    in_shard_[m] = memory::raw(member(m));
  }
  hide_in_shard();
}

void FlatParameters::choose_updated() {
  updated_.assign(members_.size(), {});
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (options_.sharded == Sharded::kNothing) {
      updated_[m] = {member(m), 0};
      continue;
    }
    // A frozen parameter is sharded like the others, but not updated.
    const at::Tensor mine = part_of(shard_, m);
    if (trainable_ && mine.numel() > 0) updated_[m] = {mine, range(m).begin};
  }
}

void FlatParameters::start_gather() {
  if (parameters_ != Parameters::kSharded) return;
  if (layout_.world_size() == 1 && !rests_elsewhere_) {
    parameters_ = Parameters::kWhole;  // the shard is everything
    show_in_shard();
    return;
  }
  pool_->allocate(full_, Category::kParameters);
  start(*transfer_);
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
    torch::autograd::impl::bump_version(member(m));
  }
  note_versions();
  if (updates_shard && !shards_parameters()) start(*transfer_);
}

void FlatParameters::start(ParameterTransfer& transfer) {
  parameters_ = Parameters::kGathering;
  rounded_ = transfer.rounds();
  const bool copies = shards_parameters() && !transfer.fills_own_part();
  for (std::size_t m = 0; copies && m < members_.size(); ++m) {
    // The part that this rank keeps of a parameter that lies in several shards.
    if (range(m).size > 0 && !uses_shard(m)) {
      dist::copy_around_cache(part_of_full(m), part_of(shard_, m));
    }
  }
  gathering_ = transfer.gather(full_, shard_);
}

void FlatParameters::finish_gather() {
  if (parameters_ != Parameters::kGathering) return;
  gathering_.wait_output();
  parameters_ = Parameters::kWhole;
  show_in_shard();
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
  hide_in_shard();
  parameters_ = Parameters::kSharded;
}

// The optimizer may update the shard at any time. The model shows its bytes only while those of the
// other ranks are there too, so that a read in the wrong place is an error on all ranks.
void FlatParameters::show_in_shard() {
  for (std::size_t m = 0; shards_parameters() && m < members_.size(); ++m) {
    if (!uses_shard(m)) continue;
    const bool has_view = updated(m).defined();  // which costs less than a new one
    memory::borrow_storage(in_shard_[m], has_view ? updated(m) : part_of(shard_, m));
  }
}

void FlatParameters::hide_in_shard() {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (!uses_shard(m)) continue;
    memory::release_storage(in_shard_[m], unsharded_read(list_, {members_[m]}));
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
    if (member(m)._version() == versions_[m]) continue;
    const std::string& name = list_.parameters[members_[m]].name;
    if (!in_scope || rounded_) {
      writes_.refuse(name, in_scope ? "where it had rounded values (quantize_parameters)"
                                    : "outside of a scope");
      continue;
    }
    writes_.add(name, member(m));
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
  if (rests_elsewhere_) return transfer_->written(full_);
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (range(m).size > 0 && !uses_shard(m)) part_of(shard_, m).copy_(part_of_full(m));
  }
  if (transfer_->held_bytes() == 0) return;
  shard_of(full_).copy_(shard_);  // of members that use the shard, the buffer has old values
  transfer_->written(full_);
}

Placement FlatParameters::placement(std::size_t m) const {
  return {.updated = updated_[m],
          .kept = shards_parameters() ? part(m) : ParameterShard{memory::raw(member(m))},
          .saved = updated_[m].tensor.defined() ? updated_[m] : part(m)};
}

// Undefined if this rank's shard has nothing of the member.
ParameterShard FlatParameters::part(std::size_t m) const {
  const at::Tensor mine = part_of(shard_, m);
  return mine.numel() == 0 ? ParameterShard{} : ParameterShard{mine, range(m).begin};
}

}  // namespace zero::train
