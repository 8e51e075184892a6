#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/nn/gradient_destination.hpp>
#include <zero/train/flat/flat_parameter_list.hpp>

namespace zero::train {

FlatParameterList::FlatParameterList(const nn::ParameterList& list, std::int64_t buffer_bytes,
                                     const OptionsOfUnit& options, dist::Communicator& communicator,
                                     memory::StoragePool& pool)
    : list_(list),
      communicator_(communicator),
      pool_(pool),
      places_(list.size()),
      of_unit_(list.units.size()) {
  for (std::size_t u = 0; u < list.units.size(); ++u) add_unit(u, buffer_bytes, options(u));
}

FlatParameterList::~FlatParameterList() {
  // A handle may not be dropped while its transfer is in flight, so each is waited for, whatever
  // the one before it said. The caller has heard of a peer that is gone from the operation that
  // failed first.
  base::KeptError problem;
  for (FlatParameters& buffer : buffers_) {
    problem.keep([&] { buffer.wait_gather(); });
    problem.keep([&] { buffer.finish_reduce(); });
  }
  for (InFile& unit : files_) {
    if (unit.telling) problem.keep([&] { unit.telling->wait(); });
  }
  try {
    if (std::uncaught_exceptions() == 0) problem.rethrow();
  } catch (const std::exception& error) {
    const int rank = communicator_.world_rank(communicator_.rank());
    log_error(fmt::format("rank {}: {}", rank, message_of(error)));
  }
}

void FlatParameterList::add_unit(std::size_t unit, std::int64_t buffer_bytes,
                                 const FlatOptions& options) {
  struct Open {
    std::vector<std::size_t> members;
    std::int64_t bytes = 0;
  };
  // A buffer has one dtype, and frozen parameters need no gradient buffer.
  std::map<std::pair<bool, at::ScalarType>, Open> open;
  const auto close = [&](Open& buffer) {
    for (std::size_t m = 0; m < buffer.members.size(); ++m) {
      places_[buffer.members[m]] = {buffers_.size(), m};
    }
    of_unit_[unit].push_back(buffers_.size());
    unit_of_.push_back(unit);
    buffers_.emplace_back(list_, std::move(buffer.members), options, communicator_, pool_);
    buffer = {};
  };
  for (const std::size_t i : list_.units[unit].parameters) {
    const nn::Parameter& p = list_.parameters[i];
    Open& buffer = open[{p.tensor.requires_grad(), p.tensor.scalar_type()}];
    if (!buffer.members.empty() && buffer.bytes + p.bytes() > buffer_bytes) close(buffer);
    buffer.members.push_back(i);
    buffer.bytes += p.bytes();
  }
  for (auto& [kind, buffer] : open) {
    if (!buffer.members.empty()) close(buffer);
  }
}

void FlatParameterList::initialize(const FlatParameters::FirstValue& first_value,
                                   dist::Communicator* replicas) {
  base::KeptError problem;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    FlatParameters& buffer = buffers_[b];
    buffer.initialize(first_value, replicas);
    for (std::size_t m = 0; m < buffer.members().size(); ++m) {
      nn::set_gradient_provider(list_.parameters[buffer.members()[m]].tensor,
                                [&buffer, m] { return buffer.gradient_view(m); });
    }
    if (!is_offloaded() || b != of_unit_[unit_of_[b]].back()) continue;
    if (!problem.is_there()) problem.keep([&] { keep_in_file(unit_of_[b]); });
  }
  if (!is_offloaded()) return;
  pool_.clear();
  dist::run_on_all_ranks(*readers_, "parameters cannot be offloaded", [&] { problem.rethrow(); });
}

std::vector<BackwardSchedule::Item> FlatParameterList::items() const {
  std::vector<BackwardSchedule::Item> items;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    // An item without parameters is never reduced.
    items.push_back({unit_of_[b],
                     buffers_[b].trainable() ? buffers_[b].members() : std::vector<std::size_t>{}});
  }
  return items;
}

ParameterShard FlatParameterList::piece(std::size_t index) const {
  return buffers_[places_[index].buffer].piece(places_[index].member);
}

ParameterShard FlatParameterList::local_shard(std::size_t index) const {
  return buffers_[places_[index].buffer].local_shard(places_[index].member);
}

void FlatParameterList::collect(std::size_t index) {
  FlatParameters& buffer = buffers_[places_[index].buffer];
  if (!buffer.trainable()) {
    throw Error(fmt::format(
        "parameter '{}' was frozen when it was sharded and has a gradient now; make the strategy "
        "after the last parameter is unfrozen",
        list_.parameters[index].name));
  }
  buffer.collect(places_[index].member);
}

