// Parameters and buffers whose memory or type is unusual: right bits, or an error on every rank
// that names them. The measure is the plain module in one process.

#include <ATen/ops/complex.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/plain_ranks.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>
#include <tests/support/thrown_by.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>
#include <zero/memory/storage.hpp>

namespace zero::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kWide = 6;

at::Tensor odd_values(at::IntArrayRef sizes, std::uint64_t seed,
                      at::ScalarType dtype = at::kFloat) {
  return random(sizes, seed, /*gradient=*/false, dtype) * 0.3;
}

// y = x weight, whose parts a test may add to.
struct OddNet : BatchModel {
  OddNet() : weight(register_parameter("weight", odd_values({kWide, kWide}, 3))) {}
  at::Tensor predict(const data::Batch& batch) {
    return run([&] {
      const at::Tensor y = batch.inputs.matmul(weight);
      return then ? then(y) : y;
    });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return (predict(batch) - batch.targets).square().mean();
  }
  at::Tensor weight;
  std::function<at::Tensor(const at::Tensor&)> then;
};

using OddChange = std::function<void(OddNet&)>;

data::Batch odd_batch(int rank, int step) {
  const auto seed = static_cast<std::uint64_t>(100 * step + rank + 10);
  return {.inputs = odd_values({4, kWide}, seed),
          .targets = odd_values({4, kWide}, seed + 50),
          .loss_terms = 4};
}

struct OddRun {
  OddRun(dist::Communicator& communicator, const EngineConfig& options, const OddChange& change)
      : rank(communicator.rank()) {
    change(net);
    for (const at::Tensor& buffer : net.buffers()) {
      if (rank > 0) memory::raw(buffer).zero_();  // rank 0's values count
    }
    engine = std::make_unique<Engine>(net, communicator, sgd(0.1), options);
  }
  void steps(int first, int last) {
    for (int s = first; s < last; ++s) {
      engine->backward(forward_batch(*engine, odd_batch(rank, s)));
      EXPECT_TRUE(engine->step());
    }
  }
  int rank;
  OddNet net;
  std::unique_ptr<Engine> engine;
};

std::vector<EngineConfig> odd_options(int ranks) {
  std::vector<EngineConfig> all;
  for (const int stage : {0, 1, 2, 3}) all.push_back({.stage = stage});
  all.push_back(engine_config(ranks == 2 ? R"({"stage": 2, "shard_size": 1})" : R"({"stage": 2})"));
  all.push_back({.stage = 3, .whole_below = 1000});
  all.push_back({.stage = 3, .bucket_bytes = 8});
  return all;
}

ZERO_TESTS_ON_RANKS(MemoryOfParameters, 2, 3);

struct OddModel {
  const char* name;
  OddChange change;
  const char* says = nullptr;  // of those that are refused
};

OddChange with_odd(const std::function<at::Tensor(const OddNet&)>& odd) {
  return [=](OddNet& net) { net.register_parameter("odd", odd(net)); };
}
OddChange with_buffer(const char* name, const std::function<at::Tensor(const at::Tensor&)>& view) {
  return [=](OddNet& net) { net.register_buffer(name, view(net.weight.detach())); };
}

const std::vector<OddModel> kRefused = {
    {"complex", with_odd([](auto&) { return at::complex(odd_values({3}, 1), odd_values({3}, 2)); }),
     "parameter 'odd' is ComplexFloat"},
    {"channels last", with_odd([](auto&) {
       return odd_values({2, 3, 4, 5}, 1).contiguous(at::MemoryFormat::ChannelsLast);
     }),
     "parameter 'odd' is not contiguous"},
    {"expanded", with_odd([](auto&) { return at::ones({1}).expand({4}); }),
     "parameter 'odd' is not contiguous"},
    {"shared memory", with_odd([](auto& net) { return net.weight.detach().view({-1}); }),
     "parameters 'weight' and 'odd' are two tensors over the same memory"},
    {"a buffer that is a view", with_buffer("mask", [](auto& weight) { return weight[2]; }),
     "buffer 'mask' uses the memory of parameter 'weight'"},
};

TEST_P(MemoryOfParameters, ThatNoStageCanTrainIsRefusedOnEveryRank) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const EngineConfig& options : odd_options(communicator.size())) {
      for (const OddModel& refused : kRefused) {
        // On all ranks, or on the last one alone.
        for (const int first : {0, communicator.size() - 1}) {
          SCOPED_TRACE(
              fmt::format("{}, {}, from rank {}", base::text_of(options), refused.name, first));
          const bool odd = communicator.rank() >= first;
          const OddChange change = odd ? refused.change : [](OddNet&) {};
          expect_error([&] { OddRun(communicator, options, change); }, {refused.says});
        }
      }
    }
  });
}

// The plain module's loop with the batches of all ranks.
std::vector<at::Tensor> plainly_trained(int ranks, const OddChange& change, int steps) {
  OddNet net;
  change(net);
  const std::vector<at::Tensor> parameters = parameters_of(net);
  PlainRanks trained(parameters, ranks, sgd(0.1));
  for (int s = 0; s < steps; ++s) {
    trained.backward([&](int rank) { return net.loss(odd_batch(rank, s)); });
    trained.step();
  }
  return parameters;
}

