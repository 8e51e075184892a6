// AdamW with its states on a disk beside AdamW in memory: the same bits, whatever the sizes of
// tiles and parameters, and nothing half-updated that anybody could go on with.

#include "offloaded.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <cerrno>

#include <tests/support/disk.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/offload.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

#include "host_update.hpp"
#include "tile_file.hpp"

namespace zero::optim {
namespace {

using testing::expect_error;
using testing::same_bits;
using testing::TestFolder;
using States = std::map<std::string, at::Tensor>;

at::Tensor random(std::int64_t elements, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn({elements}, generator);
}

// Of one tile, of none, of several, and none that a vector divides. The last never has a gradient.
const std::vector<std::int64_t> kSizes = {1, 15, 16, 0, 63, 64, 65, 5000, 777, 2, 3001, 40};

// Parameters with the same values in memory and offloaded, and their optimizers.
struct Pair {
  std::vector<at::Tensor> ours, theirs;
  std::unique_ptr<Optimizer> offloaded, resident;

  Pair(const OptimizerFactory& make, const OffloadOptions& options,
       const std::vector<at::ScalarType>& dtypes) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const at::Tensor values = random(kSizes[i], i).to(dtypes[i % dtypes.size()]);
      ours.push_back(values.clone().requires_grad_());
      theirs.push_back(values.clone().requires_grad_());
    }
    offloaded = with_offload(make, options)(ours);
    resident = make(theirs);
  }

  void set_gradients(int step) const {
    for (std::size_t i = 0; i < ours.size(); ++i) {
      // Now and then a parameter has no gradient: its steps and those of others then differ.
      const bool none = (i + static_cast<std::size_t>(step)) % 4 == 0 || i + 1 == ours.size();
      const at::Tensor gradient =
          none ? at::Tensor()
               : random(kSizes[i], 100 * static_cast<std::uint64_t>(step) + i)
                     .to(ours[i].scalar_type());
      ours[i].mutable_grad() = gradient;
      theirs[i].mutable_grad() = gradient;
    }
  }

  void step(int number) const {
    set_gradients(number);
    offloaded->step();
    resident->step();
  }

  void expect_same() const {
    EXPECT_TRUE(same_bits(ours, theirs));
    for (std::size_t i = 0; i < ours.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(offloaded->steps(ours[i]), resident->steps(theirs[i]));
      EXPECT_EQ(offloaded->state_bytes(ours[i]), resident->state_bytes(theirs[i]));
      EXPECT_EQ(offloaded->group_of(ours[i]), resident->group_of(theirs[i]));
      expect_same_states(offloaded->state(ours[i]), resident->state(theirs[i]));
    }
  }

  static void expect_same_states(const States& a, const States& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, state] : b) {
      ASSERT_TRUE(a.contains(name)) << name;
      EXPECT_EQ(a.at(name).scalar_type(), state.scalar_type()) << name;
      EXPECT_TRUE(same_bits({a.at(name)}, {state})) << name;
    }
  }
};

// AdamW in two groups.
OptimizerFactory two_groups() {
  return [](const std::vector<at::Tensor>& parameters) {
    const auto middle = parameters.begin() + static_cast<std::ptrdiff_t>(parameters.size() / 2);
    return make_adamw({{{parameters.begin(), middle}, {.learning_rate = 0.02, .weight_decay = 0}},
                       {{middle, parameters.end()}, {.learning_rate = 0.05, .beta2 = 0.9}}});
  };
}

struct Case {
  std::string name;
  OptimizerFactory make;
  std::vector<at::ScalarType> dtypes;
};

std::vector<Case> cases() {
  return {
      {"float32", two_groups(), {at::kFloat}},
      {"bfloat16", two_groups(), {at::kBFloat16}},
      {"bfloat16 with masters", with_master_weights(two_groups()), {at::kBFloat16}},
      {"three dtypes", with_master_weights(two_groups()), {at::kHalf, at::kFloat, at::kBFloat16}}};
}

TEST(Offloaded, HasTheBitsOfAdamWInMemory) {
  const TestFolder folder;
  for (const std::int64_t tile : {1, 8192, 1 << 20}) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(fmt::format("{}, tiles of {} bytes", c.name, tile));
      const Pair pair(c.make, {folder.path(), tile, false}, c.dtypes);
      for (int step = 0; step < 6; ++step) {
        if (step == 3) {
          pair.offloaded->set_learning_rates({0.01, 0.03});
          pair.resident->set_learning_rates({0.01, 0.03});
        }
        pair.step(step);
        if (step != 4) pair.expect_same();  // a step after another with nothing between them
      }
    }
  }
  EXPECT_THAT(folder.listing(), ::testing::IsEmpty());
}

