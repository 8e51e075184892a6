// What is saved of a model that is spread over ranks: under every strategy and in every way the
// same tensors under the same names, a tied one once, and what is saved can be loaded again.
#include <ATen/ops/equal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include <tests/plain/plain_run.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/test_folder.hpp>
#include <tests/support/toy_run.hpp>
#include <tests/support/whole_state.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/save_model.hpp>
#include <zero/io/state_dict.hpp>
#include <zero/safetensors/safetensors.hpp>
#include <zero/train/flat/shard_layout.hpp>

namespace zero::testing {
namespace {

using safetensors::NamedTensors;

// One rank that trains a module of plain_modules.hpp under the strategy of a mode.
struct TrainedRun {
  TrainedRun(dist::Communicator& communicator, const std::string& name, const std::string& mode)
      : made(PlainRun::make(name)) {
    strategy = make_strategy(mode, {.module = *made.module,
                                    .mesh = communicator,
                                    .optimizer = optim::adamw(),
                                    .units = nn::default_units(/*bytes=*/1)});
  }
  void step(int number) {
    at::manual_seed(100 * number + strategy->mesh().world().rank());
    strategy->backward(strategy->forward(made.loss));
    finish_step(*strategy);
    strategy->zero_grad();
  }
  NamedTensors dict(io::WholeOn ranks = io::WholeOn::kAllRanks) {
    return io::state_dict(*strategy, ranks);
  }
  /// What the module itself has in the end, in its order: parameters first, a tied one once.
  NamedTensors released() {
    strategy->release();
    NamedTensors all;
    for (const auto& p : made.module->named_parameters()) {
      const auto same = [&](const auto& entry) { return entry.second.is_same(p.value()); };
      if (std::ranges::none_of(all, same)) all.emplace_back(p.key(), p.value());
    }
    for (const auto& b : made.module->named_buffers()) all.emplace_back(b.key(), b.value());
    return all;
  }