const std::vector<OddModel> kTrained = {
    {"three types in one unit",
     [](OddNet& net) {
       const auto wide = net.register_parameter("wide", odd_values({kWide}, 1, at::kDouble));
       const auto half = net.register_parameter("half", odd_values({kWide}, 2).to(at::kBFloat16));
       net.then = [=](const at::Tensor& y) {
         return (y.to(at::kDouble) * wide).to(at::kFloat) + half.to(at::kFloat);
       };
     }},
    {"frozen integers and complex numbers",
     [](OddNet& net) {
       const auto levels =
           net.register_parameter("levels", longs({1, 2, 3, 4, 5, 6}).to(at::kChar), false);
       const auto on = net.register_parameter("on", longs({1, 0, 1, 1, 0, 1}).to(at::kBool), false);
       const auto turn = net.register_parameter(
           "turn", at::complex(odd_values({kWide}, 1), odd_values({kWide}, 2)), false);
       net.then = [=](const at::Tensor& y) { return at::real(y * levels * on * turn); };
     }},
    {"buffers of many types",
     [](OddNet& net) {
       const auto seen = net.register_buffer("seen", at::zeros({}, at::kLong));
       const auto mask = net.register_buffer("mask", longs({1, 0, 1, 1, 0, 1}).to(at::kBool));
       const auto turn =
           net.register_buffer("turn", at::complex(odd_values({kWide}, 1), odd_values({kWide}, 2)));
       const auto small = net.register_buffer("small", longs({1, 2}).to(at::kShort));
       const auto turned = net.register_buffer("turned", odd_values({kWide, 4}, 3).t());
       const auto wide = net.register_buffer("wide", odd_values({kWide}, 4).expand({4, kWide}));
       net.then = [=](const at::Tensor& y) {
         seen.add_(1);
         return at::real(y * mask * turn * small[1]) + turned * wide;
       };
     }},
    {"convolution with a memory format",
     [](OddNet& net) {
       // Contiguous either way, because there is one channel.
       const auto kernel = net.register_parameter(
           "kernel", odd_values({1, 1, 3, 3}, 1).contiguous(at::MemoryFormat::ChannelsLast));
       net.then = [=](const at::Tensor& y) {
         const at::Tensor image = y.view({4, 1, 2, 3}).contiguous(at::MemoryFormat::ChannelsLast);
         return at::conv2d(image, kernel, {}, {1, 1}, {1, 1}).reshape({4, kWide});
       };
     }},
};

TEST_P(MemoryOfParameters, OfManyShapesAndTypesTrainsAsThePlainModule) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const OddModel& trained : kTrained) {
      const auto expected = plainly_trained(communicator.size(), trained.change, 3);
      for (const EngineConfig& options : odd_options(communicator.size())) {
        SCOPED_TRACE(fmt::format("{}, {}", base::text_of(options), trained.name));
        OddRun run(communicator, options, trained.change);
        run.steps(0, 3);
        EXPECT_TRUE(same_bits(whole_weights(run.engine->strategy()), expected));
        run.engine->release();
        EXPECT_TRUE(same_bits(parameters_of(run.net), expected));
      }
    }
  });
}

// A tensor that shares a parameter's memory would be a stale copy.
TEST_P(MemoryOfParameters, ThatATensorSharedBeforeOrMeanwhileIsNotReadAsIfItWere) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    for (const EngineConfig& options : odd_options(communicator.size())) {
      SCOPED_TRACE(base::text_of(options));
      at::Tensor before, kept;
      const OddChange take = [&](OddNet& net) {
        before = net.weight.detach()[1];
        kept = net.weight.detach().clone();
      };
      OddRun run(communicator, options, take);
      EXPECT_THAT(thrown_by([&] { before.sum(); }),
                  HasSubstr("that parameter 'weight' had before"));
      run.steps(0, 1);
      at::Tensor meanwhile;
      {
        const train::UnshardedParameters whole(run.engine->strategy(), 0);
        meanwhile = run.net.weight.detach().view({-1});
      }
      run.steps(1, 2);
      {
        const train::UnshardedParameters whole(run.engine->strategy(), 0);
        EXPECT_TRUE(at::equal(meanwhile, run.net.weight.detach().view({-1})));
        EXPECT_FALSE(at::equal(kept, run.net.weight));
      }
      run.engine->release();
      EXPECT_NE(thrown_by([&] { meanwhile.sum(); }), "");
      EXPECT_EQ(thrown_by([&] { run.net.weight.sum(); }), "");
    }
  });
}

// Another tensor in a parameter's place: what would be trained is not what the model shows.
TEST_P(MemoryOfParameters, ThatSetDataChangesIsNoticed) {
  on_ranks(GetParam(), [](dist::Communicator& communicator) {
    const std::map<std::string, std::function<at::Tensor(const at::Tensor&)>> kinds = {
        {"a copy", [](auto& w) { return w.clone(); }},
        {"the same memory, transposed", [](auto& w) { return w.t(); }},
        {"a part of it", [](auto& w) { return w[0]; }}};
    for (const EngineConfig& options : odd_options(communicator.size())) {
      for (const auto& [name, other] : kinds) {
        SCOPED_TRACE(fmt::format("{}, {}", base::text_of(options), name));
        OddRun run(communicator, options, [](OddNet&) {});
        run.steps(0, 1);
        {
          const train::UnshardedParameters whole(run.engine->strategy(), 0);
          run.net.weight.set_data(other(run.net.weight.detach()));
        }
        expect_error([&] { forward_batch(*run.engine, odd_batch(run.rank, 1)); },
                     {"parameter 'weight' has other memory"});
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing
