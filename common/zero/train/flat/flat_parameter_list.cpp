#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/kept_error.hpp>
#include <zero/base/program.hpp>
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
  for (const FlatParameters& buffer : buffers_) gradients_.emplace_back(buffer, communicator, pool);
}

FlatParameterList::~FlatParameterList() {
  // A handle may not be dropped while its transfer is in flight, so each is waited for, whatever
  // the one before it said. The caller has heard of a peer that is gone from the operation that
  // failed first.
  base::KeptError problem;
  for (FlatParameters& buffer : buffers_) problem.keep([&] { buffer.wait_gather(); });
  for (FlatGradients& buffer : gradients_) {
    problem.keep([&] { buffer.finish_reduce(); });
    problem.keep([&] { buffer.finish_rest(); });
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

void FlatParameterList::initialize(const FlatParameters::FirstValue& first_value) {
  for (FlatParameters& buffer : buffers_) buffer.initialize(first_value);
  for (FlatGradients& gradients : gradients_) {
    for (std::size_t m = 0; m < gradients.parameters().size(); ++m) {
      nn::set_gradient_provider(gradients.parameters().member(m),
                                [&gradients, m] { return gradients.view(m); });
    }
  }
}

std::vector<UnitSchedule::Item> FlatParameterList::items() const {
  std::vector<UnitSchedule::Item> items;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    // An item without parameters is never reduced.
    items.push_back({unit_of_[b],
                     buffers_[b].trainable() ? buffers_[b].members() : std::vector<std::size_t>{}});
  }
  return items;
}

Placements FlatParameterList::placements() const {
  const bool updates_all = buffers_.front().options().sharded == Sharded::kNothing;
  Placements all{.of = {}, .group = updates_all ? nullptr : &communicator_};
  for (const Place& place : places_) {
    all.of.push_back(buffers_[place.buffer].placement(place.member));
  }
  return all;
}

void FlatParameterList::bring(std::size_t index) { buffers_[places_[index].buffer].bring(); }

void FlatParameterList::collect(std::size_t index) {
  const auto [buffer, member] = places_[index];
  if (!buffers_[buffer].trainable()) {
    throw Error(fmt::format(
        "parameter '{}' was frozen when it was sharded and has a gradient now; make the strategy "
        "after the last parameter is unfrozen",
        list_.parameters[index].name));
  }
  gradients_[buffer].collect(member);
}

void FlatParameterList::start_gather(std::size_t unit) {
  RECORD_USER_SCOPE("flat_param_gather");
  for (const std::size_t b : of_unit_[unit]) buffers_[b].start_gather();
}

void FlatParameterList::finish_gather(std::size_t unit) {
  RECORD_USER_SCOPE("flat_param_wait");
  for (const std::size_t b : of_unit_[unit]) buffers_[b].finish_gather();
}

void FlatParameterList::gather_exactly(std::size_t unit) {
  for (const std::size_t b : of_unit_[unit]) buffers_[b].gather_exactly();
}

void FlatParameterList::keep_writes(std::size_t unit) {
  for (const std::size_t b : of_unit_[unit]) buffers_[b].keep_writes();
}

void FlatParameterList::reshard(std::size_t unit) {
  for (const std::size_t b : of_unit_[unit]) buffers_[b].reshard();
}

void FlatParameterList::start_refresh() {
  RECORD_USER_SCOPE("flat_param_gather");
  for (FlatParameters& buffer : buffers_) buffer.start_refresh();
}

void FlatParameterList::wait_gathers() {
  RECORD_USER_SCOPE("flat_param_wait");
  for (FlatParameters& buffer : buffers_) buffer.wait_gather();
}

ParameterWrites FlatParameterList::collect_writes(const UnitSchedule& schedule) {
  ParameterWrites all;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    all.add(buffers_[b].collect_writes(schedule.is_held(unit_of_[b])));
  }
  return all;
}

void FlatParameterList::forget_writes() {
  for (FlatParameters& buffer : buffers_) buffer.forget_writes();
}

void FlatParameterList::finish_rests() {
  for (FlatGradients& buffer : gradients_) buffer.finish_rest();
}

void FlatParameterList::drop_gradients() {
  for (FlatGradients& buffer : gradients_) buffer.drop();
}

std::int64_t FlatParameterList::parameter_bytes() const {
  std::int64_t sum = 0;
  for (const FlatParameters& buffer : buffers_) sum += buffer.parameter_bytes();
  return sum;
}

std::int64_t FlatParameterList::gradient_bytes() const {
  std::int64_t sum = 0;
  for (const FlatGradients& buffer : gradients_) sum += buffer.bytes();
  return sum;
}

bool FlatParameterList::shards(std::size_t unit) const {
  return std::ranges::any_of(of_unit_[unit],
                             [this](std::size_t b) { return buffers_[b].shards_parameters(); });
}

SentBytes FlatParameterList::sent(const Gathers& gathers) const {
  SentBytes sum;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const bool splits = buffers_[b].shards_parameters();
    sum += buffers_[b].sent(splits ? gathers(unit_of_[b]) : 0);
    sum += gradients_[b].sent();
  }
  return sum;
}

std::int64_t FlatParameterList::gathered_bytes(const Gathers& gathers) const {
  // The first gather of new weights may send more than the others.
  const auto twice = [&](std::size_t unit) { return 2 * gathers(unit); };
  return sent(twice).all - sent(gathers).all;
}

}  // namespace zero::train
