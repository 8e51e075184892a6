#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "05f.hpp"

namespace exercise_05f {

/// A step that is played, from one end of something to the next.
class Player {
 public:
  Player(const std::vector<Layer>& layers, double limit, const std::vector<Transfer>& plan)
      : layers_(layers),
        room_(limit + 1e-9),
        plan_(plan),
        states_(layers.size()),
        left_(layers.size()) {
    for (const Transfer& transfer : plan_) {
      left_.at(transfer.layer) += transfer.kind == Transfer::kGather ? 1 : 0;
    }
  }

  Step play() {
    do {
      if (wire_until_ == kNever && sent_ < plan_.size() && blocked_by().empty()) begin_transfer();
      if (pass_until_ == kNever && ended_ < passes() && states_[layer()] == kWhole) begin_pass();
    } while (goes_on());
    const auto left = std::ranges::find(states_, kGradient);
    if (sent_ < plan_.size() || ended_ < passes()) {
      step_.stuck = fmt::format("after {} ms nothing goes on: {}", now_, blocked_by());
    } else if (left != states_.end()) {
      step_.stuck = fmt::format("nothing reduces layer {}", left - states_.begin());
    } else {
      step_.ms = now_;
    }
    return step_;
  }

 private:
  enum State { kAway, kComing, kWhole, kGradient };

  int passes() const { return 2 * static_cast<int>(layers_.size()); }
  // Which layer the next pass is of.
  int layer() const { return std::min(ended_, passes() - 1 - ended_); }
  const Transfer& next() const { return plan_[sent_]; }

  // What the next transfer waits for.
  std::string blocked_by() const {
    if (sent_ == plan_.size()) return fmt::format("nothing gathers layer {}", layer());
    const bool gathers = next().kind == Transfer::kGather;
    const std::string name =
        fmt::format("the {} of layer {}", gathers ? "gather" : "reduction", next().layer);
    if (ended_ < next().after) return fmt::format("{} waits for {} passes", name, next().after);
    const State needed = gathers ? kAway : kGradient;
    if (states_[next().layer] != needed) {
      return name + (gathers ? " waits until the layer has left" : " waits for its backward");
    }
    return gathers && layers_[next().layer].size > room_ ? name + " waits for room" : "";
  }

  void begin_transfer() {
    const bool gathers = next().kind == Transfer::kGather;
    wire_until_ = now_ + layers_[next().layer].wire;
    step_.wire.push_back(
        {static_cast<char>((gathers ? '0' : 'a') + next().layer), now_, wire_until_});
    if (!gathers) return;
    --left_[next().layer];
    states_[next().layer] = kComing;
    room_ -= layers_[next().layer].size;
  }

  void begin_pass() {
    const Layer& here = layers_[layer()];
    pass_until_ = now_ + (2 * ended_ < passes() ? here.forward : here.backward);
    step_.computing.push_back({static_cast<char>('0' + layer()), now_, pass_until_});
  }

  void leave(int layer) {
    states_[layer] = kAway;
    room_ += layers_[layer].size;
  }

  // Ends what ends next. Returns whether there was anything.
  bool goes_on() {
    const double end = std::min(wire_until_, pass_until_);
    if (end == kNever) return false;
    now_ = end;
    if (pass_until_ == end) {
      pass_until_ = kNever;
      if (2 * ended_ >= passes())
        states_[layer()] = kGradient;
      else if (left_[layer()] > 0)
        leave(layer());
      ++ended_;
    }
    if (wire_until_ == end) {
      wire_until_ = kNever;
      if (next().kind == Transfer::kGather)
        states_[next().layer] = kWhole;
      else
        leave(next().layer);
      ++sent_;
    }
    return true;
  }

  const std::vector<Layer>& layers_;
  double room_;
  const std::vector<Transfer>& plan_;
  std::vector<State> states_;  // by layer
  std::vector<int> left_;      // gathers that have not begun
  double now_ = 0, wire_until_ = kNever, pass_until_ = kNever;
  std::size_t sent_ = 0;
  int ended_ = 0;  // passes
  Step step_;
};

}  // namespace exercise_05f
