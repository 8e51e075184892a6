// Saving a model that is spread over ranks: the same files from every strategy, no rank holding
// more than it owns and one unit, and an error on all ranks where rank 0 cannot write.
#include <ATen/ops/equal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include <tests/support/deferred.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/toy_run.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/io/save_model.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/safetensors/safetensors.hpp>
#include <zero/train/flat/shard_layout.hpp>

namespace zero::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSeed = 11;

nn::LlamaConfig config() {
  nn::LlamaConfig config = nn::preset("tiny");
  config.layers = 6;  // so that one unit is far less than the model
  config.classes = 5;
  return config;
}

std::shared_ptr<nn::Llama> model_without_storage() { return make_deferred<nn::Llama>(config()); }

// What chapters 04 and 05 hold beside the tensors of a unit while they are whole: less than
// kAlignment elements for each tensor, and for each rank and buffer, of which there are at most as
// many as tensors.
std::int64_t most_padding(const std::string& mode, const nn::ParameterList& list, int ranks) {
  if (!mode.starts_with("tensor_") && !mode.starts_with("engine")) return 0;
  std::size_t tensors = 0;
  for (const nn::UnitInfo& unit : list.units) tensors = std::max(tensors, unit.parameters.size());
  return static_cast<std::int64_t>(tensors) * (ranks + 1) * train::ShardLayout::kAlignment * 4;
}

struct Case {
  std::string mode;
  int ranks;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.mode << " at " << c.ranks; }

std::unique_ptr<train::Strategy> make(const std::string& mode, nn::Llama& model,
                                      dist::Communicator& communicator) {
  nn::SeededValues values(kSeed);
  return make_strategy(mode, {model, communicator, optim::adamw(), &values});
}

class SaveModel : public ::testing::TestWithParam<Case> {};

TEST_P(SaveModel, WritesEveryTensorAndHoldsOneUnitAtATime) {
  const TestFolder folder;
  on_ranks(GetParam().ranks, [&](dist::Communicator& communicator) {
    const auto model = model_without_storage();
    const auto strategy = make(GetParam().mode, *model, communicator);
    const memory::Snapshot before = memory::snapshot();
    memory::reset_peaks();
    io::save_model(*strategy, nn::to_hugging_face_json(config()), folder / "saved");
    const memory::Snapshot after = memory::snapshot();
    EXPECT_EQ(after.total, before.total) << "everything is given back";
    const std::int64_t more = strategy->list().bytes() - before[memory::Category::kParameters];
    // Where everything is whole already, with padding on top, there is less than nothing to add.
    const std::int64_t allowed = std::clamp<std::int64_t>(more, 0, largest_unit(strategy->list())) +
                                 most_padding(GetParam().mode, strategy->list(), GetParam().ranks);
    EXPECT_LE(after.total_peak - before.total, allowed + safetensors::kScratchBytes);
    EXPECT_LE(after.peak_of(memory::Category::kParameters) - before[memory::Category::kParameters],
              allowed);
    if (communicator.rank() != 0) return;
    const safetensors::Folder saved(folder / "saved");
    EXPECT_EQ(saved.names().size(), strategy->list().size());
    nn::SeededValues values(kSeed);
    const auto whole = model_without_storage();
    nn::initialize_parameters(*whole, values);
    for (const nn::Parameter& p : nn::list_parameters(*whole).parameters) {
      EXPECT_TRUE(at::equal(saved.read(p.name), p.tensor.detach())) << p.name;
    }
    EXPECT_EQ(nlohmann::json::parse(read_bytes(folder / "saved/config.json")),
              nn::to_hugging_face_json(config()));
  });
}

TEST_P(SaveModel, AfterAFailureOfRank0WhatWasTrainedSinceIsSaved) {
  const TestFolder folder;
  std::ofstream(folder / "file") << "not a folder";
  on_ranks(GetParam().ranks, [&](dist::Communicator& communicator) {
    const auto model = model_without_storage();
    const auto strategy = make(GetParam().mode, *model, communicator);
    const std::string message = error_of(
        [&] { io::save_model(*strategy, nn::to_hugging_face_json(config()), folder / "file"); });
    EXPECT_THAT(message, ::testing::HasSubstr("the model could not be saved"));
    EXPECT_THAT(message, ::testing::HasSubstr((folder / "file").string()));
    const int rank = communicator.rank();
    train::Trainer(*strategy).step({{.inputs = at::arange(8).view({1, 8}) + rank,
                                     .targets = at::full({1}, rank, at::kLong),
                                     .loss_terms = 1}});
    const std::vector<at::Tensor> weights = whole_weights(*strategy);
    io::save_model(*strategy, nn::to_hugging_face_json(config()), folder / "other");
    for (std::size_t i = 0; rank == 0 && i < weights.size(); ++i) {
      const std::string& name = strategy->list().parameters[i].name;
      const at::Tensor saved = safetensors::Folder(folder / "other").read(name);
      EXPECT_TRUE(at::equal(saved, weights[i])) << name;
    }
  });
  EXPECT_EQ(read_bytes(folder / "file"), "not a folder");
}

TEST(SaveOverAnEarlierOne, RefusedConfigKeepsTheEarlierWeights) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    const auto model = model_without_storage();
    const auto strategy = make("zero3", *model, communicator);
    io::save_model(*strategy, nn::to_hugging_face_json(config()), folder / "saved");
    const std::string weights = read_bytes(folder / "saved/model.safetensors");
    nlohmann::json other = nn::to_hugging_face_json(config());
    // The name of the new configuration's place is taken by a folder that is not empty.
    if (communicator.rank() == 0) {
      fs::remove(folder / "saved/config.json");
      fs::create_directories(folder / "saved/config.json/taken");
    }
    communicator.barrier();
    EXPECT_THROW(io::save_model(*strategy, other, folder / "saved"), Error);
    EXPECT_EQ(read_bytes(folder / "saved/model.safetensors"), weights);
  });
  EXPECT_THAT(folder.listing(),
              ::testing::ElementsAre("saved", "saved/config.json", "saved/config.json/taken",
                                     "saved/model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(All, SaveModel,
                         ::testing::Values(Case{"ddp", 2}, Case{"zero1", 3}, Case{"zero3", 2},
                                           Case{"zero3", 3}, Case{"zero3:whole", 2},
                                           Case{"tensor_zero1", 3}, Case{"tensor_zero2", 2},
                                           Case{"tensor_zero3", 2}, Case{"tensor_zero3", 3},
                                           Case{"tensor_zero3:per_parameter", 3},
                                           Case{"tensor_zero3:whole", 3}, Case{"engine0", 2},
                                           Case{"engine1", 2}, Case{"engine2", 3},
                                           Case{"engine3", 3}, Case{"engine3:hybrid", 2}),
                         [](const auto& info) {
                           std::string name = info.param.mode;
                           std::erase(name, ':');
                           return name + "_N" + std::to_string(info.param.ranks);
                         });

}  // namespace
}  // namespace zero::testing