  PlainModule made;
  std::unique_ptr<train::Strategy> strategy;
};

WholeState by_name(const NamedTensors& tensors) { return {tensors.begin(), tensors.end()}; }

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

// Of a file or a folder.
WholeState tensors_in(const std::filesystem::path& path) {
  const safetensors::Folder folder(path);
  WholeState tensors;
  for (const std::string& name : folder.names()) tensors[name] = folder.read(name);
  return tensors;
}

// What chapters 04 and 05 hold beside the tensors of a unit while they are whole: less than
// kAlignment elements for each tensor, and for each rank and buffer, of which there are at most as
// many as tensors.
std::int64_t most_padding(const std::string& mode, const nn::ParameterList& list, int ranks) {
  if (!mode.starts_with("tensor_") && !mode.starts_with("engine")) return 0;
  std::size_t tensors = 0;
  for (const nn::UnitInfo& unit : list.units) tensors = std::max(tensors, unit.parameters.size());
  return static_cast<std::int64_t>(tensors) * (ranks + 1) * train::ShardLayout::kAlignment * 4;
}

// Writes the model to `folder`. No rank may hold more than it owns and one unit.
void save_unit_by_unit(TrainedRun& run, const std::string& mode,
                       const std::filesystem::path& folder) {
  using memory::Category;
  const nn::ParameterList& list = run.strategy->list();
  const memory::Snapshot before = memory::snapshot();
  memory::reset_peaks();
  io::save_model(*run.strategy, {{"mode", mode}}, folder);
  const memory::Snapshot after = memory::snapshot();
  EXPECT_EQ(after.total, before.total) << "everything is given back";
  // Where everything is whole already, with padding on top, there is less than nothing to add.
  const std::int64_t more = list.bytes() - before[Category::kParameters];
  const std::int64_t allowed = std::clamp<std::int64_t>(more, 0, largest_unit(list)) +
                               most_padding(mode, list, run.strategy->mesh().world().size());
  EXPECT_LE(after.total_peak - before.total, allowed + safetensors::kScratchBytes);
  EXPECT_LE(after.peak_of(Category::kParameters) - before[Category::kParameters], allowed);
  run.strategy->mesh().world().barrier();
  EXPECT_EQ(nlohmann::json::parse(read_bytes(folder / "config.json")),
            (nlohmann::json{{"mode", mode}}));
}

struct SavedUnder {
  std::string mode;
  int ranks;
};
void PrintTo(const SavedUnder& c, std::ostream* out) { *out << c.mode << " at " << c.ranks; }

class SavedWeights : public ::testing::TestWithParam<SavedUnder> {};

TEST_P(SavedWeights, AreThoseOfTheModuleInEveryWayAndAreReadAgain) {
  const TestFolder folder;
  folder.write("file", "not a folder");
  const auto& [mode, ranks] = GetParam();
  for (const std::string name :
       {"resnet", "lstm", "frozen", "tied", "gpt2_of_units", "deep_llama"}) {
    SCOPED_TRACE(name);
    on_ranks(ranks, [&, mode = mode](dist::Communicator& communicator) {
      const bool first = communicator.rank() == 0;
      TrainedRun run(communicator, name, mode);
      expect_error([&] { io::save_model(*run.strategy, {}, folder / "file"); },
                   {"the model could not be saved", (folder / "file").string()});
      run.step(0);  // as if there had been no error
      const NamedTensors dict = run.dict(), of_first = run.dict(io::WholeOn::kFirstRank);
      const WholeState all = by_name(dict);
      EXPECT_TRUE(same_state(by_name(of_first), first ? all : WholeState()));
      const auto in = [&](const char* way) { return folder / (name + "." + way); };
      save_unit_by_unit(run, mode, in("model"));
      io::save_checkpoint(*run.strategy, in("checkpoint"), note(1, mode));
      if (first) safetensors::save(in("dict"), of_first);
      const NamedTensors expected = run.released();
      EXPECT_EQ(names_of(dict), names_of(expected));
      EXPECT_TRUE(same_state(all, by_name(expected)));

      WholeState parameters = all;
      for (const auto& b : run.made.module->named_buffers()) parameters.erase(b.key());
      EXPECT_TRUE(same_state(tensors_in(in("model")), parameters));
      TrainedRun other(communicator, name, mode == "engine3" ? "engine1" : "engine3");
      for (const char* way : {"dict itself", "dict", "model", "checkpoint"}) {
        SCOPED_TRACE(way);
        other.step(1);
        if (way == std::string("checkpoint")) {
          io::load_checkpoint(*other.strategy, in(way));
        } else if (way == std::string("dict itself")) {
          io::load_weights(*other.strategy, of_first);
        } else if (way == std::string("dict") || parameters.size() == all.size()) {
          io::load_weights(*other.strategy, in(way));
        } else {
          expect_error([&] { io::load_weights(*other.strategy, in(way)); }, {"is missing"});
          continue;
        }
        const WholeState loaded = by_name(other.dict());
        if (first) {  // whose buffers are all ranks' now
          EXPECT_TRUE(same_state(loaded, all));
        }
      }
      other.step(2);
      communicator.barrier();
    });
  }
  EXPECT_EQ(read_bytes(folder / "file"), "not a folder");
}

TEST(SavedOverAnEarlierModel, RefusedConfigKeepsTheEarlierWeights) {
  const TestFolder folder;
  on_ranks(2, [&](dist::Communicator& communicator) {
    TrainedRun run(communicator, "gpt2", "zero3");
    io::save_model(*run.strategy, {}, folder / "saved");
    const std::string weights = read_bytes(folder / "saved/model.safetensors");
    // The name of the new configuration's place is taken by a folder that is not empty.
    communicator.barrier();
    if (communicator.rank() == 0) {
      std::filesystem::remove(folder / "saved/config.json");
      folder.write("saved/config.json/taken", "");
    }
    communicator.barrier();
    run.step(0);
    EXPECT_THROW(io::save_model(*run.strategy, {}, folder / "saved"), Error);
    EXPECT_EQ(read_bytes(folder / "saved/model.safetensors"), weights);
  });
  EXPECT_THAT(folder.listing(),
              ::testing::ElementsAre("saved", "saved/config.json", "saved/config.json/taken",
                                     "saved/model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(All, SavedWeights,
                         ::testing::ValuesIn(std::vector<SavedUnder>{
                             {"ddp", 2},
                             {"zero1", 3},
                             {"zero3", 2},
                             {"zero3", 3},
                             {"zero3:whole", 2},
                             {"tensor_zero1", 3},
                             {"tensor_zero2", 2},
                             {"tensor_zero3", 2},
                             {"tensor_zero3", 3},
                             {"tensor_zero3:per_parameter", 3},
                             {"tensor_zero3:whole", 3},
                             {"engine0", 2},
                             {"engine1", 2},
                             {"engine2", 3},
                             {"engine3", 1},
                             {"engine3", 3},
                             {"engine3:whole_below=100000", 2}}),
                         [](const auto& info) {
                           std::string name = info.param.mode;
                           std::erase_if(name, [](char c) { return !std::isalnum(c) && c != '_'; });
                           return name + "_N" + std::to_string(info.param.ranks);
                         });

}  // namespace
}  // namespace zero::testing
