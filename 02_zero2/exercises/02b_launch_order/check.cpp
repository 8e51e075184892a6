// Lets gradients come in another random order on each rank and step, and compares what is launched.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <random>

#include <grading/check.hpp>

#include "02b.hpp"

namespace exercise_02b {

using zero::dist::Communicator;
using zero::exercise::Mistake;

constexpr int kGradients = 8, kSteps = 20;

// In step 1 as backward makes them, then in any order; from step 3 on some rank lacks one.
std::vector<int> arrivals(int rank, int ranks, int step) {
  std::vector<int> order(kGradients);
  std::iota(order.rbegin(), order.rend(), 0);
  if (step == 1) return order;
  std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(100 * step + rank)));
  if (step >= 3 && step % ranks == rank) std::erase(order, 3 * step % kGradients);
  return order;
}

// One step of one rank, in which gradients come in this order.
class Step {
 public:
  Step(const Answer& answer, Schedule& schedule, const std::vector<int>& order, std::string begin)
      : begin_(std::move(begin)) {
    try {
      run(answer, schedule, order);
    } catch (const std::out_of_range& error) {
      throw Mistake(begin_ + " " + error.what());
    }
  }

  // Called by all ranks: throws the first mistake.
  void check(Communicator& communicator, bool is_first) const {
    if (launched_.size() < kGradients) {
      const bool are_those = launched_.size() == came_.size() && came_.size() < kGradients;
      const std::string cause = are_those ? ": those that did not come on this rank are missing"
                                : launched_.empty() && !is_first
                                    ? ": the schedule of the step before is still there"
                                    : "";
      throw Mistake(
          fmt::format("{} launches {} of 8 gradients{}", begin_, launched_.size(), cause));
    }
    check_order(communicator);
    if (late_ < 0) return;
    throw Mistake(
        launched_in_backward_ == 0
            ? begin_ + " waits until backward is over, and holds all gradients until then"
            : fmt::format("{} does not launch gradient {}, although it and all gradients before it "
                          "in the order are complete",
                          begin_, late_));
  }

 private:
  void run(const Answer& answer, Schedule& schedule, const std::vector<int>& order) {
    const Launch launch = [this](int gradient) { note(gradient); };
    for (const int gradient : order) {
      came_.push_back(gradient);
      answer.gradient_ready(schedule, gradient, launch);
      note_late();
    }
    in_backward_ = false;
    launched_in_backward_ = launched_.size();
    answer.backward_done(schedule, launch);
  }

  bool has_come(int gradient) const {
    return std::find(came_.begin(), came_.end(), gradient) != came_.end();
  }

  void note(int gradient) {
    if (gradient < 0 || gradient >= kGradients) {
      throw Mistake(fmt::format("{} launches gradient {}: there are 0 to 7", begin_, gradient));
    }
    if (std::find(launched_.begin(), launched_.end(), gradient) != launched_.end()) {
      throw Mistake(fmt::format("{} launches gradient {} twice", begin_, gradient));
    }
    if (in_backward_ && !has_come(gradient)) {
      throw Mistake(fmt::format("{} launches gradient {} before it is complete", begin_, gradient));
    }
    launched_.push_back(gradient);
  }

  // Notes the first gradient that could have been launched by now, last to first.
  void note_late() {
    const int next = kGradients - 1 - static_cast<int>(launched_.size());
    if (late_ < 0 && next >= 0 && has_come(next)) late_ = next;
  }

  void check_order(Communicator& communicator) const {
    const auto all = all_gather_scalars(communicator, {launched_.begin(), launched_.end()});
    for (std::size_t k = kGradients; k < all.size(); ++k) {
      if (all[k] == all[k % kGradients]) continue;
      const bool as_they_come = std::equal(came_.begin(), came_.end(), launched_.begin());
      const auto other = all.begin() + static_cast<std::ptrdiff_t>(k / kGradients * kGradients);
      throw Mistake(fmt::format(
          "the ranks launch in different orders, {} on rank 0 and {} on rank {}{}: they would wait "
          "for each other forever",
          std::vector<int>(all.begin(), all.begin() + kGradients),
          std::vector<int>(other, other + kGradients), k / kGradients,
          as_they_come ? ", each as its gradients come" : ""));
    }
    if (std::is_sorted(launched_.rbegin(), launched_.rend())) return;
    if (std::is_sorted(launched_.begin(), launched_.end())) {
      throw Mistake(begin_ + " waits for the first layer: backward begins with the last");
    }
    throw Mistake(
        fmt::format("{} launches in the order {}, not the last first", begin_, launched_));
  }

  std::string begin_;
  std::vector<int> came_, launched_;
  bool in_backward_ = true;
  std::size_t launched_in_backward_ = 0;
  int late_ = -1;
};

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& communicator) {
    const int rank = communicator.rank();
    Schedule schedule(kGradients);
    for (int step = 1; step <= kSteps; ++step) {
      const Step one(answer, schedule, arrivals(rank, communicator.size(), step),
                     fmt::format("in step {} rank {}", step, rank));
      one.check(communicator, step == 1);
    }
  });
}

}  // namespace exercise_02b
