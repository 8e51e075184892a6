// What Engine::save() keeps: the position in the data, the last checkpoints, and what the weights
// were when it was called.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>

#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/optim/master_weights.hpp>

#include "plain_run.hpp"

namespace zero::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::UnorderedElementsAre;

ZERO_TESTS_ON_RANKS(PlainSave, 1, 2, 3);

// Each stage has a folder of its own.
void on_all_stages_in_folders(
    int ranks,
    const std::function<void(dist::Communicator&, int stage, const fs::path& place)>& body) {
  const TestFolder folder;
  on_all_stages(ranks, [&](dist::Communicator& communicator, int stage) {
    body(communicator, stage, folder / ("run" + std::to_string(stage)));
    communicator.barrier();
  });
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

// By path below the folder.
std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    files[fs::relative(entry.path(), folder).string()] = read_bytes(entry.path());
  }
  return files;
}

TEST_P(PlainSave, GivesThePositionBackAndRefusesWhatCannotBeSaved) {
  on_all_stages_in_folders(GetParam(), [](auto& communicator, int stage, const fs::path& place) {
    const int rank = communicator.rank();
    PlainRun run(communicator, "gpt2", at_stage(stage));
    PlainRun other(communicator, "gpt2", at_stage(3 - stage));
    run.step(0);
    EXPECT_GT(run.engine.save(place, {.position = "epoch 2, line 17"}), 0);  // seconds
    EXPECT_EQ(other.engine.position(), "");
    EXPECT_TRUE(other.engine.load(place));
    EXPECT_EQ(other.engine.position(), "epoch 2, line 17");
    run.engine.save(place);
    EXPECT_TRUE(other.engine.load(place));
    EXPECT_EQ(other.engine.position(), "");
    const auto expect_refused = [&](const fs::path& folder, const SaveOptions& options,
                                    const std::vector<std::string>& says) {
      expect_error([&] { run.engine.save(folder, options); }, says);
    };
    expect_refused(place, {.position = "\xff"}, {"not UTF-8"});
    expect_refused(place, {.keep = 0}, {"0 checkpoints: 1 is the least"});
    if (communicator.size() > 1) {
      expect_refused(place, {.position = std::to_string(rank)}, {"rank 0", "rank 1", "position"});
      expect_refused(place, {.behind = rank == 0}, {"while training goes on"});
    }
    // A file lies where the folder should be.
    expect_refused(place / "checkpoint.json" / "run", {.behind = true},
                   {"rank 0", "cannot be made"});
    run.backward(1);
    expect_refused(place, {.behind = true}, {"save() in the middle of a step"});
    EXPECT_TRUE(run.engine.step());
    run.engine.finish_save();  // nothing is pending
    EXPECT_TRUE(run.step(2));
  });
}

TEST_P(PlainSave, KeepsTheLastCheckpointsAndLoadsEach) {
  on_all_stages_in_folders(GetParam(), [](auto& communicator, int stage, const fs::path& place) {
    std::vector<std::vector<at::Tensor>> weights = {{}};
    {
      PlainRun run(communicator, "gpt2", at_stage(stage));
      for (int number = 0; number < 5; ++number) {
        run.step(number);
        weights.push_back(run.weights());
        run.engine.save(place, {.keep = 3, .behind = number % 2 == 1});
      }
    }
    communicator.barrier();
    EXPECT_THAT(names_in(place),
                UnorderedElementsAre("checkpoint.json", "step-000000003", "step-000000003.json",
                                     "step-000000004", "step-000000004.json", "step-000000005"));
    PlainRun other(communicator, "gpt2", at_stage(stage));
    for (const int step : {3, 4, 5}) {
      const std::string older = "step-00000000" + std::to_string(step) + ".json";
      EXPECT_TRUE(other.engine.load(step == 5 ? place : place / older));
      EXPECT_EQ(other.engine.steps(), step);
      EXPECT_TRUE(same_bits(other.weights(), weights[static_cast<std::size_t>(step)]));
    }
    other.engine.load(place / "step-000000003.json");
    other.engine.save(place, {.keep = 2});  // of step 3 once more: the last two by time
    EXPECT_THAT(names_in(place), UnorderedElementsAre("checkpoint.json", "step-000000003.1",
                                                      "step-000000005", "step-000000005.json"));
    communicator.barrier();
    other.engine.save(place);
    EXPECT_THAT(names_in(place), UnorderedElementsAre("checkpoint.json", "step-000000003"));
  });
}