void FlatParameterList::start_gather(std::size_t unit) {
  RECORD_USER_SCOPE("flat_param_gather");
  begin_read(unit);
  for (const std::size_t b : of_unit_[unit]) buffers_[b].start_gather();
}

void FlatParameterList::finish_gather(std::size_t unit) {
  RECORD_USER_SCOPE("flat_param_wait");
  for (const std::size_t b : of_unit_[unit]) buffers_[b].finish_gather();
  end_read(unit);
}

void FlatParameterList::gather_exactly(std::size_t unit) {
  begin_read(unit);
  for (const std::size_t b : of_unit_[unit]) buffers_[b].gather_exactly();
  end_read(unit);
}

void FlatParameterList::keep_writes(std::size_t unit) {
  for (const std::size_t b : of_unit_[unit]) buffers_[b].keep_writes();
}

void FlatParameterList::reshard(std::size_t unit) {
  end_read(unit);
  for (const std::size_t b : of_unit_[unit]) buffers_[b].reshard();
  InFile* const here = in_file(unit);
  if (here == nullptr) return;
  here->problem.keep([&] { here->problem.is_there() ? here->file->drop() : here->file->leave(); });
}

void FlatParameterList::start_refresh() {
  RECORD_USER_SCOPE("flat_param_gather");
  for (FlatParameters& buffer : buffers_) buffer.start_refresh();
}

void FlatParameterList::wait_gathers() {
  RECORD_USER_SCOPE("flat_param_wait");
  for (FlatParameters& buffer : buffers_) buffer.wait_gather();
  for (std::size_t unit = 0; unit < files_.size(); ++unit) end_read(unit);
}

ParameterWrites FlatParameterList::writes() {
  ParameterWrites all;
  for (FlatParameters& buffer : buffers_) all.add(buffer.writes());
  return all;
}

void FlatParameterList::forget_writes() {
  for (FlatParameters& buffer : buffers_) buffer.forget_writes();
}

void FlatParameterList::drop_gradients() {
  for (FlatParameters& buffer : buffers_) buffer.drop_gradients();
}

// ---- shards in files

void FlatParameterList::offload(const optim::OffloadOptions& options, dist::Communicator& ranks) {
  offload_ = options;
  readers_ = &ranks;
  files_.resize(of_unit_.size());
}

optim::OffloadTraffic FlatParameterList::traffic() const {
  optim::OffloadTraffic sum;
  for (const InFile& unit : files_) {
    if (!unit.file) continue;
    sum.read_bytes += unit.file->traffic().read_bytes;
    sum.written_bytes += unit.file->traffic().written_bytes;
  }
  return sum;
}

bool FlatParameterList::is_sharded(std::size_t unit) const {
  return buffers_[of_unit_[unit].front()].is_sharded();  // as all others of the unit
}

// Null if its shards are in memory.
FlatParameterList::InFile* FlatParameterList::in_file(std::size_t unit) {
  return is_offloaded() && files_[unit].file ? &files_[unit] : nullptr;
}

void FlatParameterList::keep_in_file(std::size_t unit) {
  std::int64_t bytes = 0;
  for (const std::size_t b : of_unit_[unit]) {
    if (buffers_[b].shards_parameters()) bytes += buffers_[b].shard_bytes();
  }
  if (bytes == 0) return;
  auto file = std::make_unique<ShardFile>(offload_, bytes, pool_);
  std::int64_t offset = 0;
  for (const std::size_t b : of_unit_[unit]) {
    const std::int64_t of_buffer = buffers_[b].shard_bytes();
    buffers_[b].move_shard(
        file->bytes().narrow(0, offset, of_buffer).view(buffers_[b].shard().scalar_type()));
    offset += of_buffer;
  }
  file->leave();
  files_[unit].file = std::move(file);
  offload_.says_how = false;  // it is the same for all
}

void FlatParameterList::read_ahead(std::size_t unit) {
  InFile* const here = in_file(unit);
  if (here != nullptr) here->problem.keep([&] { here->file->read_ahead(); });
}

// Does not throw if the disk fails, because other ranks gather: end_read() does, on all.
void FlatParameterList::begin_read(std::size_t unit) {
  InFile* const here = in_file(unit);
  if (here == nullptr || !is_sharded(unit)) return;
  if (brought_ == unit) brought_.reset();
  here->problem.keep([&] { leave_brought(); });
  here->problem.keep([&] { here->file->bring(); });
  here->mine = at::full({1}, here->problem.is_there() ? 1 : 0, at::kInt);
  here->all = at::zeros({readers_->size()}, at::kInt);
  here->telling = readers_->all_gather(here->all, here->mine, dist::Purpose::kControl);
}

