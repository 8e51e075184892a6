#include "overlap.hpp"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <zero/error.hpp>

namespace zero {

at::Tensor Overlap::forward(const data::Batch& batch) {
  // Evaluation is no part of a step and does not count for predicted_traffic().
  if (c10::GradMode::is_enabled()) uses_.assign(uses_.size(), 0);
  forward_.begin();
  at::Tensor loss = Strategy::forward(batch);
  end_of_pass(forward_, "forward");
  return loss;
}

void Overlap::backward(const at::Tensor& loss) {
  // Also where backward throws: the next forward must not look like one that runs again.
  struct Within {
    explicit Within(bool& flag) : flag(flag) { flag = true; }
    ~Within() { flag = false; }
    bool& flag;
  } const within(in_backward_);
  backward_.begin();
  Strategy::backward(loss);
  end_of_pass(backward_, "backward");
}

void Overlap::end_of_pass(Prefetch& pass, const char* name) {
  if (options_.stage < 3) return;  // nothing to gather: ranks may run different units
  if (!pass.known() && c10::GradMode::is_enabled()) {
    pass.keep();
    // A rank that gathered in another order would wait for ever for what the others do not send.
    communicator_.agree(fmt::format("the order of units in {}", name),
                        fmt::format("{}", fmt::join(pass.order(), " ")));
  }
  if (!pass.lost()) return;
  if (lost_passes_++ == 0 && communicator_.rank() == 0) {
    fmt::print(stderr,
               "note: units ran in another order in {} than in the first step; such a pass gathers "
               "each when it is needed, without prefetch\n",
               name);
  }
}

std::size_t Overlap::index_of(const nn::Unit& unit) const {
  std::size_t u = 0;
  while (list().units[u].unit != &unit) ++u;
  return u;
}

void Overlap::use(std::size_t unit, Prefetch& pass) {
  start_gather(unit);
  // Asked for before this unit is waited for: they travel while it is waited for and while it runs.
  for (const std::size_t next : pass.use(unit)) start_gather(next);
  finish_gather(unit);
}

void Overlap::pre_forward(nn::Unit& unit) {
  const std::size_t u = index_of(unit);
  if (in_backward_) {  // a checkpoint that runs again: no part of the order of forward
    start_gather(u);
    finish_gather(u);
    return;
  }
  if (c10::GradMode::is_enabled()) ++uses_[u];
  use(u, forward_);
}

void Overlap::post_forward(nn::Unit& unit) {
  const std::size_t u = index_of(unit);
  // The root runs last in forward and first in backward: it stays, if there is a backward.
  if (u != 0 || !c10::GradMode::is_enabled()) reshard(u);
}

void Overlap::pre_backward(nn::Unit& unit) { use(index_of(unit), backward_); }

void Overlap::post_backward(nn::Unit& unit) {
  // Units end with their gradients, but for those that hold frozen parameters: these may be needed
  // for the gradient of the input after the last gradient of a parameter.
  const std::size_t u = index_of(unit);
  if (u != 0 && has_frozen(u) && has_all_gradients(u)) reshard(u);
}

bool Overlap::has_frozen(std::size_t unit) const {
  const auto& members = list().units[unit].parameters;
  return std::any_of(members.begin(), members.end(),
                     [this](std::size_t i) { return !trainable(i); });
}

bool Overlap::has_all_gradients(std::size_t unit) const {
  const auto& of_unit = by_unit_[unit];
  const auto trained = std::count_if(of_unit.begin(), of_unit.end(), [this](std::size_t b) {
    return trainable_members(buckets_[b]) > 0;
  });
  return ready_[unit] >= static_cast<std::size_t>(trained);
}

void Overlap::start_gather(std::size_t unit) {
  RECORD_USER_SCOPE("engine_param_gather");
  for (const std::size_t b : by_unit_[unit]) buckets_[b].start_gather();
}

void Overlap::finish_gather(std::size_t unit) {
  RECORD_USER_SCOPE("engine_param_wait");
  for (const std::size_t b : by_unit_[unit]) buckets_[b].finish_gather();
}

void Overlap::reshard(std::size_t unit) {
  for (const std::size_t b : by_unit_[unit]) buckets_[b].reshard();
}

void Overlap::summon(std::size_t unit) {
  finish_parameters();
  start_gather(unit);
  finish_gather(unit);
}

void Overlap::gradient_ready(std::size_t index) {
  const auto [b, member] = where_[index];
  Bucket& bucket = buckets_[b];
  if (!bucket.trainable()) {
    throw Error(
        fmt::format("parameter '{}' was frozen when it was sharded and has a gradient now; make "
                    "the strategy after the last parameter is unfrozen",
                    list().parameters[index].name));
  }
  bucket.collect(member);
  // A good moment to take what peers have sent meanwhile: no matrix product is under way.
  communicator_.advance();
  if (++arrived_[b] != trainable_members(bucket)) return;
  const std::size_t u = unit_of_[b];
  ++ready_[u];
  // A unit that is used twice has its last gradient after its last use: nothing is dropped early.
  if (has_all_gradients(u) && !has_frozen(u)) reshard(u);
  if (reduces_now()) {
    order_.ready(b, [this](std::size_t next) { launch(next); });
  }
}

void Overlap::launch(std::size_t bucket) {
  RECORD_USER_SCOPE("engine_grad_reduce");
  if (!note_members(bucket)) return;
  const bool whole = options_.stage <= 1 && !added_up_;
  in_flight_.start(buckets_[bucket], whole);
}

void Overlap::finish_backward() {
  arrived_.assign(arrived_.size(), 0);
  ready_.assign(ready_.size(), 0);
  for (std::size_t u = 0; u < list().units.size(); ++u) reshard(u);
  if (reduces_now()) {
    order_.finish([this](std::size_t b) { launch(b); });
    in_flight_.finish();
    complete_reduction();
  }
  // What was kept for the next unit has no next unit now.
  pool_.clear();
}

void Overlap::optimizer_step() {
  finish_parameters();
  Strategy::optimizer_step();
}

void Overlap::sync_parameters() {
  RECORD_USER_SCOPE("engine_param_gather");
  // In the order in which forward will ask for them, so that the first unit waits for little.
  for (Bucket& bucket : buckets_) bucket.start_refresh();
}

void Overlap::finish_parameters() {
  for (Bucket& bucket : buckets_) bucket.finish_gather();
}

void Overlap::zero_grad() {
  in_flight_.finish();
  for (Bucket& bucket : buckets_) bucket.drop_gradients();
  Strategy::zero_grad();
}

train::Piece Overlap::piece(std::size_t index) const {
  return buckets_[where_[index].bucket].piece(where_[index].member);
}

train::Piece Overlap::stored(std::size_t index) const {
  // Whoever asks may write into it, and what is on its way would overwrite that.
  for (Bucket& bucket : buckets_) bucket.finish_gather();
  return buckets_[where_[index].bucket].stored(where_[index].member);
}

std::size_t Overlap::trainable_members(const Bucket& bucket) const {
  const auto& members = bucket.members();
  return static_cast<std::size_t>(std::count_if(members.begin(), members.end(),
                                                [this](std::size_t i) { return trainable(i); }));
}

bool Overlap::note_members(std::size_t bucket) {
  if (trainable_members(buckets_[bucket]) == 0) return false;
  for (const std::size_t i : buckets_[bucket].members()) note_used(i, gradient(i).defined());
  return true;
}

std::vector<std::size_t> Overlap::backward_buckets() const {
  std::vector<std::size_t> order;
  for (std::size_t b = buckets_.size(); b-- > 0;) {
    if (buckets_[b].trainable()) order.push_back(b);
  }
  return order;
}

}  // namespace zero