TEST(Offloaded, TakesGroupsByName) {
  const TestFolder folder;
  const auto matrices_first = [](const std::string& /*name*/, const at::Tensor& parameter) {
    return std::size_t{parameter.dim() > 1 ? 0U : 1U};
  };
  for (const bool masters : {false, true}) {
    SCOPED_TRACE(masters);
    torch::nn::Linear ours(40, 30), theirs(40, 30);
    const auto make = [&](torch::nn::Linear& layer) {
      layer->to(masters ? at::kBFloat16 : at::kFloat);
      const OptimizerFactory named =
          adamw(*layer, {{.weight_decay = 0.1}, {.weight_decay = 0}}, matrices_first);
      return masters ? with_master_weights(named) : named;
    };
    const OptimizerFactory make_ours = make(ours), make_theirs = make(theirs);
    const auto mine = ours->parameters(), others = theirs->parameters();
    for (std::size_t i = 0; i < mine.size(); ++i) others[i].detach().copy_(mine[i].detach());
    const auto offloaded = with_offload(make_ours, {folder.path(), 8192, false})(mine);
    const auto resident = make_theirs(others);
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < mine.size(); ++i) {
        mine[i].mutable_grad() =
            random(mine[i].numel(), 10 * step + i).to(mine[i].scalar_type()).view(mine[i].sizes());
        others[i].mutable_grad() = mine[i].grad();
      }
      offloaded->step();
      resident->step();
      EXPECT_TRUE(same_bits(mine, others));
    }
    EXPECT_EQ(offloaded->group_of(mine[0]), 0U);
    EXPECT_EQ(offloaded->group_of(mine[1]), 1U);
  }
}

TEST(Offloaded, MastersFollowScalesAndWhatIsWrittenIntoParameters) {
  const TestFolder folder;
  const Pair pair(with_master_weights(two_groups()), {folder.path(), 8192, false},
                  {at::kHalf, at::kFloat});
  for (int step = 0; step < 4; ++step) {
    for (Optimizer* optimizer : {pair.offloaded.get(), pair.resident.get()}) {
      optimizer->set_gradient_scale(step % 2 == 0 ? 1 : 1024);
    }
    for (const auto* parameters : {&pair.ours, &pair.theirs}) {
      (*parameters)[7].detach().narrow(0, 100, 2000).fill_(step);
    }
    pair.step(step);
    pair.expect_same();
  }
}

// From memory to the disk, on, and back; also one parameter after the other in any order.
TEST(Offloaded, TakesStatesFromAnOptimizerInMemoryAndGivesThemBack) {
  const TestFolder folder;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Pair pair(c.make, {folder.path(), 8192, false}, c.dtypes);
    for (int step = 0; step < 3; ++step) pair.step(step);
    const Pair other(c.make, {folder.path(), 12288, false}, c.dtypes);
    other.step(7);
    const at::NoGradGuard no_grad;
    for (std::size_t k = 0; k < kSizes.size(); ++k) {
      const std::size_t i = k * 5 % kSizes.size();
      other.ours[i].copy_(pair.ours[i]);
      other.theirs[i].copy_(pair.ours[i]);
      States copies;
      for (const auto& [name, state] : pair.resident->state(pair.theirs[i])) {
        copies[name] = state.clone();
      }
      other.offloaded->load_state(other.ours[i], pair.resident->steps(pair.theirs[i]), copies);
      other.resident->load_state(other.theirs[i], pair.offloaded->steps(pair.ours[i]),
                                 pair.offloaded->state(pair.ours[i]));
    }
    other.expect_same();
    for (int step = 3; step < 6; ++step) {
      pair.step(step);
      other.step(step);
    }
    other.expect_same();
    EXPECT_TRUE(same_bits(other.ours, pair.theirs));
  }
}