TEST_P(PlainSave, BehindHasTheBytesOfASaveAtOnce) {
  on_all_stages_in_folders(GetParam(), [](auto& communicator, int stage, const fs::path& place) {
    PlainRun run(communicator, "resnet", at_stage(stage));  // its buffers change in forward
    run.step(0);
    const fs::path at_once = place / "at_once", behind = place / "behind";
    EXPECT_GT(run.engine.save(at_once, {.position = "7"}), 0);
    EXPECT_GT(run.engine.save(behind, {.position = "7", .behind = true}), 0);
    for (const at::Tensor& buffer : run.made.module->buffers()) buffer.add_(1);
    for (std::size_t i = 0; i < run.engine.strategy().list().size(); ++i) {
      const at::NoGradGuard no_grad;
      const at::Tensor mine = run.engine.strategy().placement(i).kept.tensor;
      if (mine.defined()) mine.zero_();
    }
    run.step(1);
    run.step(2);
    run.engine.finish_save();
    run.engine.finish_save();  // nothing is pending
    const auto files = files_in(at_once);
    EXPECT_GE(files.size(), 2U);
    EXPECT_EQ(files_in(behind), files);
  });
}

TEST_P(PlainSave, BehindIsCompletedByAStepALoadAnotherSaveOrTheEnd) {
  on_all_stages_in_folders(GetParam(), [](auto& communicator, int stage, const fs::path& place) {
    const auto saved_step = [&] {
      communicator.barrier();
      const std::int64_t step = io::read_checkpoint_info(place).step;
      communicator.barrier();
      return step;
    };
    {
      PlainRun run(communicator, "gpt2", at_stage(stage));
      run.step(0);
      run.engine.save(place, {.behind = true});
      EXPECT_FALSE(fs::exists(place / "checkpoint.json"));
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      bool there = false;
      for (int number = 1; !there && std::chrono::steady_clock::now() < limit; ++number) {
        run.step(number);
        const bool mine = fs::exists(place / "checkpoint.json");
        there = dist::all_gather_scalars(communicator, {mine ? 1.0 : 0.0}).front() > 0;
      }
      EXPECT_EQ(saved_step(), 1);
      const std::int64_t second = run.engine.steps();
      run.engine.save(place, {.behind = true});
      run.engine.load(place);
      EXPECT_EQ(run.engine.steps(), second);
      run.step(1);
      run.engine.save(place, {.behind = true});
      run.engine.save(place / "other");
      EXPECT_EQ(saved_step(), second + 1);
      run.step(2);
      run.engine.save(place, {.behind = true});
    }
    PlainRun other(communicator, "gpt2", at_stage(stage));
    EXPECT_TRUE(other.engine.load(place));
    EXPECT_EQ(other.engine.steps(), saved_step());
    EXPECT_THAT(names_in(place), ::testing::SizeIs(3));
  });
}