void FlatParameterList::end_read(std::size_t unit) {
  InFile* const here = in_file(unit);
  if (here == nullptr || !here->telling) return;
  std::exchange(here->telling, std::nullopt)->wait();
  if (!here->all.any().item<bool>()) return;
  for (const std::size_t b : of_unit_[unit]) buffers_[b].reshard();
  here->file->drop();
  const std::string& name = list_.units[unit].name;
  dist::run_on_all_ranks(*readers_,
                         fmt::format("the parameters of {} are not there",
                                     name.empty() ? "the root" : fmt::format("unit '{}'", name)),
                         [here] { here->problem.rethrow(); });
}

void FlatParameterList::leave_brought() {
  const std::optional<std::size_t> unit = std::exchange(brought_, std::nullopt);
  if (unit && is_sharded(*unit)) in_file(*unit)->file->leave();
}

void FlatParameterList::bring_shard(std::size_t index, bool overwrites) {
  const std::size_t unit = unit_of_[places_[index].buffer];
  InFile* const here = in_file(unit);
  if (here == nullptr) return;
  if (brought_ != unit) leave_brought();
  brought_ = unit;
  try {
    here->file->bring();
  } catch (...) {
    if (!overwrites) {
      here->file->drop();
      throw;
    }
  }
  if (overwrites) here->problem.forget();
}

void FlatParameterList::update(const std::function<void()>& step) {
  if (!is_offloaded()) return step();
  leave_brought();
  struct Hidden {
    at::Tensor piece, gradient;
  };
  std::map<std::size_t, std::vector<Hidden>> parts;  // by unit + 1; 0: all that are in memory
  const auto show = [](const auto& part) {
    for (const Hidden& h : part.second) h.piece.mutable_grad() = h.gradient;
  };
  const auto hide = [](const auto& part) {
    for (const Hidden& h : part.second) h.piece.mutable_grad().reset();
  };
  const auto file_of = [&](const auto& part) {
    return part->first == 0 ? nullptr : files_[part->first - 1].file.get();
  };
  const auto end = c10::make_scope_exit([&] { std::ranges::for_each(parts, show); });
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const at::Tensor mine = piece(i).tensor;
    if (!mine.defined() || !mine.grad().defined()) continue;
    const std::size_t unit = unit_of_[places_[i].buffer];
    parts[in_file(unit) == nullptr ? 0 : unit + 1].push_back({mine, mine.grad()});
  }
  std::ranges::for_each(parts, hide);
  ShardFile* writing = nullptr;
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    ShardFile* const file = file_of(part);
    if (file != nullptr) file->read_ahead();
    if (const auto next = std::next(part); next != parts.end()) file_of(next)->read_ahead();
    if (file != nullptr) file->bring();
    show(*part);
    step();
    hide(*part);
    if (writing != nullptr) writing->finish();
    writing = file != nullptr && is_sharded(part->first - 1) ? file : nullptr;
    if (writing != nullptr) writing->write_behind();  // else reshard() writes it
  }
  if (writing != nullptr) writing->finish();
}

std::int64_t FlatParameterList::parameter_bytes() const {
  std::int64_t sum = 0;
  for (const FlatParameters& buffer : buffers_) sum += buffer.parameter_bytes();
  return sum;
}

std::int64_t FlatParameterList::gradient_bytes() const {
  std::int64_t sum = 0;
  for (const FlatParameters& buffer : buffers_) {
    if (!buffer.trainable()) continue;
    // A rank keeps no shard of gradients that is nothing but padding.
    if (buffer.keeps_whole_gradient())
      sum += buffer.full_bytes();
    else if (buffer.updates_any())
      sum += buffer.shard_bytes();
  }
  return sum;
}

bool FlatParameterList::shards(std::size_t unit) const {
  return std::ranges::any_of(of_unit_[unit],
                             [this](std::size_t b) { return buffers_[b].shards_parameters(); });
}

std::int64_t FlatParameterList::largest_sharded_unit() const {
  std::int64_t largest = 0;
  for (std::size_t u = 1; u < of_unit_.size(); ++u) {
    std::int64_t bytes = 0;
    for (const std::size_t b : of_unit_[u]) {
      if (buffers_[b].shards_parameters()) bytes += buffers_[b].full_bytes();
    }
    largest = std::max(largest, bytes);
  }
  return largest;
}

SentBytes FlatParameterList::sent(const Gathers& gathers) const {
  SentBytes sum;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const bool splits = buffers_[b].shards_parameters();
    sum += buffers_[b].sent(splits ? gathers(unit_of_[b]) : 0);
  }
  return sum;
}

std::int64_t FlatParameterList::gathered_bytes(const Gathers& gathers) const {
  // The first gather of new weights may send more than the others.
  const auto twice = [&](std::size_t unit) { return 2 * gathers(unit); };
  return sent(twice).all - sent(gathers).all;
}

}  // namespace zero::train
