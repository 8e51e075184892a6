// The small programs beside the chapters' classes: the same model, batches and optimizer end with
// the same bits.

#include <fmt/format.h>

#include <string_view>

#include <grading/small_formulas.hpp>
#include <tests/support/deferred.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/memory/accounting.hpp>

#include "small_model.hpp"
#include "small_program.hpp"

namespace zero {
namespace {

// As the programs compute and print it.
std::string digest_of(const std::vector<at::Tensor>& weights) {
  std::size_t digest = 0;
  for (const at::Tensor& weight : weights) {
    const auto* const bits = static_cast<const char*>(weight.const_data_ptr());
    digest = 31 * digest + std::hash<std::string_view>()({bits, weight.nbytes()});
  }
  return fmt::format("{:016x}", digest);
}

// Trains as the programs do, under `mode`; `parts` and `block` as in SmallLayerFunction. Called by
// all ranks.
std::string digest_of_class(dist::Communicator& communicator, const std::string& mode,
                            int parts = 1, std::int64_t block = 0) {
  const auto model = testing::make_deferred<testing::SmallModel>(parts, block);
  testing::SmallValues values;
  const train::StrategyArguments arguments{*model, communicator, testing::small_adamw(), &values,
                                           /*variant=*/""};
  const auto strategy = testing::make_strategy(mode, arguments);
  for (int step = 1; step <= 5; ++step) {
    strategy->backward(
        testing::forward_batch(*strategy, testing::small_batch(communicator.rank(), step)));
    testing::finish_step(*strategy);
    strategy->zero_grad();
  }
  return digest_of(testing::whole_weights(*strategy));
}

struct Pair {
  std::string chapter;  // of the small program
  std::string mode;     // the class that does the same
};

ZERO_TESTS_ON_RANKS(SmallProgram, 1, 2, 3, 4, 6, 8);

TEST_P(SmallProgram, EndsWithTheBitsOfTheChaptersClass) {
  const int ranks = GetParam();
  const std::vector<Pair> pairs = {{"00_simple_ddp", "ddp"},
                                   {"01_zero1", "zero1"},
                                   {"02_zero2", "zero2"},
                                   {"03_zero3", "zero3"},
                                   {"04_tensor_sharding", "tensor_zero3"},
                                   {"05_prefetch_overlap", "engine3"}};
  for (const Pair& pair : pairs) {
    SCOPED_TRACE(pair.chapter);
    const std::vector<std::string> digests =
        testing::run_small_program(pair.chapter, ranks).digests;
    ASSERT_EQ(digests.size(), static_cast<std::size_t>(ranks));
    testing::on_ranks(ranks, [&](dist::Communicator& communicator) {
      EXPECT_EQ(digest_of_class(communicator, pair.mode),
                digests[static_cast<std::size_t>(communicator.rank())]);
    });
  }
}

// With groups as well: the order of additions is that of DDP with a hierarchical all-reduce.
TEST_P(SmallProgram, WithGroupsEndsWithTheBitsOfTheChaptersClassAndOfDdpInThisOrder) {
  const int ranks = GetParam();
  const std::vector<std::string> digests = testing::run_small_program("06_hsdp", ranks).digests;
  ASSERT_EQ(digests.size(), static_cast<std::size_t>(ranks));
  const int sharing = exercise::sharing_ranks(6, ranks);
  for (const char* const mode : {"hddp", "hsdp3"}) {
    SCOPED_TRACE(mode);
    testing::on_ranks(ranks, [&](dist::Communicator& communicator) {
      EXPECT_EQ(digest_of_class(communicator, fmt::format("{}:shard_size={}", mode, sharing)),
                digests[static_cast<std::size_t>(communicator.rank())]);
    });
  }
}

// On a mesh as well: DDP between the ranks of the data axis, each of which computes the two parts
// of every product as the two ranks of its tensor axis do.
TEST_P(SmallProgram, OnAMeshEndsWithTheBitsOfDdpThatAddsTheSameParts) {
  const int ranks = GetParam();
  const std::vector<std::string> digests =
      testing::run_small_program("08_tensor_parallel", ranks).digests;
  ASSERT_EQ(digests.size(), static_cast<std::size_t>(ranks));
  const int parts = ranks % 2 == 0 ? 2 : 1;
  testing::on_ranks(ranks / parts, [&](dist::Communicator& communicator) {
    const std::string right = digest_of_class(communicator, "ddp", parts);
    for (const std::string& digest : digests) EXPECT_EQ(digest, right);
  });
}

// The parameters of the model, with their first values.
std::vector<at::Tensor> first_weights(testing::SmallModel& model) {
  testing::SmallValues values;
  std::vector<at::Tensor> weights;
  for (nn::Parameter& parameter : nn::list_parameters(model).parameters) {
    values.fill(parameter, parameter.tensor);
    weights.push_back(parameter.tensor);
  }
  return weights;
}

// One process that trains the whole model with the micro-batches of the pipeline.
std::string digest_of_micro_batches() {
  testing::SmallModel model;
  const std::vector<at::Tensor> weights = first_weights(model);
  const auto optimizer = testing::small_adamw()(weights);
  for (int step = 1; step <= 5; ++step) {
    for (int m = 0; m < exercise::kMicroBatches; ++m) {
      model.loss(testing::small_batch(m, step)).backward();
    }
    for (const at::Tensor& weight : weights) weight.mutable_grad().div_(exercise::kMicroBatches);
    optimizer->step();
    for (const at::Tensor& weight : weights) weight.mutable_grad().reset();
  }
  return digest_of(weights);
}

TEST_P(SmallProgram, InAPipelineEndsWithTheBitsOfOneProcessThatHasTheWholeModel) {
  std::vector<std::string> digests;
  for (const char* const schedule : {"1f1b", "gpipe"}) {
    const auto output = testing::run_small_program("09_pipeline", GetParam(), schedule);
    digests.insert(digests.end(), output.digests.begin(), output.digests.end());
  }
  ASSERT_EQ(digests.size(), static_cast<std::size_t>(2 * GetParam()));
  testing::on_ranks(1, [&](dist::Communicator& /*alone*/) {
    const std::string right = digest_of_micro_batches();
    for (const std::string& digest : digests) EXPECT_EQ(digest, right);
  });
}

// Gathers in 8 bits as well: a shard has whole blocks, so the blocks of a weight are the same at
// every number of ranks, and DDP can compute with the same values. The digest is of exact weights.
TEST_P(SmallProgram, WithQuantizedGathersEndsWithTheBitsOfDdpThatComputesWith8Bits) {
  const int ranks = GetParam();
  const std::vector<std::string> digests =
      testing::run_small_program("07_zero_plus_plus", ranks).digests;
  ASSERT_EQ(digests.size(), static_cast<std::size_t>(ranks));
  testing::on_ranks(ranks, [&](dist::Communicator& communicator) {
    EXPECT_EQ(digest_of_class(communicator, "ddp", /*parts=*/1, exercise::kBlock),
              digests[static_cast<std::size_t>(communicator.rank())]);
  });
}

// One process that has the batches of all ranks. Each gradient is rounded to 4 bits, each host's
// sum too, and the hosts' sums are added up.
std::string digest_of_two_hops(int ranks) {
  testing::SmallModel model;
  const std::vector<at::Tensor> weights = first_weights(model);
  const auto optimizer = testing::small_adamw()(weights);
  const auto sum_in_4_bits = [](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> rounded;
    for (const at::Tensor& tensor : tensors) {
      rounded.push_back(testing::through_numbers(tensor, exercise::kBlock, 7));
    }
    return at::stack(rounded).sum(0);
  };
  const int near = exercise::tensor_ranks(ranks);
  for (int step = 1; step <= 5; ++step) {
    std::vector<std::vector<at::Tensor>> of_hosts(weights.size());
    for (int host = 0; host < ranks / near; ++host) {
      std::vector<std::vector<at::Tensor>> of_ranks(weights.size());
      for (int rank = host * near; rank < (host + 1) * near; ++rank) {
        model.loss(testing::small_batch(rank, step)).backward();
        for (std::size_t w = 0; w < weights.size(); ++w) {
          of_ranks[w].push_back(weights[w].grad());
          weights[w].mutable_grad().reset();
        }
      }
      for (std::size_t w = 0; w < weights.size(); ++w) {
        of_hosts[w].push_back(sum_in_4_bits(of_ranks[w]));
      }
    }
    for (std::size_t w = 0; w < weights.size(); ++w) {
      weights[w].mutable_grad() = sum_in_4_bits(of_hosts[w]).div_(ranks);
    }
    optimizer->step();
    for (const at::Tensor& weight : weights) weight.mutable_grad().reset();
  }
  return digest_of(weights);
}

// Gradients in 4 bits as well, with the same blocks at every number of ranks.
TEST_P(SmallProgram, WithQuantizedGradientsEndsWithTheBitsOfOneProcessThatRoundsThemTwice) {
  const int ranks = GetParam();
  const auto digests = testing::run_small_program("07_zero_plus_plus", ranks, "", "qgz").digests;
  ASSERT_EQ(digests.size(), static_cast<std::size_t>(ranks));
  testing::on_ranks(1, [&](dist::Communicator& /*alone*/) {
    const std::string right = digest_of_two_hops(ranks);
    for (const std::string& digest : digests) EXPECT_EQ(digest, right);
  });
}

}  // namespace
}  // namespace zero
