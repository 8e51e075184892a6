#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include <zero/base/error.hpp>
#include <zero/nn/unit.hpp>
#include <zero/train/backward/unit_schedule.hpp>

namespace zero::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Order = std::vector<std::size_t>;

// The root, units 1 and 4 in it, 2 and 3 in 1. Parameter u belongs to unit u.
nn::ParameterList family() {
  nn::ParameterList list;
  list.units = {{nullptr, "", {0}, 0},
                {nullptr, "a", {1}, 0},
                {nullptr, "a.b", {2}, 1},
                {nullptr, "a.c", {3}, 1},
                {nullptr, "d", {4}, 0}};
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    list.parameters.push_back({list.units[u].name, at::ones({1}).requires_grad_(), u, {}});
  }
  return list;
}

// A schedule that writes down what it does: "drop 4", "reduce 4".
class Recorded {
 public:
  explicit Recorded(Units units = Units::kGathered) {
    schedule_.set_items(
        UnitSchedule::one_by_one(list),
        [this](std::size_t i) { events_.push_back("reduce " + std::to_string(i)); }, units,
        /*in_backward=*/true);
  }
  UnitSchedule* operator->() { return &schedule_; }

  // A forward in which units run in this order, and the beginning of its backward.
  void forward(const Order& units) {
    schedule_.begin_forward(/*trains=*/true);
    for (const std::size_t u : units) run(u);
    schedule_.end_forward();
  }
  void run(std::size_t u, Gather why = Gather::kForward) {
    schedule_.enter_forward(u, why);
    schedule_.leave_forward(u);
    events_.clear();
  }
  void used_once() { forward({0, 1, 2, 3, 4}); }
  // A backward that has come to these units, one after the other.
  void backward(const Order& units) {
    schedule_.begin_backward(/*reduces=*/true);
    for (const std::size_t u : units) schedule_.enter_backward(u);
  }
  std::vector<std::string> events() { return std::exchange(events_, {}); }
  std::vector<std::string> rest() {
    schedule_.end_backward();
    std::vector<std::string> all = events();
    std::erase_if(all, [](const std::string& event) { return event.starts_with("drop"); });
    return all;
  }

  nn::ParameterList list = family();

 private:
  std::vector<bool> whole_ = std::vector<bool>(5, false);
  std::vector<std::string> events_;
  UnitSchedule schedule_{list,
                         {.gather = [this](std::size_t u, Gather) { whole_[u] = true; },
                          .drop =
                              [this](std::size_t u) {
                                if (whole_[u]) events_.push_back("drop " + std::to_string(u));
                                whole_[u] = false;
                              }}};
};

TEST(UnitSchedule, ReducesAUnitInItsTurn) {
  Recorded schedule;
  schedule.used_once();
  schedule.backward({0, 4});
  EXPECT_THAT(schedule.events(), IsEmpty());
  schedule->gradient_ready(4);
  EXPECT_THAT(schedule.events(), ElementsAre("drop 4", "reduce 4"));
  schedule->enter_backward(1);
  schedule->enter_backward(3);  // within 1
  EXPECT_THAT(schedule.events(), IsEmpty());
  // This rank's batch did not use parameter 3: it goes when another unit begins.
  schedule->enter_backward(2);
  EXPECT_THAT(schedule.events(), ElementsAre("drop 3", "reduce 3"));
  schedule->gradient_ready(2);
  EXPECT_THAT(schedule.events(), ElementsAre("drop 2", "reduce 2"));
  EXPECT_THAT(schedule.rest(), ElementsAre("reduce 1", "reduce 0"));
}

TEST(UnitSchedule, KeepsTheUsesOfAStepThroughAnEvaluation) {
  Recorded schedule;
  schedule.forward({0, 4, 4});
  schedule->begin_forward(/*trains=*/false);
  schedule->end_forward();
  EXPECT_EQ(schedule->uses(4), 2);
  EXPECT_EQ(schedule->uses(3), 0);
}

// A loss of the program's own, such as one of two predictions.
TEST(UnitSchedule, CountsUsesOutsideOfAForwardPass) {
  Recorded schedule;
  for (int use = 0; use < 3; ++use) schedule.run(4);
  schedule->enter_other_pass(4);  // another backward has used up one
  schedule->end_other_pass();
  schedule.events();
  schedule.backward({4, 3});
  EXPECT_THAT(schedule.events(), IsEmpty()) << "one use of 4 is over, not all";
  schedule->enter_backward(4);
  schedule->gradient_ready(4);
  EXPECT_THAT(schedule.events(), ElementsAre("drop 3", "drop 4", "reduce 4", "reduce 3"));
  schedule.rest();
  for (int use = 0; use < 2; ++use) schedule.run(4);
  schedule->forget_forwards();
  schedule.backward({4, 3});
  EXPECT_THAT(schedule.events(), ElementsAre("drop 4", "reduce 4"));
  EXPECT_EQ(schedule->uses(4), 1) << "not in a forward pass";
}

