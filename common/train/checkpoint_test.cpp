// What a checkpoint says of itself: who writes what, and that no altered manifest is taken for one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "zero/error.hpp"
#include "zero/train/checkpoint_manifest.hpp"
#include "zero/train/shard_layout.hpp"

namespace zero::train::checkpoint {
namespace {

using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

const std::map<std::string, std::string> kMoments = {{"exp_avg", "Float"}, {"exp_avg_sq", "Float"}};

Holding updates(std::int64_t begin, std::int64_t size, std::int64_t steps = 4) {
  return {Range{begin, size}, Range{begin, size}, steps, kMoments};
}
Holding stores(std::int64_t begin, std::int64_t size) {
  return {std::nullopt, Range{begin, size}, 0, {}};
}

SavedParameter parameter(std::int64_t elements) { return {"w", {elements}, "Float", 0, {}, {}}; }

// GoogleTest's classes have a Run of their own.
using Runs = std::vector<Run>;

Runs runs_of(std::int64_t elements, const std::vector<Holding>& holdings) {
  SavedParameter p = parameter(elements);
  assign_runs(p, holdings);
  return p.runs;
}

TEST(CheckpointRange, OverlapIsWhatBothHave) {
  EXPECT_EQ(overlap({2, 5}, {4, 10}), (Range{4, 3}));
  EXPECT_EQ(overlap({0, 10}, {3, 2}), (Range{3, 2}));
  EXPECT_EQ(overlap({0, 3}, {3, 2}).size, 0);
  EXPECT_EQ(overlap({7, 3}, {0, 2}).size, 0);
}

TEST(CheckpointRuns, TheLowestRankWritesWhatSeveralHold) {
  EXPECT_EQ(runs_of(9, {updates(0, 9), updates(0, 9), updates(0, 9)}), (Runs{{0, {0, 9}}}));
  EXPECT_EQ(runs_of(9, {stores(0, 9), stores(0, 9)}), (Runs{{0, {0, 9}}}));
}

TEST(CheckpointRuns, WhoUpdatesWritesBeforeWhoOnlyStores) {
  EXPECT_EQ(runs_of(9, {stores(0, 9), updates(0, 9)}), (Runs{{1, {0, 9}}}));
}

TEST(CheckpointRuns, PiecesCoverEveryElementOnceAtAnyWorldSize) {
  for (const int ranks : {1, 2, 3, 4, 7, 8, 16}) {
    for (const std::int64_t size : {0, 1, 63, 64, 65, 1009, 5000}) {
      const ShardLayout layout({17, size, 3}, ranks);
      std::vector<Holding> holdings;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto segment = layout.segment(1, rank);
        holdings.push_back(segment.size == 0 ? Holding() : updates(segment.begin, segment.size));
      }
      std::int64_t end = 0;
      for (const auto& run : runs_of(size, holdings)) {
        EXPECT_EQ(run.range.begin, end);
        end += run.range.size;
      }
      EXPECT_EQ(end, size) << ranks;
    }
  }
}

// The example of lesson 04.6.
TEST(CheckpointRuns, SixHundredElementsOfTwoRanksOnThree) {
  const auto shards_of = [](int ranks) {
    const ShardLayout layout({600}, ranks);
    std::vector<Range> ranges;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto segment = layout.segment(0, rank);
      ranges.push_back({segment.begin, segment.size});
    }
    return ranges;
  };
  const std::vector<Range> saved = shards_of(2);
  const std::vector<Range> wanted = shards_of(3);
  EXPECT_EQ(saved, (std::vector<Range>{{0, 320}, {320, 280}}));
  EXPECT_EQ(wanted, (std::vector<Range>{{0, 256}, {256, 256}, {512, 88}}));
  EXPECT_EQ(overlap(wanted[0], saved[0]), (Range{0, 256}));
  EXPECT_EQ(overlap(wanted[0], saved[1]).size, 0);
  EXPECT_EQ(overlap(wanted[1], saved[0]), (Range{256, 64}));
  EXPECT_EQ(overlap(wanted[1], saved[1]), (Range{320, 192}));
  EXPECT_EQ(overlap(wanted[2], saved[0]).size, 0);
  EXPECT_EQ(overlap(wanted[2], saved[1]), (Range{512, 88}));
  EXPECT_EQ(wanted[2].begin - saved[1].begin, 192);
}

TEST(CheckpointRuns, GapsAndOverlapsAndDifferentStepsAreRefused) {
  EXPECT_THAT(message_of([] {
                runs_of(9, {updates(0, 4), updates(5, 4)});
              }),
              HasSubstr("ranks hold 4 of 9 elements"));
  EXPECT_THAT(message_of([] {
                runs_of(9, {updates(0, 5), updates(4, 5)});
              }),
              HasSubstr("ranks hold 5 of 9 elements"));
  EXPECT_THAT(message_of([] { runs_of(9, {updates(0, 4)}); }), HasSubstr("4 of 9"));
  EXPECT_THAT(message_of([] { runs_of(9, {Holding(), Holding()}); }), HasSubstr("0 of 9"));
  EXPECT_THAT(message_of([] {
                runs_of(9, {updates(0, 4, 3), updates(4, 5, 2)});
              }),
              HasSubstr("3 updates on rank 0 and 2 on rank 1"));
}

TEST(CheckpointRuns, AParameterWithoutElementsKeepsItsStepCount) {
  SavedParameter p = parameter(0);
  assign_runs(p, {updates(0, 0, 6), updates(0, 0, 6)});
  EXPECT_EQ(p.steps, 6);
  EXPECT_EQ(p.runs, (Runs{{0, {0, 0}}}));
}

