// What a checkpoint says of itself: who writes what, and that no altered manifest is taken for one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>
#include <zero/io/checkpoint_manifest.hpp>
#include <zero/train/shard_layout.hpp>

namespace zero::io::checkpoint {
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

// GoogleTest's classes have a RankRange of their own.
using Runs = std::vector<RankRange>;

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
      const train::ShardLayout layout({17, size, 3}, ranks);
      std::vector<Holding> holdings;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto segment = layout.range(1, rank);
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
    const train::ShardLayout layout({600}, ranks);
    std::vector<Range> ranges;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto segment = layout.range(0, rank);
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

// What manifest_from() says of the example with one change and a checksum that fits.
std::string refusal_after(const std::function<void(Manifest&)>& change) {
  Manifest m = example();
  change(m);
  return message_of([&] { manifest_from(to_text(m), "m"); });
}

// The same for what only another program would write.
std::string refusal_of_json(const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json j = nlohmann::json::parse(to_text(example()));
  j.erase("sha256 of the rest");
  change(j);
  j["sha256 of the rest"] = base::Sha256().add(j.dump(1) + "\n").hex();
  return message_of([&] { manifest_from(j.dump(1) + "\n", "m"); });
}

TEST(CheckpointManifest, NumbersOutOfTheirRangesAreRefused) {
  EXPECT_EQ(refusal_after([](Manifest&) {}), "");
  EXPECT_THAT(refusal_after([](Manifest& m) { m.info.step = -1; }), HasSubstr("m: the step is -1"));
  EXPECT_THAT(refusal_after([](Manifest& m) { m.info.sampler->step = std::int64_t{1} << 62; }),
              HasSubstr("the sampler's step is 4611686018427387904; it must be from 0 to 2814749"));
  EXPECT_THAT(refusal_after([](Manifest& m) { m.info.sampler->dataset_size = 0; }),
              HasSubstr("the sampler's dataset_size is 0"));
  for (const std::int64_t batch : {0, 101}) {
    EXPECT_THAT(refusal_after([&](Manifest& m) { m.info.sampler->global_batch = batch; }),
                HasSubstr(fmt::format("global_batch is {}; it must be from 1 to 100", batch)));
  }
  EXPECT_THAT(refusal_after([](Manifest& m) { m.info.world_size = 0; }),
              HasSubstr("the world_size is 0; it must be from 1"));
  EXPECT_THAT(refusal_after([](Manifest& m) { m.parameters[0].steps = -1; }),
              HasSubstr("the number of steps of parameter 'a.weight' is -1"));
  EXPECT_THAT(refusal_after([](Manifest& m) { m.files[0].bytes = -1; }),
              HasSubstr("the length of file 'rank-00000-of-00002.safetensors' is -1"));
  EXPECT_THAT(refusal_after([](Manifest& m) { m.files[0].sha256 = "short"; }),
              HasSubstr("is not 64 hexadecimal digits"));
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{-3, -4}, {std::int64_t{1} << 62, 4}}) {
    EXPECT_THAT(refusal_after([&](Manifest& m) { m.parameters[0].shape = shape; }),
                HasSubstr("parameter 'a.weight' has the shape"));
    EXPECT_THAT(refusal_after([&](Manifest& m) { m.buffers[0].shape = shape; }),
                HasSubstr("buffer 'running' has the shape"));
  }
}

TEST(CheckpointManifest, NumbersThatAreNotWholeOrDoNotFitAreRefused) {
  EXPECT_EQ(refusal_of_json([](nlohmann::json&) {}), "");
  EXPECT_THAT(refusal_of_json([](nlohmann::json& j) { j["run"]["step"] = 7.5; }),
              HasSubstr("m: the step is 7.5; it must be a whole number"));
  EXPECT_THAT(refusal_of_json(
                  [](nlohmann::json& j) { j["run"]["sampler"]["step"] = std::uint64_t{1} << 63; }),
              HasSubstr("the sampler's step is 9223372036854775808; it must be a whole number"));
  EXPECT_THAT(refusal_of_json([](nlohmann::json& j) { j["run"]["sampler"]["seed"] = -1; }),
              HasSubstr("the sampler's seed is -1; it must be a whole number from 0"));
  // 2^32 would become rank 0 where it is cut off to 32 bits.
  EXPECT_THAT(
      refusal_of_json([](nlohmann::json& j) { j["files"][0]["rank"] = std::int64_t{1} << 32; }),
      HasSubstr("the rank of a file is 4294967296"));
  EXPECT_THAT(refusal_of_json([](nlohmann::json& j) { j["parameters"][0]["runs"][1][0] = true; }),
              HasSubstr("the rank of a run is true"));
  EXPECT_THAT(refusal_of_json([](nlohmann::json& j) { j["buffers"][0]["shape"] = 2; }),
              HasSubstr("lacks something, or it has another type"));
}

TEST(CheckpointManifest, WhatContradictsItselfIsRefused) {
  EXPECT_THAT(refusal_after([](Manifest& m) { m.info.world_size = 3; }),
              HasSubstr("'rank-00000-of-00002.safetensors'; it must be 'rank-00000-of-00003."));
  EXPECT_THAT(
      refusal_after([](Manifest& m) { m.files[1].rank = 2; }),
      HasSubstr("the rank of file 'rank-00001-of-00002.safetensors' is 2; it must be from"));
  EXPECT_THAT(refusal_after([](Manifest& m) { m.files[1] = m.files[0]; }),
              HasSubstr("the file of rank 0 comes after that of rank 0"));
  EXPECT_THAT(refusal_after([](Manifest& m) { m.parameters.push_back(m.parameters[0]); }),
              HasSubstr("parameter 'a.weight' is there twice"));
  EXPECT_THAT(refusal_after([](Manifest& m) { m.buffers.push_back(m.buffers[0]); }),
              HasSubstr("buffer 'running' is there twice"));
  EXPECT_THAT(refusal_after([](Manifest& m) { m.parameters[0].runs[1].rank = 0; }),
              HasSubstr("are two of one rank"));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(refusal_after([](Manifest& m) {
                m.parameters[0].runs = {{0, {0, kMost}}, {1, {kMost, kMost}}};
              }),
              HasSubstr("the runs of parameter 'a.weight' leave a gap"));
  EXPECT_THAT(refusal_after([](Manifest& m) {
                m.parameters.clear();
                m.files.pop_back();
              }),
              HasSubstr("there are files of 1 ranks out of 2, and buffers"));
}

TEST(CheckpointManifest, IsNotNestedSoDeeplyThatTheStackIsUsedUp) {
  constexpr int kLevels = 300'000;
  const std::string deep = R"({"format": "zero checkpoint", "version": 1, "more": )" +
                           std::string(kLevels, '[') + std::string(kLevels, ']') + "}";
  EXPECT_THAT(message_of([&] { manifest_from(deep, "m"); }),
              HasSubstr("m: its JSON is nested deeper than 64 levels"));
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
}  // namespace zero::io::checkpoint
