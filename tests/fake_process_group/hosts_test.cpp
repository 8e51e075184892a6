// What leaves a host: one formula for each mode, beside the planner's bytes in a ring, the counters
// of a rank, which sends directly, and the numbers of lessons 06 and 07.
#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include <tests/support/batch_model.hpp>
#include <tests/support/deferred.hpp>
#include <tests/support/states.hpp>
#include <tools/plan/planner.hpp>
#include <tools/support/fake_backend.hpp>
#include <zero/optim/adamw.hpp>

#include "unpadded.hpp"

namespace zero::testing {
namespace {

using dist::Purpose;

// R hosts of S ranks. In V: a gather or a reduction over all ranks sends a; a hop between the ranks
// of a place b; a value in 8 or 4 bits is so much of one of 4 bytes; the root is g of the model.
struct Hosts {
  int hosts, per_host;
  bool direct = false;  // each rank to each, in place of a ring
  double g = 0, in_8 = 1.0 / 4, in_4 = 1.0 / 8;

  double b() const { return (hosts - 1.0) / hosts; }
  double a() const {
    const double n = hosts * per_host;
    return direct ? per_host * b() : (n - 1) / n;
  }
};

// As the lessons have them, with 1/4 and 1/8.
double leaves_a_host(const std::string& mode, const Hosts& h) {
  const double a = h.a(), b = h.b();
  if (mode == "engine1") return 2 * a;
  if (mode == "engine3") return (3 - h.g) * a;
  if (mode == "hsdp3") return 2 * b;
  if (mode == "hpz") return 2 * a;
  if (mode == "qwz") return (1 + (2 - h.g) * h.in_8) * a;
  if (mode == "qgz") return (2 - h.g) * a + h.in_4 * b;
  return h.in_8 * a + h.in_4 * b;  // zeropp
}

const std::vector<const char*> kModes = {"engine3", "hsdp3", "hpz", "qwz", "qgz", "zeropp"};

TEST(PlannerOnHosts, HasWhatTheFormulasLeaveAHostInARing) {
  plan::Request request;
  request.policy = plan::fp32();
  request.model = plan::model_of_size(plan::kBillion, 10);
  request.model.root = plan::kBillion / 4;
  request.hosts.block = request.hosts.gradient_block = std::int64_t{1} << 60;  // no scales
  for (const auto& [hosts, per_host] :
       {std::pair{2, 1}, {2, 2}, {2, 3}, {3, 2}, {4, 1}, {4, 8}, {3, 7}}) {
    request.world_size = hosts * per_host;
    request.hosts.ranks_per_host = per_host;
    for (std::size_t i = 0; i < kModes.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} on {} x {}", kModes[i], hosts, per_host));
      EXPECT_NEAR(plan::make_plan(request).hosts.at(i).leaves / 4e9,
                  leaves_a_host(kModes[i], {hosts, per_host, false, 0.25}), 1e-9);
    }
  }
}

// A way to train on hosts, and what a rank is counted to send in a step.
struct OnHosts {
  plan::HostPlan planned;
  train::Costs costs;
  std::int64_t sent = 0, between = 0;
};

// ZeRO-3, HSDP and the parts of ZeRO++ with blocks of 64 elements, in the order of kModes.
std::vector<OnHosts> ways_on_hosts(int rank, int world_size, int ranks_per_host) {
  plan::Request request;
  request.model = plan::model_of(unpadded(/*tied=*/false), "unpadded");
  request.policy = plan::fp32();
  request.sequence = 16;
  request.world_size = world_size;
  request.hosts.ranks_per_host = ranks_per_host;
  request.hosts.block = request.hosts.gradient_block = 64;
  std::vector<OnHosts> ways;
  for (std::string mode : kModes) {
    dist::Communicator world = dist::connect_fake(rank, world_size, ranks_per_host);
    const auto model = make_deferred<nn::Llama>(unpadded(/*tied=*/false));
    nn::SeededValues values(3);
    if (ways.size() > 1) mode += ":quantization_block=64:gradient_block=64";
    const auto strategy = make_strategy(mode, {*model, world, optim::adamw(), &values});
    const at::Tensor ids = (at::arange(16).view({1, 16}) * 131).remainder(256);
    const dist::Traffic before = world.traffic();
    tools::Trainer(*strategy, losses_of(*strategy))
        .step({{.inputs = ids, .targets = ids.flip(1), .loss_terms = 16}});
    const dist::Traffic sent = world.traffic().since(before);
    ways.push_back({.planned = plan::make_plan(request).hosts.at(ways.size()),
                    .costs = strategy->costs(),
                    .sent = training_bytes(sent),
                    .between = sent.between_hosts(Purpose::kParameter) +
                               sent.between_hosts(Purpose::kGradient)});
  }
  return ways;
}

// Shards are whole blocks, so that there are as many scales as the planner counts: 4 bytes for
// each.
TEST(PlannerOnHosts, HasTheBytesOfHsdpAndOfThePartsAndFormulasThoseBetweenHosts) {
  on_ranks(1, [](dist::Communicator&) {
    const plan::Model model = plan::model_of(unpadded(/*tied=*/false), "");
    const auto elements = static_cast<double>(model.parameters);
    const double g = static_cast<double>(model.root) / elements, scale = 4.0 / 64;
    for (const auto& [world_size, per_host] : {std::pair{4, 2}, {4, 1}, {2, 1}}) {
      const Hosts direct{world_size / per_host, per_host,         true, g,
                         (1 + scale) / 4,       (0.5 + scale) / 4};
      const std::vector<OnHosts> ways = ways_on_hosts(1, world_size, per_host);
      for (std::size_t i = 0; i < ways.size(); ++i) {
        const OnHosts& way = ways[i];
        SCOPED_TRACE(
            fmt::format("{} on {} ranks, {} a host", way.planned.name, world_size, per_host));
        EXPECT_EQ(text_of(way.planned.states), text_of(way.costs.at_rest));
        const plan::HostPhase sum = way.planned.sum();
        EXPECT_EQ(sum.inside + sum.between, static_cast<double>(way.sent));
        EXPECT_DOUBLE_EQ(static_cast<double>(per_host * way.between),
                         4 * elements * leaves_a_host(kModes[i], direct));
      }
    }
  });
}

// ---- the numbers of the lessons ----

void expect_in(const std::string& path, const std::vector<std::string>& words) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::ranges::replace(text, '\n', ' ');
  for (const std::string& one : words) EXPECT_NE(text.find(one), std::string::npos) << one;
}