TEST(UnitSchedule, KeepsParametersBesideFrozenOnesUntilTheUnitIsOver) {
  Recorded schedule;
  schedule.list.units[4].parameters.push_back(5);
  schedule.list.parameters.push_back({"d.frozen", at::ones({1}), 4, {}});
  schedule.used_once();
  schedule.backward({4});
  schedule->gradient_ready(4);
  EXPECT_THAT(schedule.events(), ElementsAre("reduce 4"));
  schedule->enter_backward(3);
  EXPECT_THAT(schedule.events(), ElementsAre("drop 4"));
}

TEST(UnitSchedule, ForgetsForwardsThatNoBackwardFollowed) {
  Recorded schedule;
  const auto goes_at_once = [&] {
    schedule->begin_backward(true);
    schedule->enter_backward(4);
    schedule->gradient_ready(4);
    const bool went = schedule.events().size() == 2;
    schedule->give_up();
    schedule.events();  // what was missing
    return went;
  };
  schedule.used_once();
  schedule.used_once();
  EXPECT_FALSE(goes_at_once()) << "another backward of unit 4 may come";
  schedule->forget_forwards();
  schedule.used_once();
  schedule->begin_forward(true);
  schedule.run(4);  // and throws
  EXPECT_TRUE(goes_at_once());
  schedule->begin_forward(true);
  schedule.run(4);  // and throws
  schedule.used_once();
  EXPECT_TRUE(goes_at_once()) << "a forward that threw has no backward";
  schedule.used_once();
  schedule->forget_forwards();
  schedule.used_once();
  EXPECT_TRUE(goes_at_once()) << "after an update no backward of earlier forwards comes";
}

TEST(UnitSchedule, HasOneOrderWhateverTheOrderOfArrival) {
  std::mt19937 generator(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::size_t> arrival = {0, 1, 2, 3, 4};
    std::shuffle(arrival.begin(), arrival.end(), generator);
    arrival.resize(static_cast<std::size_t>(round) % 6);  // some never come
    Recorded schedule(Units::kWhole);
    schedule.list.parameters[3].tensor.requires_grad_(round % 2 == 0);
    for (int step = 0; step < 2; ++step) {
      schedule->begin_backward(true);
      for (const std::size_t i : arrival) {
        if (schedule.list.parameters[i].tensor.requires_grad()) schedule->gradient_ready(i);
      }
      std::vector<std::string> went = schedule.events();
      for (const std::string& event : went) {
        const std::size_t i = static_cast<std::size_t>(event.back() - '0');
        EXPECT_NE(std::find(arrival.begin(), arrival.end(), i), arrival.end()) << "went too early";
      }
      for (const std::string& event : schedule.rest()) went.push_back(event);
      std::vector<std::string> all = {"reduce 4", "reduce 3", "reduce 2", "reduce 1", "reduce 0"};
      if (round % 2 != 0) all.erase(all.begin() + 1);  // it is frozen
      EXPECT_EQ(went, all);
    }
  }
}

TEST(UnitSchedule, RefusesAGradientThatCameTooLate) {
  Recorded schedule(Units::kWhole);
  schedule->begin_backward(true);
  schedule->gradient_ready(4);
  EXPECT_THROW(schedule->gradient_ready(4), Error);
  EXPECT_THAT(schedule.events(), ElementsAre("reduce 4"));
  schedule->give_up();  // other ranks may have reduced more before they threw
  EXPECT_THAT(schedule.events(), ElementsAre("reduce 3", "reduce 2", "reduce 1", "reduce 0"));
  schedule->begin_backward(true);
  schedule->gradient_ready(4);
  EXPECT_THAT(schedule.events(), ElementsAre("reduce 4"));
}

// An operation with a gradient that was there before hold() says nothing of what happened since.
TEST(UnitSchedule, HoldsAUnitThatWasReadWithAGradientThroughEachBackwardUntilWeightsChange) {
  Recorded schedule;
  const at::Tensor& weight = schedule.list.parameters[4].tensor;
  const at::Tensor older = weight.sum();
  const auto holds_in_backward = [&] {
    schedule->begin_backward(/*reduces=*/true);
    const bool holds = schedule->is_held(4);
    schedule->stop_backward();
    schedule->end_backward();
    return holds;
  };
  schedule->hold(4);
  schedule->release(4);
  EXPECT_FALSE(holds_in_backward());
  schedule->hold(4);
  const at::Tensor read = weight.sum();
  schedule->release(4);
  EXPECT_TRUE(holds_in_backward());
  EXPECT_FALSE(schedule->is_held(4));
  EXPECT_TRUE(holds_in_backward());
  schedule->forget_reads();
  EXPECT_FALSE(holds_in_backward());
}

}  // namespace
}  // namespace zero::train