TEST(Offloaded, RefusesStatesThatAreNotItsOwn) {
  const TestFolder folder;
  const at::Tensor p = random(100, 1), stranger = random(100, 1);
  const auto optimizer = with_offload(adamw(), {folder.path(), 4096, false})({p});
  const at::Tensor state = at::zeros({100});
  const auto refused = [&](const at::Tensor& of, std::int64_t steps, const States& states,
                           const std::string& why) {
    expect_error([&] { optimizer->load_state(of, steps, states); }, {why});
  };
  refused(stranger, 1, {{"exp_avg", state}, {"exp_avg_sq", state}}, "does not hold");
  refused(p, 1, {{"exp_avg", state}}, "needs these states: exp_avg, exp_avg_sq");
  refused(p, 0, {{"exp_avg", state}, {"exp_avg_sq", state}}, "after 0 updates");
  refused(p, 1, {{"exp_avg", state}, {"exp_avg_sq", state[0]}}, "has 1 elements");
  refused(p, 1, {{"exp_avg", state}, {"exp_avg_sq", state.to(at::kHalf)}}, "of Half");
  EXPECT_EQ(optimizer->steps(p), 0);
  EXPECT_TRUE(optimizer->state(p).empty());
}

TEST(Offloaded, ForgetsAndReplacesParametersUntilThereAreStates) {
  const TestFolder folder;
  const Pair pair(two_groups(), {folder.path(), 8192, false}, {at::kFloat});
  const auto change = [](Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
    const at::Tensor shard = parameters[7].detach().narrow(0, 1000, 1234);
    optimizer.replace([&](const at::Tensor& p) {
      if (p.is_same(parameters[7])) return shard;
      return p.is_same(parameters[2]) ? at::Tensor() : p;
    });
    shard.mutable_grad() = random(1234, 5);
    return shard;
  };
  const at::Tensor ours = change(*pair.offloaded, pair.ours);
  const at::Tensor theirs = change(*pair.resident, pair.theirs);
  for (int step = 0; step < 3; ++step) pair.step(step);
  EXPECT_TRUE(same_bits({ours}, {theirs}));
  EXPECT_EQ(pair.offloaded->steps(ours), 3);
  EXPECT_EQ(pair.offloaded->steps(pair.ours[2]), 0);
  pair.expect_same();
  expect_error([&] { change(*pair.offloaded, pair.ours); }, {"before the first step()"});
  pair.expect_same();
}

TEST(Offloaded, HoldsTwoTilesAndMovesEachStateOnce) {
  const TestFolder folder;
  constexpr std::int64_t kTile = 1 << 16, kElements = 100'000;
  const auto held = [] { return memory::snapshot()[memory::Category::kOptimizer]; };
  for (const bool masters : {false, true}) {
    const at::Tensor p = random(kElements, 1).to(masters ? at::kBFloat16 : at::kFloat);
    const std::int64_t each = masters ? 12 : 8, before = held();
    const auto optimizer = with_offload(masters ? with_master_weights(adamw()) : adamw(),
                                        {folder.path(), kTile, false})({p});
    EXPECT_EQ(held(), before);
    EXPECT_EQ(optimizer->state_bytes(p), each * kElements);
    p.mutable_grad() = random(kElements, 2).to(p.scalar_type());
    optimizer->step();
    const std::int64_t resident = 2 * (kTile + TileFile::kAlignment);
    EXPECT_EQ(optimizer->resident_bytes(each * kElements), resident);
    EXPECT_EQ(optimizer->resident_bytes(0), 0);
    EXPECT_EQ(held() - before, resident);
    EXPECT_EQ(optimizer->offload_traffic().read_bytes, 0) << "there was nothing to read";
    memory::reset_peaks();
    const OffloadTraffic first = optimizer->offload_traffic();
    optimizer->step();
    EXPECT_EQ(memory::snapshot().peak_of(memory::Category::kOptimizer) - before, resident);
    // Pieces of 64 elements; whole tiles, and the odd end rounded up to the alignment.
    const std::int64_t in_tile = kTile / (64 * each) * 64, tiles = kElements / in_tile;
    const std::int64_t end = (kElements - tiles * in_tile + 63) / 64 * 64 * each;
    const std::int64_t expected =
        tiles * TileFile::aligned(in_tile * each) + TileFile::aligned(end);
    EXPECT_LT(expected, each * kElements + (tiles + 1) * TileFile::kAlignment);
    EXPECT_EQ(optimizer->offload_traffic().read_bytes, expected);
    EXPECT_EQ(optimizer->offload_traffic().written_bytes - first.written_bytes, expected);
  }
}

