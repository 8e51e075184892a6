// The small programs beside the chapters' classes: the same model, batches and optimizer end with
// the same bits.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>
#include <string_view>

#include <tests/support/ranks.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/train/registry.hpp>

#include "small_model.hpp"

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

// Trains as the programs do, under `mode`. Called by all ranks.
std::string digest_of_class(dist::Communicator& communicator, const std::string& mode) {
  std::shared_ptr<testing::SmallModel> model;
  {
    const nn::DeferredStorage deferred;
    model = std::make_shared<testing::SmallModel>();
  }
  testing::SmallValues values;
  train::Registry registry;
  train::register_all_chapters(registry);
  const train::StrategyArguments arguments{*model, communicator, testing::small_adamw(), &values,
                                           /*variant=*/""};
  const auto strategy = registry.make(mode, arguments);
  for (int step = 1; step <= 5; ++step) {
    strategy->backward(strategy->forward(testing::small_batch(communicator.rank(), step)));
    strategy->finish_backward();
    strategy->optimizer_step();
    strategy->sync_parameters();
    strategy->zero_grad();
  }
  return digest_of(testing::whole_weights(*strategy));
}

// What the small program of `chapter` prints for `ranks` ranks: the digest of each.
std::vector<std::string> digests_of_program(const std::string& chapter, int ranks) {
  const std::string command =
      fmt::format("'{}/{}_minimal' {}", ZERO_MINIMAL_FOLDER, chapter, ranks);
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  for (int letter = std::fgetc(pipe); letter != EOF; letter = std::fgetc(pipe)) {
    text += static_cast<char>(letter);
  }
  EXPECT_EQ(::pclose(pipe), 0) << command;
  std::istringstream lines(text);
  std::vector<std::string> digests;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("digest") != std::string::npos) digests.push_back(line.substr(line.size() - 16));
  }
  return digests;
}

struct Pair {
  std::string chapter;  // of the small program
  std::string mode;     // the class that does the same
};

class SmallProgram : public ::testing::TestWithParam<int> {};

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
    const std::vector<std::string> digests = digests_of_program(pair.chapter, ranks);
    ASSERT_EQ(digests.size(), static_cast<std::size_t>(ranks));
    testing::on_ranks(ranks, [&](dist::Communicator& communicator) {
      EXPECT_EQ(digest_of_class(communicator, pair.mode),
                digests[static_cast<std::size_t>(communicator.rank())]);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SmallProgram, ::testing::Values(1, 2, 3, 4, 8));

}  // namespace
}  // namespace zero