// Every rank's file is larger than the limit below, and no message between ranks is.
PlainModule padded() {
  at::manual_seed(7);
  const auto net = std::make_shared<torch::nn::Module>();
  const auto linear = net->register_module("linear", torch::nn::Linear(20, 20));
  net->register_buffer("padding", at::ones({50'000}));
  return {net, [net, linear] { return linear->forward(at::randn({4, 20})).square().mean(); }};
}

// One rank's files may have no more than 100 kB: the others hear of it by name at the next
// call, the checkpoint before stays, and training goes on.
TEST_P(PlainSave, BehindToAFullDiskIsAnErrorOfTheNextCallOnAllRanks) {
  on_all_stages_in_folders(GetParam(), [](auto& communicator, int stage, const fs::path& place) {
    PlainRun run(communicator, padded(), at_stage(stage)), other(communicator, padded(), {});
    run.step(0);
    other.step(0);
    run.engine.save(place);
    run.step(1);
    other.step(1);
    const int full = communicator.size() - 1;
    const std::vector<std::function<void()>> next_calls = {
        [&] {
          const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
          while (std::chrono::steady_clock::now() < limit) run.step(2);
        },
        [&] { run.engine.save(place); }, [&] { run.engine.load(place); },
        [&] { run.engine.finish_save(); }};
    for (const auto& next_call : next_calls) {
      run.engine.load(place);
      run.step(1);
      std::optional<FullDisk> disk;
      if (communicator.rank() == full) disk.emplace(100'000);
      run.engine.save(place, {.behind = true});
      expect_error(next_call, {"rank " + std::to_string(full), "has space"});
      disk.reset();
      communicator.barrier();
      EXPECT_EQ(io::read_checkpoint_info(place).step, 1);
      EXPECT_THAT(names_in(place), UnorderedElementsAre("checkpoint.json", "step-000000001"));
      communicator.barrier();
    }
    run.engine.load(place);
    run.step(1);
    run.engine.save(place, {.behind = true});
    run.engine.finish_save();
    EXPECT_EQ(io::read_checkpoint_info(place).step, 2);
    EXPECT_TRUE(same_bits(run.weights(), other.weights()));
  });
}

// What comes back after the weights is checked before them.
TEST_P(PlainSave, WithALossScaleThatCannotBeIsRefusedBeforeAnythingChanges) {
  on_all_stages_in_folders(GetParam(), [](auto& communicator, int stage, const fs::path& place) {
    EngineConfig config = at_stage(stage);
    config.loss_scale.initial = 8;
    const auto optimizer = optim::with_master_weights(optim::adamw());
    PlainRun run(communicator, "gpt2", config, optimizer);
    PlainRun other(communicator, "gpt2", config, optimizer);
    run.step(0);
    io::CheckpointInfo info;
    info.notes["loss scale"] = "3 apples";
    io::save_checkpoint(run.engine.strategy(), place, info);
    const std::vector<at::Tensor> before = other.weights();
    expect_error([&] { other.engine.load(place); },
                 {"rank 0", "'3 apples' is no state of a loss scale"});
    EXPECT_EQ(other.engine.steps(), 0);
    EXPECT_EQ(other.engine.loss_scale(), 8);
    EXPECT_TRUE(same_bits(other.weights(), before));
  });
}

// Each would remove the other's checkpoint.
TEST_P(PlainSave, OfTwoEnginesToOneFolderIsRefused) {
  on_all_stages_in_folders(GetParam(), [](auto& communicator, int stage, const fs::path& place) {
    const fs::path other = fs::path(place).concat(".b");
    std::optional<PlainRun> a(std::in_place, communicator, "gpt2", at_stage(stage));
    PlainRun b(communicator, "gpt2", at_stage(3 - stage));
    a->step(0);
    a->engine.save(place);
    b.step(1);
    b.step(2);
    const std::vector<at::Tensor> of_a = a->weights(), of_b = b.weights();
    communicator.barrier();
    const auto files = files_in(place);
    for (const bool behind : {false, true}) {
      for (const fs::path& same : {place, other / ".." / place.filename()}) {
        expect_error([&] { b.engine.save(same, {.behind = behind}); },
                     {"rank 0", place.filename().string(), "another engine of this program",
                      "a folder of its own"});
      }
    }
    EXPECT_EQ(files_in(place), files);
    EXPECT_TRUE(b.engine.load(place));  // an engine that has no folder of its own
    b.step(3);
    b.engine.save(other);
    a->step(1);
    EXPECT_TRUE(a->engine.load(place));
    EXPECT_TRUE(same_bits(a->weights(), of_a));
    a.reset();  // the folder is free
    EXPECT_TRUE(b.engine.load(place));
    b.step(4);
    b.engine.save(place);
    EXPECT_EQ(io::read_checkpoint_info(place).step, 2);
  });
}

// Two engines save to folders of their own at the same time.
TEST_P(PlainSave, BehindOfTwoEnginesAtOnce) {
  on_all_stages_in_folders(GetParam(), [](auto& communicator, int stage, const fs::path& place) {
    PlainRun a(communicator, "gpt2", at_stage(stage)), b(communicator, "lstm", at_stage(3 - stage));
    a.step(0);
    b.step(0);
    a.engine.save(place / "a", {.behind = true});
    b.engine.save(place / "b", {.behind = true});
    const std::vector<at::Tensor> of_a = a.weights(), of_b = b.weights();
    b.step(1);
    a.step(1);
    b.engine.finish_save();
    a.engine.finish_save();
    a.engine.load(place / "a");
    b.engine.load(place / "b");
    EXPECT_TRUE(same_bits(a.weights(), of_a));
    EXPECT_TRUE(same_bits(b.weights(), of_b));
  });
}

}  // namespace
}  // namespace zero::testing