TEST(Offloaded, OtherOptimizersAreRefusedByName) {
  const TestFolder folder;
  const at::Tensor p = random(10, 1).requires_grad_();
  const auto refused = [&](const OptimizerFactory& make, const std::string& kind) {
    expect_error([&] { with_offload(make, {.folder = folder.path(), .says_how = false})({p}); },
                 {"the states of " + kind + " cannot be offloaded", "optim::adamw()"});
  };
  refused(testing::wrapped<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1)), "torch AdamW");
  const OptimizerFactory inside =
      with_offload(adamw(), {.folder = folder.path(), .says_how = false});
  expect_error([&] { with_master_weights(inside)({p}); }, {"with_offload() goes around"});
}

// A bad byte in a step, or a load in which the disk is full after so many tiles: nobody uses the
// part that is as it should be. What never had states has none to load.
TEST(Offloaded, AfterAFailureNothingGoesOnUntilAllStatesAreLoaded) {
  const TestFolder folder;
  for (const Case& c : cases()) {
    for (const int tiles : {-1, 1}) {  // -1: a step
      SCOPED_TRACE(fmt::format("{}, after {} tiles", c.name, tiles));
      const Pair pair(c.make, {folder.path(), 4096, false}, c.dtypes);
      for (int step = 0; step < 3; ++step) pair.step(step);
      std::vector<at::Tensor> weights;
      std::vector<States> states;
      for (const at::Tensor& p : pair.ours) {
        weights.push_back(p.detach().clone());
        states.push_back(pair.offloaded->state(p));
      }
      pair.set_gradients(3);
      if (tiles < 0) {
        pair.offloaded->stream_offloaded();  // leaves no tile in memory
        testing::spoil_offloaded_file(folder.path(), 2 * 4096 + 100);
        expect_error([&] { pair.offloaded->step(); },
                     {folder.path().string(), "tile 2 has other bytes"});
      } else {
        std::atomic<int> left = tiles;
        const testing::Disk full([&](const testing::Transfer& t) -> ssize_t {
          if (!t.writes || left-- > 0) return t.as_asked();
          errno = ENOSPC;
          return -1;
        });
        expect_error([&] { pair.offloaded->load_state(pair.ours[7], 2, states[7]); },
                     {folder.path().string(), "could not be written", "No space left"});
      }
      const std::vector<std::string> says = {"lost since an update or a load failed: load a"};
      expect_error([&] { pair.offloaded->state(pair.ours[5]); }, says);
      expect_error([&] { pair.offloaded->state_types(pair.ours[7]); }, says);
      EXPECT_TRUE(pair.offloaded->state(pair.ours.back()).empty());
      for (std::size_t i = 0; i + 1 < kSizes.size(); ++i) {
        expect_error([&] { pair.offloaded->step(); }, says);
        const at::NoGradGuard no_grad;
        pair.ours[i].copy_(weights[i]);
        pair.offloaded->load_state(pair.ours[i], pair.resident->steps(pair.theirs[i]), states[i]);
      }
      pair.expect_same();
      for (int step = 3; step < 6; ++step) pair.step(step);
      pair.expect_same();
    }
  }
}

// The same of an update in the host's memory.
TEST(Offloaded, AfterAFailedUpdateOnTheHostNothingGoesOnUntilStatesAreLoaded) {
  const at::Tensor p = random(100, 1);
  p.mutable_grad() = random(100, 2);
  bool fails = false;
  const auto optimizer = update_on_host(testing::hooked_with_states(adamw(),
                                                                    [&fails] {
                                                                      if (fails)
                                                                        throw Error("no more");
                                                                    }),
                                        {p});
  optimizer->step();
  States states;
  for (const auto& [name, state] : optimizer->state(p)) states[name] = state.clone();
  fails = true;
  expect_error([&] { optimizer->step(); }, {"no more"});
  fails = false;
  for (int again = 0; again < 2; ++again) {
    expect_error([&] { optimizer->step(); }, {"an update on the host has failed"});
  }
  optimizer->load_state(p, 1, states);
  optimizer->step();
}

// As in a step that is given up after its gradients were scaled.
TEST(Offloaded, ForgetsTheFactorsOfGradientsThatItDidNotUse) {
  const at::Tensor p = random(100, 1), q = p.clone();
  const auto ours = update_on_host(testing::sgd(0.1), {p}), theirs = testing::sgd(0.1)({q});
  p.mutable_grad() = random(100, 2);
  ours->finish_taking();
  ours->scale_gradients({p.grad()}, 0.5);
  p.mutable_grad() = random(100, 3);
  q.mutable_grad() = random(100, 3);
  ours->step();
  theirs->step();
  EXPECT_TRUE(at::equal(p, q));
}

}  // namespace
}  // namespace zero::optim
