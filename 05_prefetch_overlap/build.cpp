// How the buckets come to be, and what they will cost.
#include <fmt/format.h>

#include <exception>
#include <map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/engine/engine_config.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/gradient_slot.hpp>
#include <zero/train/registry.hpp>

#include "overlap.hpp"

namespace zero {

using dist::Purpose;

namespace {

// The first ones touch their memory for the first time; the least of each time counts.
constexpr std::int64_t kTimedPasses = 3;

const OverlapOptions& checked(const OverlapOptions& options) {
  check_options(options);
  return options;
}

}  // namespace

Overlap::Overlap(const train::StrategyArguments& arguments, const OverlapOptions& options)
    : Strategy(arguments),
      options_(checked(options)),
      reduce_each_(arguments.accumulation == train::Accumulation::kReduceEach),
      pool_(options.keep_buffers),
      where_(count()),
      by_unit_(list().units.size()),
      ready_(list().units.size(), 0),
      order_({}),
      turns_(list()),
      in_flight_(options.in_flight_bytes),
      forward_(std::max<std::int64_t>(options.lookahead, 0)),
      backward_(std::max<std::int64_t>(options.lookahead, 0)),
      timed_passes_left_(options.stage == 3 && options.lookahead == kAutoLookahead ? kTimedPasses
                                                                                   : 0),
      uses_(list().units.size(), 1) {
  communicator_.agree("the engine's options",
                      fmt::format("stage {}\nbuckets of {} bytes, {} under way\nlookahead {}\n"
                                  "units below {} elements whole, {} bytes ahead at most",
                                  options.stage, options.bucket_bytes, options.in_flight_bytes,
                                  options.lookahead, options.whole_below, options.ahead_bytes));
  build_buckets();
  order_ = train::LaunchOrder(backward_buckets());
  arrived_.assign(buckets_.size(), 0);
  for (Bucket& bucket : buckets_) give_values(bucket);
  broadcast_buffers_from_rank_0();
  if (options_.stage > 0) narrow_optimizer();
  // Last: what throws above must leave nothing behind that calls into nothing.
  set_providers();
}

Overlap::~Overlap() {
  for (std::size_t i = 0; i < count(); ++i) nn::set_gradient_provider(parameter(i), {});
  // A handle may not be dropped while its transfer is under way, so each is waited for, whatever
  // the one before it said. Whoever called has heard of a peer that is gone from the operation that
  // failed first; here it is said once, and not at all while an error is on its way up.
  bool said = std::uncaught_exceptions() > 0;
  const auto wait = [&](const std::function<void()>& finish) {
    try {
      finish();
    } catch (const std::exception& error) {
      if (!said) complain(fmt::format("rank {}: {}", communicator_.rank(), error.what()));
      said = true;
    }
  };
  for (Bucket& bucket : buckets_) {
    wait([&bucket] { bucket.let_go(); });
    wait([&bucket] { bucket.finish_reduce(); });
  }
}

Keeps Overlap::keeps(std::size_t unit) const {
  if (options_.stage < 3) return static_cast<Keeps>(options_.stage);
  std::int64_t elements = 0;
  for (const std::size_t i : list().units[unit].parameters) elements += parameter(i).numel();
  return elements < options_.whole_below ? Keeps::kParameters : Keeps::kShard;
}

bool Overlap::keeps_gradients(std::size_t unit) const {
  return options_.keep_gradients && !reduce_each_ && (unit != 0 || options_.stage < 2);
}

void Overlap::build_buckets() {
  for (std::size_t u = 0; u < list().units.size(); ++u) {
    struct Open {
      std::vector<std::size_t> members;
      std::int64_t bytes = 0;
    };
    // One buffer has one dtype, and a gradient buffer for frozen parameters would be a waste.
    std::map<std::pair<bool, at::ScalarType>, Open> open;
    const auto close = [&](Open& bucket) {
      by_unit_[u].push_back(buckets_.size());
      unit_of_.push_back(u);
      for (std::size_t m = 0; m < bucket.members.size(); ++m) {
        where_[bucket.members[m]] = {buckets_.size(), m};
      }
      buckets_.emplace_back(list(), std::move(bucket.members), keeps(u), keeps_gradients(u),
                            communicator(), pool_);
      bucket = {};
    };
    for (const std::size_t i : list().units[u].parameters) {
      Open& bucket = open[{trainable(i), parameter(i).scalar_type()}];
      const std::int64_t bytes = list().parameters[i].bytes();
      if (!bucket.members.empty() && bucket.bytes + bytes > options_.bucket_bytes) close(bucket);
      bucket.members.push_back(i);
      bucket.bytes += bytes;
    }
    for (auto& [kind, bucket] : open) {
      if (!bucket.members.empty()) close(bucket);
    }
  }
}

void Overlap::give_values(Bucket& bucket) {
  const int rank = communicator().rank();
  // Parameters that were built with bytes bring their values along.
  std::vector<at::Tensor> own;
  for (const std::size_t i : bucket.members()) {
    const bool has = memory::has_storage(parameter(i)) && parameter(i).numel() > 0;
    own.push_back(rank == 0 && has ? memory::raw(parameter(i)).clone() : at::Tensor());
  }
  bucket.allocate();
  for (std::size_t m = 0; rank == 0 && m < own.size(); ++m) {
    at::Tensor out = bucket.parameter(m);
    own[m].defined() ? static_cast<void>(out.copy_(own[m])) : first_value(bucket.members()[m], out);
  }
  communicator().broadcast(bucket.full(), /*root=*/0, Purpose::kSetup).wait();
  bucket.settle();
}

void Overlap::set_providers() {
  for (Bucket& bucket : buckets_) {
    for (std::size_t m = 0; m < bucket.members().size(); ++m) {
      nn::set_gradient_provider(parameter(bucket.members()[m]),
                                [&bucket, m] { return bucket.gradient_window(m); });
    }
  }
}

train::ModelStateBytes Overlap::predicted_bytes() const {
  train::ModelStateBytes bytes{0, 0, optimizer_bytes()};
  for (const Bucket& bucket : buckets_) {
    const bool split = bucket.keeps() == Keeps::kShard;
    bytes.parameters += split ? bucket.shard_bytes() : bucket.full_bytes();
    if (!bucket.trainable()) continue;
    // Where micro-batches are reduced one by one, the buffer is needed for the next.
    const bool whole = bucket.keeps() == Keeps::kEverything ||
                       (bucket.keeps() == Keeps::kGradients && !reduce_each_);
    if (whole) {
      bytes.gradients += bucket.full_bytes();
      continue;
    }
    // A shard that is nothing but padding is held by nobody.
    bool holds = false;
    for (std::size_t m = 0; m < bucket.members().size(); ++m) {
      holds = holds || bucket.piece(m).tensor.defined();
    }
    if (holds) bytes.gradients += bucket.shard_bytes();
  }
  return bytes;
}

std::int64_t Overlap::gathers(std::size_t unit) const {
  const std::int64_t uses = uses_[unit];
  // The root stays whole between its forward and its backward. The others are gathered for each use
  // in forward, and once for backward, until all their gradients are there.
  if (unit == 0) return uses > 0 ? 1 : 0;
  return uses + (uses > 0 ? 1 : 0);
}

std::int64_t Overlap::predicted_traffic() const {
  const std::int64_t others = communicator_.size() - 1;
  std::int64_t sum = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    const std::int64_t gather = others * bucket.shard_bytes();
    if (bucket.trainable()) {
      const at::ScalarType dtype = parameter(bucket.members().front()).scalar_type();
      const std::int64_t reduced =
          bucket.layout().shard() * communicator_.reduced_element_size(dtype);
      // An all-reduce is a reduce-scatter and an all-gather of the same bytes.
      sum += (bucket.keeps() == Keeps::kEverything ? 2 : 1) * others * reduced;
      if (bucket.keeps() == Keeps::kGradients || bucket.keeps() == Keeps::kParameters) {
        sum += gather;
      }
    }
    if (bucket.keeps() == Keeps::kShard) sum += gathers(unit_of_[b]) * gather;
  }
  return sum;
}

