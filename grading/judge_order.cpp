#include <fmt/format.h>

#include "judge.hpp"
#include "small_formulas.hpp"

namespace zero::exercise {
namespace {

// Where things happened within one step of a rank.
class StepOrder {
 public:
  StepOrder(const RankLog& log, int step, int ranks) : shards_(shard_bytes(ranks)), ranks_(ranks) {
    for (const Event& event : log.events) {
      if (event.step == step) events_.push_back(event);
    }
  }

  // Of a layer's gather number `which` (0 for forward, 1 for backward); -1 if there is none.
  int gather(Event::Kind kind, int layer, int which) const {
    return find(which, [&](const Event& e) {
      return e.kind == kind && e.operation == "all_gather parameter" && e.bytes == shard(layer);
    });
  }

  int reduction(Event::Kind kind, int layer) const {
    return find(0, [&](const Event& e) {
      return e.kind == kind && e.operation == "reduce_scatter gradient" &&
             e.bytes == ranks_ * shard(layer);
    });
  }

  int forward(int layer) const { return computes(Event::Kind::kForward, layer, 0); }
  int backward(int layer) const { return computes(Event::Kind::kBackward, layer, 0); }
  int backward_ends(int layer) const { return computes(Event::Kind::kBackward, layer, 1); }

  int update(int layer) const {
    return find(0, [&](const Event& e) {
      return e.kind == Event::Kind::kUpdate && e.bytes == shard(layer);
    });
  }

 private:
  std::int64_t shard(int layer) const { return shards_[static_cast<std::size_t>(layer)]; }

  int computes(Event::Kind kind, int layer, int which) const {
    return find(which, [&](const Event& e) { return e.kind == kind && e.layer == layer; });
  }

  // The place of occurrence number `which` of what `is_it` accepts.
  template <typename Predicate>
  int find(int which, const Predicate& is_it) const {
    for (std::size_t i = 0; i < events_.size(); ++i) {
      if (is_it(events_[i]) && which-- == 0) return static_cast<int>(i);
    }
    return -1;
  }

  LayerBytes shards_;
  int ranks_;
  std::vector<Event> events_;
};

// One gather of `next`, which hides behind the computing of `layer`: [from, to] are the places of
// that.
std::optional<std::string> judge_gather(const StepOrder& order, int which, int layer, int next,
                                        int from, int to) {
  const char* const pass = which == 0 ? "forward" : "backward";
  const int start = order.gather(Event::Kind::kStart, next, which);
  const int wait = order.gather(Event::Kind::kWait, next, which);
  if (start < 0) return std::nullopt;  // then bytes are missing, which another check explains
  if (start > from) {
    return fmt::format(
        "in {} the gather of layer {} starts only after layer {} has computed: start it "
        "before, so that the weight travels meanwhile",
        pass, next, layer);
  }
  if (wait >= 0 && wait < to) {
    return fmt::format(
        "in {} the gather of layer {} is waited for before layer {} computes: nothing "
        "overlaps; wait just before layer {} needs it",
        pass, next, layer, next);
  }
  const int use = which == 0 ? order.forward(next) : order.backward_ends(next);
  if (wait < 0 || wait > use) {
    return fmt::format(
        "in {} layer {} computes before its gather was waited for: the weight may not "
        "have arrived",
        pass, next);
  }
  return std::nullopt;
}

std::optional<std::string> judge_reduction(const StepOrder& order, int layer) {
  if (order.reduction(Event::Kind::kStart, layer) < 0) return std::nullopt;  // as in judge_gather()
  const int wait = order.reduction(Event::Kind::kWait, layer);
  if (wait >= 0 && wait < order.backward_ends(0)) {
    if (layer == 0) return std::nullopt;
    return fmt::format(
        "the reduction of layer {} is waited for inside backward: let it travel and "
        "wait before the update of layer {}",
        layer, layer);
  }
  if (wait < 0 || wait > order.update(layer)) {
    return fmt::format(
        "layer {} is updated before its reduction was waited for: the gradient may "
        "not have arrived",
        layer);
  }
  return std::nullopt;
}

std::optional<std::string> judge_step(const StepOrder& order) {
  for (int layer = 0; layer + 1 < kLayers; ++layer) {
    const int place = order.forward(layer);
    if (auto text = judge_gather(order, 0, layer, layer + 1, place, place)) return text;
  }
  for (int layer = kLayers - 1; layer > 0; --layer) {
    if (auto text = judge_gather(order, 1, layer, layer - 1, order.backward(layer),
                                 order.backward_ends(layer))) {
      return text;
    }
  }
  for (int layer = kLayers - 1; layer >= 0; --layer) {
    if (auto text = judge_reduction(order, layer)) return text;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> judge_order(int rank, int ranks, const RankLog& log) {
  if (ranks == 1) return std::nullopt;  // nothing travels
  for (int step = 1; step <= kSteps; ++step) {
    if (const auto text = judge_step(StepOrder(log, step, ranks))) {
      return fmt::format("on rank {} {}", rank, *text);
    }
  }
  return std::nullopt;
}

}  // namespace zero::exercise
