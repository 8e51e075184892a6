// Runs the collectives of a step with the levels of the answer, and compares its numbers with the
// allocator's and the communicator's.

#include <fmt/format.h>

#include <algorithm>

#include <grading/check.hpp>
#include <zero/memory/accounting.hpp>

#include "05d.hpp"

namespace exercise_05d {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::exercise::Mistake;
using zero::memory::Category;

// All units divide by 2, 3 and 5, the parameters of the last do not.
const Model kModel = {4, {{600, 0}, {1800, 1}, {60, 1}, {1830, 2}, {251, 3}, {49, 3}}};

std::vector<std::int64_t> unit_elements() {
  std::vector<std::int64_t> elements(kModel.units);
  for (const Parameter& p : kModel.parameters) elements[p.unit] += p.elements;
  return elements;
}

void check_levels(const std::vector<Level>& levels, std::int64_t threshold) {
  if (levels.size() != static_cast<std::size_t>(kModel.units)) {
    throw Mistake(
        fmt::format("levels() returns {} levels for {} units", levels.size(), kModel.units));
  }
  const std::vector<std::int64_t> elements = unit_elements();
  for (std::size_t unit = 0; unit < levels.size(); ++unit) {
    const Level right = elements[unit] >= threshold ? Level::kZero3 : Level::kZero2;
    if (levels[unit] == right) continue;
    if (elements[unit] == threshold) {
      throw Mistake(fmt::format(
          "unit {} has {} elements, exactly the threshold: ZeRO-3 begins there", unit, threshold));
    }
    const auto parameters =
        std::count_if(kModel.parameters.begin(), kModel.parameters.end(),
                      [&](const Parameter& p) { return p.unit == static_cast<int>(unit); });
    throw Mistake(fmt::format(
        "unit {} has {} elements in {} parameters: with a threshold of {} it belongs under {}",
        unit, elements[unit], parameters, threshold, right == Level::kZero3 ? "ZeRO-3" : "ZeRO-2"));
  }
}

struct Measured {
  std::int64_t at_rest, sent;
};

// The collectives of one step of AdamW.
Measured run_step(Communicator& communicator, const std::vector<Level>& levels) {
  const int ranks = communicator.size();
  const std::int64_t sent = communicator.traffic().bytes();
  const std::int64_t held = zero::memory::snapshot().model_states();
  const auto counted = [](std::int64_t elements, Category category) {
    const zero::memory::Charge charge(category);
    return at::zeros({elements});
  };
  std::vector<at::Tensor> states;  // what stays after the step
  const std::vector<std::int64_t> elements = unit_elements();
  for (std::size_t unit = 0; unit < levels.size(); ++unit) {
    const std::int64_t n = elements[unit];
    const bool sharded = levels[unit] == Level::kZero3;
    const at::Tensor parameters = counted(sharded ? n / ranks : n, Category::kParameters);
    const at::Tensor gradients = counted(n / ranks, Category::kGradients);
    const at::Tensor moments = counted(2 * n / ranks, Category::kOptimizer);
    if (sharded) {  // for forward, and for backward
      for (int pass = 0; pass < 2; ++pass) {
        communicator.all_gather(at::empty({n}), parameters, Purpose::kParameter).wait();
      }
    }
    communicator.reduce_scatter(gradients, at::ones({n}), Purpose::kGradient).wait();
    if (!sharded) {  // after the update
      const at::Tensor mine = parameters.narrow(0, communicator.rank() * (n / ranks), n / ranks);
      communicator.all_gather(parameters, mine, Purpose::kParameter).wait();
    }
    states.insert(states.end(), {parameters, gradients, moments});
  }
  return {zero::memory::snapshot().model_states() - held, communicator.traffic().bytes() - sent};
}

// The elements of all units under `level`.
std::int64_t elements_under(const std::vector<Level>& levels, Level level) {
  std::int64_t sum = 0;
  for (const Parameter& p : kModel.parameters) sum += levels[p.unit] == level ? p.elements : 0;
  return sum;
}

void check_bytes(const Answer& answer, const std::vector<Level>& levels, const Measured& measured,
                 int ranks) {
  const std::int64_t small = elements_under(levels, Level::kZero2);
  const std::int64_t large = elements_under(levels, Level::kZero3);
  if (measured.at_rest != 4 * small + 12 * small / ranks + 16 * large / ranks ||
      measured.sent != (2 * small + 3 * large) * 4 * (ranks - 1) / ranks) {
    throw Mistake("what is measured does not agree with the formula");
  }
  const auto expect = [&](const char* what, std::int64_t got, std::int64_t right,
                          const std::vector<std::pair<std::int64_t, const char*>>& known) {
    if (got == right) return;
    std::string sentence = fmt::format(
        "{}() is {} with {} elements under ZeRO-2 and {} under ZeRO-3, "
        "and {} are measured",
        what, got, small, large, right);
    for (const auto& [value, why] : known) {
      if (got != value) continue;
      throw Mistake(sentence + ": it " + why);
    }
    if (right - 100 < got && got < right) {
      throw Mistake(sentence + ": it rounds down for each parameter: divide the unit's elements");
    }
    throw Mistake(sentence);
  };
  expect(
      "bytes_at_rest", answer.bytes_at_rest(kModel, levels, ranks), measured.at_rest,
      {{8 * small + 8 * small / ranks + 16 * large / ranks,
        "counts ZeRO-1: gradients of ZeRO-2 are sharded too"},
       {4 * small + 8 * small / ranks + 12 * large / ranks, "counts one moment, and AdamW has two"},
       {16 * (small + large) / ranks, "shards everything: ZeRO-2 keeps parameters whole"}});
  expect("bytes_sent", answer.bytes_sent(kModel, levels, ranks), measured.sent,
         {{(small + 3 * large) * 4 * (ranks - 1) / ranks,
           "forgets that ZeRO-2 gathers updated parameters"},
          {(2 * small + 2 * large) * 4 * (ranks - 1) / ranks,
           "forgets that ZeRO-3 gathers for backward once more"},
          {(2 * small + 3 * large) * 4, "counts the shard that a rank has already as sent"}});
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& communicator) {
    for (const std::int64_t threshold : {1850, 1830, 301, 10000, 0}) {
      const std::vector<Level> levels = answer.levels(kModel, threshold);
      check_levels(levels, threshold);
      check_bytes(answer, levels, run_step(communicator, levels), communicator.size());
    }
  });
}

}  // namespace exercise_05d