namespace {

OverlapOptions options_of(int stage, const train::StrategyArguments& arguments) {
  if (const auto* options = std::any_cast<OverlapOptions>(&arguments.options)) return *options;
  const std::string& variant = arguments.variant;
  if (variant.find('=') != std::string::npos) {
    std::vector<std::string> notes;
    const OverlapOptions options = overlap_options(stage, variant, &notes);
    for (const std::string& note : notes) {
      if (arguments.communicator.rank() == 0) complain("note: " + note);
    }
    return options;
  }
  OverlapOptions options;
  options.stage = stage;
  if (variant == "on_demand") options.lookahead = 0;
  if (variant == "auto") options.lookahead = kAutoLookahead;
  if (variant == "hybrid") options.whole_below = kHybridThreshold;
  return options;
}

}  // namespace

void register_prefetch_overlap(train::Registry& registry) {
  for (int stage = 0; stage <= 3; ++stage) {
    registry.add({fmt::format("engine{}", stage), "05_prefetch_overlap",
                  stage < 3 ? std::vector<std::string>{"overlap"}
                            : std::vector<std::string>{"overlap", "on_demand", "auto", "hybrid"},
                  [stage](const train::StrategyArguments& arguments) {
                    return std::make_unique<Overlap>(arguments, options_of(stage, arguments));
                  },
                  [stage](const std::string& variant) { overlap_options(stage, variant); }});
  }
}

}  // namespace zero