// "2.8125": in V, four decimals without zeros at the end.
std::string number(const std::string& mode, const Hosts& hosts) {
  std::string digits = fmt::format("{:.4f}", leaves_a_host(mode, hosts));
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.ends_with('.')) digits.pop_back();
  return digits;
}
std::string ring(const std::string& mode, int hosts) { return number(mode, {hosts, 8}); }
std::string here(const std::string& mode, int hosts) { return number(mode, {hosts, 8, true}); }

TEST(BytesBetweenHosts, StandInLesson06) {
  const auto row = [](const char* name, const char* formula, const char* mode) {
    return fmt::format("| {} | {} | {} | {} | {} | {} |", name, formula, ring(mode, 2),
                       ring(mode, 4), here(mode, 2), here(mode, 4));
  };
  expect_in("06_hsdp/README.md",
            {row("chapter 05, stages 1 and 2", "2a", "engine1"),
             row("chapter 05, stage 3", "(3 - g) a", "engine3"),
             row("HSDP, every stage", "2 (R-1)/R", "hsdp3"),
             fmt::format("together {} V. Here each rank sends to each, and {} V leave a host",
                         ring("engine3", 2), here("engine3", 2)),
             fmt::format("A host sends 8 x 0.1875 V = {} V.", ring("hsdp3", 4)),
             fmt::format("sends 3V x 31/32 = {} V. A host sends as much in a ring, and 3V x 8 x "
                         "3/4 = {} V here",
                         ring("engine3", 4), here("engine3", 4))});
}

TEST(BytesBetweenHosts, StandInLesson07) {
  std::vector<std::string> all;
  for (const auto& [mode, formula] : {std::pair{"engine3", "(3 - g) a"},
                                      {"hpz", "2a"},
                                      {"qwz", "(1.5 - g/4) a"},
                                      {"qgz", "(2 - g) a + b/8"},
                                      {"zeropp", "a/4 + b/8"},
                                      {"hsdp3", "2b"}}) {
    all.push_back(fmt::format("| `{}` | {} | {} | {} | {} | {} |", mode, formula,
                              number(mode, {2, 2}), number(mode, {2, 2, true}), ring(mode, 2),
                              here(mode, 2)));
  }
  // On paper.
  all.push_back(
      fmt::format("engine3: {} V in a ring, {} V here", ring("engine3", 4), here("engine3", 4)));
  all.push_back(fmt::format("hpZ: {} V, {} V;", ring("hpz", 4), here("hpz", 4)));
  all.push_back(fmt::format("zeropp: {} V, {} V;", ring("zeropp", 4), here("zeropp", 4)));
  all.push_back(fmt::format("hsdp3: {} V;", ring("hsdp3", 4)));
  // Predict, then run: from each of two ranks of a host.
  const Hosts two{2, 2, true, /*g=*/0.2105};
  all.push_back(fmt::format("to the other group much less: {:.4f} V, not {:.4f} V.",
                            leaves_a_host("hpz", two) / 2,
                            leaves_a_host("engine3", two) / 2 + 1e-9));  // 1.39475
  expect_in("07_zero_plus_plus/README.md", all);
}

}  // namespace
}  // namespace zero::testing
