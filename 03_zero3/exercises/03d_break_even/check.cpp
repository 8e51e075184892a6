// Compares the numbers with the formula, and the formula with the planner's.

#include <fmt/format.h>

#include <cmath>

#include <grading/check.hpp>
#include <tools/plan/timing.hpp>

namespace exercise_03d {

constexpr double kBandwidth = 100e9, kLatency = 10e-6, kFlops = 150e12, kShare = 0.05;

struct Case {
  double parameters;
  int units, tokens;
  double bytes;     // sent in a step, for each parameter
  int collectives;  // in a step, for each unit
};
const Case k7B = {7e9, 32, 2048, 6, 3};
const Case kLong = {7e9, 32, 8192, 6, 3};
const Case kLarge = {70e9, 80, 2048, 6, 3};
const Case kSmall = {10e6, 32, 2048, 6, 3};
const Case kDdp = {7e9, 32, 2048, 4, 2};

double communication(const Case& c) {
  return c.bytes * c.parameters / kBandwidth + c.collectives * c.units * kLatency;
}

// `operations` of each parameter and token.
double batch(const Case& c, double operations = 6) {
  const double sample = operations * c.parameters * c.tokens / kFlops;
  return std::floor(communication(c) / (kShare * sample)) + 1;
}

// The same from the functions behind ./run plan.
double planned(const Case& c, zero::plan::Scheme scheme) {
  namespace plan = zero::plan;
  const plan::Machine machine{.bandwidth = kBandwidth, .latency = kLatency, .flops = kFlops};
  const auto parameters = static_cast<std::int64_t>(c.parameters);
  const double bytes = plan::volume(scheme, plan::copies(parameters, plan::mixed()), 2).total();
  const double seconds = plan::communication_seconds(bytes, c.units * c.collectives, machine);
  return static_cast<double>(
      plan::break_even_batch(seconds, parameters, c.tokens, kShare, machine).value_or(0));
}

void check(const zero::exercise::Numbers& numbers) {
  using zero::plan::Scheme;
  for (const Case& c : {k7B, kLong, kLarge, kSmall, kDdp}) {
    if (batch(c) != planned(c, c.bytes == 4 ? Scheme::kDdp : Scheme::kZero3)) {
      throw zero::exercise::Mistake("the planner does not agree with the formula");
    }
  }
  numbers.expect("communication_ms", communication(k7B) * 1e3,
                 {{communication(kDdp) * 1e3, "is DDP's: ZeRO-3 sends 3 copies of 2 bytes"},
                  {2 * communication(k7B) * 1e3, "is for fp32: copies of 2 bytes are sent"},
                  {communication(k7B), "is in seconds"}},
                 /*tolerance=*/0.01);
  const auto expect = [&](const std::string& key, const Case& c,
                          std::vector<zero::exercise::Numbers::Known> known) {
    known.emplace_back(batch(c) - 1, "is one too few: with it communication takes more than 5 %");
    known.emplace_back(batch(c, 2), "counts the 2 operations of forward only: backward has 4");
    known.emplace_back(batch(c, 4), "counts the 4 operations of backward only: forward has 2");
    numbers.expect(key, batch(c), known);
  };
  Case shorter = k7B, no_latency = kSmall;
  shorter.tokens = 512;
  no_latency.units = 0;
  const std::vector<zero::exercise::Numbers::Known> is_cheap = {
      {batch(kDdp), "is DDP's: ZeRO-3 sends 3 copies, DDP two"}};
  expect("batch_2048", k7B, is_cheap);
  expect("batch_8192", kLong,
         {{batch(shorter), "is for 512 tokens: longer samples compute longer"}});
  expect(
      "batch_large", kLarge,
      {{2, "would be right if only computing grew: a larger model sends more as well"},
       {147, "would be right if only communication grew: a larger model computes more as well"}});
  expect(
      "batch_small", kSmall,
      {{batch(no_latency), "leaves the latency out: 96 collectives take longer than the bytes"}});
  expect("batch_ddp", kDdp, {{batch(k7B), "is ZeRO-3's: an all-reduce sends two copies"}});
}

}  // namespace exercise_03d