TEST(CheckpointHoldings, SurviveTheirText) {
  const std::vector<Holding> all = {updates(3, 4), stores(0, 9), Holding()};
  const std::vector<Holding> read = holdings_from(to_text(all));
  ASSERT_EQ(read.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(read[i].piece, all[i].piece);
    EXPECT_EQ(read[i].stored, all[i].stored);
    EXPECT_EQ(read[i].steps, all[i].steps);
    EXPECT_EQ(read[i].states, all[i].states);
  }
}

Manifest example() {
  Manifest m;
  m.folder = "step-000000007";
  m.info.step = 7;
  m.info.mode = "tensor_zero3:per_parameter";
  m.info.sampler = data::DistributedSampler::State{0xffffffffffffffffU, 100, 8, 7};
  m.info.random = "\"quoted\"\n";
  m.info.notes = {{"data", "a text"}};
  m.info.world_size = 2;
  m.info.optimizer = {"AdamW", {{{"learning_rate", 0.1}, {"beta1", 0.9}}}};
  m.parameters = {{"a.weight", {3, 4}, "Float", 7, kMoments, {{0, {0, 5}}, {1, {5, 7}}}},
                  {"scalar", {}, "BFloat16", 0, {}, {{1, {0, 1}}}}};
  m.buffers = {{"running", {2}, "Long"}};
  m.files = {{0, "rank-00000-of-00002.safetensors", 100, std::string(64, 'a')},
             {1, "rank-00001-of-00002.safetensors", 200, std::string(64, 'b')}};
  return m;
}

TEST(CheckpointManifest, SurvivesItsText) {
  const Manifest m = example();
  const Manifest read = manifest_from(to_text(m), "m");
  EXPECT_EQ(to_text(read), to_text(m));
  EXPECT_EQ(read.info.sampler, m.info.sampler);
  EXPECT_EQ(read.info.optimizer.groups, m.info.optimizer.groups);
  EXPECT_EQ(read.info.random, m.info.random);
  EXPECT_EQ(read.info.notes, m.info.notes);
  EXPECT_EQ(read.parameters[0].runs, m.parameters[0].runs);
  EXPECT_EQ(read.parameters[0].states, kMoments);
  EXPECT_EQ(read.parameters[1].elements(), 1);
  EXPECT_EQ(read.buffers, m.buffers);
  ASSERT_NE(read.file_of(1), nullptr);
  EXPECT_EQ(read.file_of(1)->bytes, 200);
  EXPECT_EQ(read.file_of(2), nullptr);
}

TEST(CheckpointManifest, EveryFlippedBitAndEveryLengthIsRefused) {
  const std::string text = to_text(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_THROW(manifest_from(text.substr(0, i), "m"), Error) << "cut to " << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = text;
      other[i] = static_cast<char>(other[i] ^ (1 << bit));
      EXPECT_THROW(manifest_from(other, "m"), Error) << "byte " << i << " bit " << bit;
    }
  }
  EXPECT_THROW(manifest_from(text + " ", "m"), Error);
}

TEST(CheckpointManifest, RunsThatDoNotFitAreRefused) {
  Manifest m = example();
  m.parameters[0].runs[1].range.begin = 6;
  EXPECT_THAT(message_of([&] { manifest_from(to_text(m), "m"); }), HasSubstr("leave a gap"));
  m = example();
  m.parameters[0].runs[1].range.size = 6;
  EXPECT_THAT(message_of([&] { manifest_from(to_text(m), "m"); }), HasSubstr("11 elements"));
  m = example();
  m.files.pop_back();
  EXPECT_THAT(message_of([&] { manifest_from(to_text(m), "m"); }), HasSubstr("have no file"));
  m = example();
  m.files[0].name = "../elsewhere";
  EXPECT_THAT(message_of([&] { manifest_from(to_text(m), "m"); }), HasSubstr("not the name"));
}

TEST(CheckpointModel, TheFirstDifferenceIsNamed) {
  const Manifest saved = example();
  const auto refusal = [&](const std::function<void(Manifest&)>& change, bool convert = false) {
    Manifest other = example();
    change(other);
    return message_of([&] { check_same_model(saved, other.parameters, other.buffers, convert); });
  };
  EXPECT_EQ(refusal([](Manifest&) {}), "");
  EXPECT_THAT(refusal([](Manifest& m) { m.parameters[1].name = "other"; }),
              HasSubstr("parameter 1, the checkpoint has 'scalar', the model 'other'"));
  EXPECT_THAT(refusal([](Manifest& m) { m.parameters.pop_back(); }), HasSubstr("the model none"));
  EXPECT_THAT(refusal([](Manifest& m) { m.parameters.push_back(m.parameters[0]); }),
              HasSubstr("the checkpoint has none"));
  EXPECT_THAT(refusal([](Manifest& m) {
                m.parameters[0].shape = {4, 3};
              }),
              HasSubstr("'a.weight', the checkpoint has [3, 4] Float, the model [4, 3] Float"));
  const auto bfloat = [](Manifest& m) { m.parameters[0].dtype = "BFloat16"; };
  EXPECT_THAT(refusal(bfloat), HasSubstr("is Float in the checkpoint and BFloat16 in the model"));
  EXPECT_EQ(refusal(bfloat, /*convert=*/true), "");
  EXPECT_THAT(refusal([](Manifest& m) { m.buffers[0].shape = {3}; }), HasSubstr("buffer 0"));
}

}  // namespace
}  // namespace zero::train::checkpoint
