// Plays the answer's schedule beside ours and the chapter's lookahead, draws them, and compares
// each with a bound that no schedule reaches below.

#include <fmt/format.h>

#include <cstdlib>
#include <random>

#include <grading/check.hpp>

#include "05f.hpp"
#include "play.hpp"

namespace exercise_05f {

using zero::exercise::refuse;

Step play(const std::vector<Layer>& layers, double limit, const std::vector<Transfer>& plan) {
  return Player(layers, limit, plan).play();
}

namespace ours {
#include "solution.cpp"
}  // namespace ours

struct Case {
  std::string name;
  std::vector<Layer> layers;
  double limit;
};

const std::vector<Case> kCases = {
    {"case 1", std::vector<Layer>(6, {2, 4, 3, 2}), 6},
    {"case 2",
     {{4, 8, 3, 1}, {4, 8, 3, 1}, {4, 8, 9, 3}, {4, 8, 3, 1}, {4, 8, 3, 1}, {4, 8, 3, 1}},
     5},
    {"case 3",
     {{4, 8, 8, 4}, {3, 6, 2, 1}, {6, 12, 2, 1}, {2, 4, 2, 1}, {1, 2, 8, 4}, {1, 2, 4, 2}},
     6}};

Case drawn(unsigned seed) {
  std::mt19937 random(seed);
  Case given{fmt::format("ZERO_SEED={}", seed), {}, 0};
  double all = 0, before = 0;
  for (int layer = 0; layer < 6; ++layer) {
    const double forward = 1 + random() % 6, size = 1 + random() % 6;
    given.layers.push_back({forward, 2 * forward, 1.5 * size, size});
    given.limit = std::max(given.limit, before + size);  // two neighbours
    before = size;
    all += size;
  }
  given.limit = std::max(given.limit, all / 2);
  return given;
}

// The first gather and the last reduction have no computing beside them. The wire carries each
// layer three times, but for those that stay, and these are there together.
double bound(const Case& given) {
  double computing = 2 * given.layers.front().wire, wire = 0, stays = 0;
  for (const Layer& layer : given.layers) {
    computing += layer.forward + layer.backward;
    wire += 3 * layer.wire;
  }
  for (unsigned set = 0; set < 1U << given.layers.size(); ++set) {
    double size = 0, saved = 0;
    for (std::size_t i = 0; i < given.layers.size(); ++i) {
      if ((set >> i & 1U) == 0) continue;
      size += given.layers[i].size;
      saved += given.layers[i].wire;
    }
    if (size <= given.limit) stays = std::max(stays, saved);
  }
  return std::max(computing, wire - stays);
}

// As the class does it: when a layer of a pass begins, the gathers of the k that follow in this
// pass are asked for.
std::vector<Transfer> lookahead(int layers, int k) {
  std::vector<Transfer> plan;
  int asked = 0;
  for (int pass = 0; pass < 2 * layers; ++pass) {
    const int last = std::min(pass + k, (pass < layers ? layers : 2 * layers) - 1);
    for (; asked <= last; ++asked) {
      plan.push_back({Transfer::kGather, std::min(asked, 2 * layers - 1 - asked), pass});
    }
    if (pass >= layers) plan.push_back({Transfer::kReduce, 2 * layers - 1 - pass});
  }
  return plan;
}

// Worked out on paper, for two equal layers.
void verify_play() {
  using enum Transfer::Kind;
  const std::vector<Layer> two(2, {2, 4, 1, 1});
  // Both stay: 1 + 2 + 2 + 4 + 4 + 1.
  const double stay = play(two, 2, {{kGather, 0}, {kGather, 1}, {kReduce, 1}, {kReduce, 0}}).ms;
  // Room for one: layer 1 is gathered from 3 to 4, and layer 0 again from 11 to 12.
  const double one_stays =
      play(two, 1, {{kGather, 0}, {kGather, 1}, {kReduce, 1}, {kGather, 0}, {kReduce, 0}}).ms;
  // On demand everything waits but the reduction of layer 1, behind which a gather waits.
  const double on_demand = play(two, 2, lookahead(2, 0)).ms;
  if (stay != 14 || one_stays != 17 || on_demand != 18) {
    refuse("play() gives {}, {} and {}, not 14, 17 and 18", stay, one_stays, on_demand);
  }
}

void draw(const std::string& whose, const Step& step, double bound, double scale) {
  fmt::print("  {:<13}{:5.1f} ms, {:.3f} of the bound\n", whose, step.ms, step.ms / bound);
  const auto column = [&](double ms) { return static_cast<std::size_t>(scale * ms); };
  const auto draw_row = [&](const char* name, const std::vector<Span>& spans) {
    std::string row(column(step.ms), '.');
    for (const Span& span : spans) {
      for (std::size_t c = column(span.begin); c < column(span.end); ++c) row[c] = span.mark;
    }
    fmt::print("    {:<11}{}\n", name, row);
  };
  draw_row("computing", step.computing);
  draw_row("wire", step.wire);
}

// Returns whether the answer is faster than the best lookahead that fits.
bool beats_lookahead(const Answer& answer, const Case& given) {
  const auto count = static_cast<int>(given.layers.size());
  int k = 0;
  const auto with = [&](int tried) {
    return play(given.layers, given.limit, lookahead(count, tried));
  };
  for (int tried = 1; tried < count; ++tried) {
    if (with(tried).ms < with(k).ms) k = tried;
  }
  const Step best = with(k);
  const Step our = play(given.layers, given.limit, ours::schedule(given.layers, given.limit));
  const Step step = play(given.layers, given.limit, answer.schedule(given.layers, given.limit));
  if (!step.stuck.empty()) refuse("{}", step.stuck);
  const double scale = 72 / std::max({best.ms, our.ms, step.ms});
  fmt::print("{}: room for {} MiB, no schedule takes less than {} ms\n", given.name, given.limit,
             bound(given));
  draw(fmt::format("lookahead {}", k), best, bound(given), scale);
  draw("ours", our, bound(given), scale);
  draw("yours", step, bound(given), scale);
  if (step.ms > best.ms + 1e-9) {
    refuse("the step takes {} ms, and {} with lookahead {}", step.ms, best.ms, k);
  }
  const bool beats = step.ms < best.ms - 1e-9;
  fmt::print("  You {} lookahead {}.\n\n", beats ? "beat" : "are as fast as", k);
  return beats;
}

void check(const Answer& answer) {
  verify_play();
  for (const Case& given : kCases) {
    zero::exercise::in_case(given.name, [&] {
      if (!beats_lookahead(answer, given)) refuse("lookahead is as fast");
    });
  }
  const char* const seed = std::getenv("ZERO_SEED");
  const Case last = drawn(seed == nullptr ? std::random_device()() % 10000 : std::atoi(seed));
  zero::exercise::in_case(last.name, [&] { beats_lookahead(answer, last); });
}

}  // namespace exercise_05f
