// What a checkpoint says of itself: who writes what, and that no altered manifest is taken for one.

#include <limits>
#include <nlohmann/json.hpp>

#include <tests/support/error_of.hpp>
#include <zero/base/sha256.hpp>
#include <zero/io/checkpoint_manifest.hpp>
#include <zero/train/flat/shard_layout.hpp>

namespace zero::io::checkpoint {
namespace {

using testing::expect_error;

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

TEST(CheckpointRuns, WhoUpdatesWritesBeforeWhoOnlyStoresThenTheLowestRank) {
  EXPECT_EQ(runs_of(9, {updates(0, 9), updates(0, 9), updates(0, 9)}), (Runs{{0, {0, 9}}}));
  EXPECT_EQ(runs_of(9, {stores(0, 9), stores(0, 9)}), (Runs{{0, {0, 9}}}));
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

// The example of lesson 04.4.
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
}

TEST(CheckpointRuns, GapsAndOverlapsAndDifferentStepsAreRefused) {
  const std::vector<std::pair<std::vector<Holding>, const char*>> rows = {
      {{updates(0, 4), updates(5, 4)}, "ranks hold 4 of 9 elements"},
      {{updates(0, 5), updates(4, 5)}, "ranks hold 5 of 9 elements"},
      {{updates(0, 4)}, "4 of 9"},
      {{Holding(), Holding()}, "0 of 9"},
      {{updates(0, 4, 3), updates(4, 5, 2)}, "3 updates on rank 0 and 2 on rank 1"}};
  for (const auto& row : rows) expect_error([&] { runs_of(9, row.first); }, {row.second});
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
  m.info.sampler = {{"seed", 0xffffffffffffffffU}, {"step", 7}};
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
  ASSERT_EQ(read.files.size(), 2U);
  EXPECT_EQ(read.files[1].rank, 1);
  EXPECT_EQ(read.files[1].bytes, 200);
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

using Change = std::function<void(Manifest&)>;
using JsonChange = std::function<void(nlohmann::json&)>;

TEST(CheckpointManifest, WhatContradictsItselfOrIsOutOfRangeIsRefused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::pair<Change, const char*>> rows = {
      {[](auto& m) { m.parameters[0].runs[1].range.begin = 6; }, "leave a gap"},
      {[](auto& m) {
         m.parameters[0].runs = {{0, {0, kMost}}, {1, {kMost, kMost}}};
       },
       "the runs of parameter 'a.weight' leave a gap"},
      {[](auto& m) { m.parameters[0].runs[1].range.size = 6; }, "11 elements"},
      {[](auto& m) { m.parameters[0].runs[1].rank = 0; }, "are two of one rank"},
      {[](auto& m) { m.parameters[0].steps = -1; },
       "the number of steps of parameter 'a.weight' is -1"},
      {[](auto& m) { m.parameters.push_back(m.parameters[0]); },
       "parameter 'a.weight' is there twice"},
      {[](auto& m) { m.buffers.push_back(m.buffers[0]); }, "buffer 'running' is there twice"},
      {[](auto& m) {
         m.buffers.clear();
         m.files.pop_back();
       },
       "have no file"},
      {[](auto& m) { m.files[0].name = "../elsewhere"; }, "it must be 'rank-00000-of-00002"},
      {[](auto& m) { m.files[0].bytes = -1; },
       "the length of file 'rank-00000-of-00002.safetensors' is -1"},
      {[](auto& m) { m.files[1].rank = 2; },
       "the rank of file 'rank-00001-of-00002.safetensors' is 2; it must be from"},
      {[](auto& m) { m.files[1] = m.files[0]; }, "the file of rank 0 comes after that of rank 0"},
      {[](auto& m) {
         m.parameters.clear();
         m.files.pop_back();
       },
       "there are files of 1 ranks out of 2, and buffers"},
      {[](auto& m) { m.info.world_size = 0; }, "the world_size is 0; it must be from 1"},
      {[](auto& m) { m.info.world_size = 3; },
       "'rank-00000-of-00002.safetensors'; it must be 'rank-00000-of-00003."},
      {[](auto& m) { m.info.step = -1; }, "m: the step is -1; it must be from 0 to 2814749"}};
  EXPECT_NO_THROW(manifest_from(to_text(example()), "m"));
  const auto expect_refused = [](const Change& change, const std::string& message) {
    Manifest m = example();
    change(m);
    expect_error([&] { manifest_from(to_text(m), "m"); }, {message});
  };
  for (const auto& [change, message] : rows) expect_refused(change, message);
  for (const auto& shape : {std::vector<std::int64_t>{-3, -4}, {std::int64_t{1} << 62, 4}}) {
    expect_refused([&](Manifest& m) { m.parameters[0].shape = shape; },
                   "parameter 'a.weight' has the shape");
    expect_refused([&](Manifest& m) { m.buffers[0].shape = shape; },
                   "buffer 'running' has the shape");
  }
}

// What only another program would write.
TEST(CheckpointManifest, NumbersThatAreNotWholeOrDoNotFitAreRefused) {
  const auto read_after = [](const JsonChange& change) {
    nlohmann::json j = nlohmann::json::parse(to_text(example()));
    j.erase("sha256 of the rest");
    change(j);
    j["sha256 of the rest"] = base::Sha256().add(j.dump(1) + "\n").hex();
    manifest_from(j.dump(1) + "\n", "m");
  };
  const std::vector<JsonChange> changes = {
      [](auto& j) { j["run"]["step"] = 7.5; }, [](auto& j) { j["run"]["step"] = 7.0; },
      [](auto& j) { j["run"]["sampler"]["step"] = 7.5; },
      [](auto& j) { j["run"]["sampler"]["seed"] = -1; },
      // 2^32 would become rank 0 where it is cut off to 32 bits.
      [](auto& j) { j["files"][0]["rank"] = std::int64_t{1} << 32; },
      [](auto& j) { j["parameters"][0]["runs"][1][0] = true; },
      [](auto& j) { j["parameters"][0]["runs"][1].push_back(0); }, [](auto& j) { j["later"] = 1; }};
  EXPECT_NO_THROW(read_after([](auto&) {}));
  for (const auto& change : changes) {
    expect_error([&] { read_after(change); }, {"m: holds a number that is not whole"});
  }
  expect_error([&] { read_after([](auto& j) { j["buffers"][0]["shape"] = 2; }); },
               {"lacks something, or it has another type"});
}

TEST(CheckpointManifest, IsNotNestedSoDeeplyThatTheStackIsUsedUp) {
  const std::string deep =
      R"({"format": "zero checkpoint", "version": 1, "more": )" + testing::nested_json() + "}";
  expect_error([&] { manifest_from(deep, "m"); }, {"m: its JSON is nested deeper than 64 levels"});
}

TEST(CheckpointModel, TheFirstDifferenceIsNamed) {
  const auto check_after = [](const Change& change, bool convert = false) {
    const Manifest saved = example();
    Manifest other = example();
    change(other);
    check_same_model(saved, other.parameters, other.buffers, convert);
  };
  const Change bfloat = [](Manifest& m) { m.parameters[0].dtype = "BFloat16"; };
  const std::vector<std::pair<Change, const char*>> rows = {
      {[](auto& m) { m.parameters[1].name = "other"; },
       "parameter 1, the checkpoint has 'scalar', the model 'other'"},
      {[](auto& m) { m.parameters.pop_back(); }, "the model none"},
      {[](auto& m) { m.parameters.push_back(m.parameters[0]); }, "the checkpoint has none"},
      {[](auto& m) {
         m.parameters[0].shape = {4, 3};
       },
       "'a.weight', the checkpoint has [3, 4] Float, the model [4, 3] Float"},
      {bfloat, "is Float in the checkpoint and BFloat16 in the model"},
      {[](auto& m) { m.buffers[0].shape = {3}; }, "buffer 0"}};
  EXPECT_NO_THROW(check_after([](Manifest&) {}));
  EXPECT_NO_THROW(check_after(bfloat, /*convert=*/true));
  for (const auto& row : rows) expect_error([&] { check_after(row.first); }, {row.second});
}

}  // namespace
}  // namespace zero::io::checkpoint
