// Runs passes on real units, and looks at what is gathered whenever a unit runs.

#include <fmt/format.h>

#include <algorithm>

#include <grading/check.hpp>
#include <zero/memory/accounting.hpp>

#include "05b.hpp"

namespace exercise_05b {

using zero::dist::Communicator;
using zero::exercise::Mistake;
using zero::memory::Category;

constexpr int kUnits = 6;
constexpr std::int64_t kShard = 64;  // elements
// The first guess is 0, 1, 2, 3, 4, 5.
const std::vector<std::vector<int>> kPasses = {
    {0, 2, 1, 3, 5, 4}, {0, 2, 1, 3, 5, 4}, {0, 2, 3, 5, 4}, {0, 2, 3, 5, 4}, {4, 0, 2, 1, 5}};

// What every rank has of a unit, as a number that tells unit and rank.
at::Tensor shard_of(int unit, int rank) { return at::full({kShard}, 10.0 * unit + rank); }

class RealUnits final : public Units {
 public:
  explicit RealUnits(Communicator& communicator) : communicator_(communicator) {}

  int count() const override { return kUnits; }
  bool is_gathered(int unit) const override { return whole_.at(unit).defined(); }
  void start_gather(int unit) override {
    if (is_gathered(unit)) {
      throw Mistake(
          fmt::format("the gather of unit {} is started twice: is_gathered() says that it "
                      "is there or on its way",
                      unit));
    }
    ++gathers_;
    shards_[unit] = shard_of(unit, communicator_.rank());
    const zero::memory::Charge charge(Category::kParameters);
    whole_[unit] = at::empty({kShard * communicator_.size()});
    work_[unit] =
        communicator_.all_gather(whole_[unit], shards_[unit], zero::dist::Purpose::kParameter);
  }
  void wait_gather(int unit) override {
    if (!is_gathered(unit)) {
      throw Mistake(fmt::format("unit {} is waited for, and its gather was not started", unit));
    }
    work_[unit].wait();
    waited_[unit] = true;
  }
  void reshard(int unit) override {
    wait_gather(unit);
    whole_[unit].reset();
    waited_[unit] = false;
  }

  bool is_waited_for(int unit) const { return waited_[unit]; }
  int gathers() const { return gathers_; }
  // The sum of a unit's elements.
  double sum(int unit) const { return whole_[unit].sum().item<double>(); }

 private:
  Communicator& communicator_;
  std::vector<at::Tensor> shards_ = std::vector<at::Tensor>(kUnits);
  std::vector<at::Tensor> whole_ = std::vector<at::Tensor>(kUnits);
  std::vector<zero::dist::Work> work_ = std::vector<zero::dist::Work>(kUnits);
  std::vector<bool> waited_ = std::vector<bool>(kUnits);
  int gathers_ = 0;
};

// Unit order[i] runs now.
void check_run(const RealUnits& units, const std::vector<int>& order, std::size_t i, bool expected,
               int lookahead, int ranks) {
  const int unit = order[i];
  if (!units.is_gathered(unit))
    throw Mistake(fmt::format("unit {} runs before it is gathered", unit));
  if (!units.is_waited_for(unit)) {
    throw Mistake(fmt::format("unit {} runs before its gather has been waited for", unit));
  }
  const double right = kShard * (10.0 * unit * ranks + ranks * (ranks - 1) / 2.0);
  if (units.sum(unit) != right) throw Mistake(fmt::format("unit {} has wrong values", unit));
  if (!expected) return;
  const std::size_t end = std::min(order.size(), i + 1 + static_cast<std::size_t>(lookahead));
  for (std::size_t next = i + 1; next < end; ++next) {
    if (!units.is_gathered(order[next])) {
      throw Mistake(
          fmt::format("unit {} is not being gathered while unit {} runs, although the pass "
                      "before had this order and k = {}",
                      order[next], unit, lookahead));
    }
    if (units.is_waited_for(order[next])) {
      throw Mistake(fmt::format("unit {} is waited for before unit {} runs: then nothing is hidden",
                                order[next], unit));
    }
  }
}

void check_pass(const Answer& answer, RealUnits& units, Plan& plan, std::size_t pass, int ranks) {
  const std::vector<int>& order = kPasses[pass];
  const bool expected = pass > 0 && kPasses[pass - 1] == order;
  const int gathers_before = units.gathers();
  const std::int64_t before = zero::memory::snapshot()[Category::kParameters];
  zero::memory::reset_peaks();
  for (std::size_t i = 0; i < order.size(); ++i) {
    answer.before_unit(units, plan, order[i]);
    check_run(units, order, i, expected, plan.lookahead, ranks);
    answer.after_unit(units, plan, order[i]);
  }
  answer.end_pass(units, plan);

  const std::string in_pass = fmt::format("in pass {} with k = {}, ", pass + 1, plan.lookahead);
  const std::int64_t unit_bytes = 4 * kShard * ranks;
  const auto peak = zero::memory::snapshot().peak_of(Category::kParameters) - before;
  if (peak > (1 + plan.lookahead) * unit_bytes) {
    throw Mistake(in_pass + fmt::format("{} units are whole at once, and 1 + k = {} {} enough",
                                        peak / unit_bytes, 1 + plan.lookahead,
                                        plan.lookahead == 0 ? "is" : "are"));
  }
  for (int unit = 0; unit < kUnits; ++unit) {
    if (!units.is_gathered(unit)) continue;
    throw Mistake(fmt::format("after pass {} with k = {}, unit {} is still whole", pass + 1,
                              plan.lookahead, unit));
  }
  const int gathers = units.gathers() - gathers_before;
  if (expected && gathers > static_cast<int>(order.size())) {
    throw Mistake(in_pass + fmt::format("{} gathers are started for {} units, although the pass "
                                        "before had this order: each needs one",
                                        gathers, order.size()));
  }
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& communicator) {
    for (int lookahead = 0; lookahead <= 2; ++lookahead) {
      RealUnits units(communicator);
      Plan plan{.lookahead = lookahead, .expected = {0, 1, 2, 3, 4, 5}};
      for (std::size_t pass = 0; pass < kPasses.size(); ++pass) {
        check_pass(answer, units, plan, pass, communicator.size());
      }
    }
  });
}

}  // namespace exercise_05b
