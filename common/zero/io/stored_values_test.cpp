#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>

#include <tests/support/deferred.hpp>
#include <tests/support/safetensors_test_files.hpp>
#include <tests/support/save_safetensors_folder.hpp>
#include <tools/models/presets.hpp>
#include <zero/io/stored_values.hpp>
#include <zero/nn/llama.hpp>

namespace zero::io {
namespace {

using testing::expect_error;
using ::testing::HasSubstr;
using testing::make_deferred;
using testing::save_safetensors_folder;
using testing::TestFolder;

// Tensors under the names and with the shapes of a model.
safetensors::NamedTensors random_weights(const nn::LlamaConfig& config, at::ScalarType dtype) {
  safetensors::NamedTensors tensors;
  const auto model = make_deferred<nn::Llama>(config);
  for (const nn::Parameter& p : nn::list_parameters(*model).parameters) {
    tensors.emplace_back(p.name, at::randn(p.tensor.sizes()).to(dtype));
  }
  return tensors;
}

const at::Tensor& find(const safetensors::NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return tensor;
  }
  throw Error("no tensor " + name);
}

// A model whose first values are those of `tensors`, which lie in a folder.
struct Stored {
  Stored(const nn::LlamaConfig& config, const safetensors::NamedTensors& tensors,
         std::size_t per_file = 0)
      : model(make_deferred<nn::Llama>(config)), list(nn::list_parameters(*model)) {
    save_safetensors_folder(folder.path(), tensors, per_file);
    values.emplace(folder.path(), list, llama_values_options(config, /*seed=*/7));
    initialize_parameters(*model, *values);
  }
  TestFolder folder;
  std::shared_ptr<nn::Llama> model;
  nn::ParameterList list;
  std::optional<StoredValues> values;
};

TEST(StoredValues, OfAnyDtypeBecomeTheParametersExactlyAsTensorToDoes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    SCOPED_TRACE(c10::toString(dtype));
    const safetensors::NamedTensors tensors = random_weights(tools::preset("tiny"), dtype);
    const Stored stored(tools::preset("tiny"), tensors, /*per_file=*/5);
    const StoredValues& values = *stored.values;
    for (const nn::Parameter& p : stored.list.parameters) {
      EXPECT_EQ(p.tensor.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(p.tensor.detach(), find(tensors, p.name).to(at::kFloat))) << p.name;
    }
    EXPECT_TRUE(values.missing().empty());
    EXPECT_THAT(values.describe(), HasSubstr(fmt::format("{} tensors from {}", stored.list.size(),
                                                         stored.folder.path().string())));
    EXPECT_EQ(values.describe().find("converted to float32") != std::string::npos,
              dtype != at::kFloat);
  }
}

TEST(StoredValues, TensorsThatDoNotFitAreNamedWithTheirFile) {
  const nn::LlamaConfig tiny = tools::preset("tiny");
  const safetensors::NamedTensors good = random_weights(tiny, at::kFloat);
  const auto with = [&](const std::string& name, const at::Tensor& other) {
    safetensors::NamedTensors tensors = good;
    std::erase_if(tensors, [&](const auto& item) { return item.first == name; });
    if (other.defined()) tensors.emplace_back(name, other);
    return [tiny, tensors] { Stored(tiny, tensors, /*per_file=*/5); };
  };
  EXPECT_NO_THROW(Stored(tiny, good));
  expect_error(with("model.layers.1.mlp.up_proj.weight", at::Tensor()),
               {"the weights in /tmp", "tensor \"model.layers.1.mlp.up_proj.weight\" is missing",
                "[176, 64]"});
  expect_error(with("model.layers.2.extra", at::randn({3})),
               {"tensor \"model.layers.2.extra\" in ",
                "model-00005-of-00005.safetensors is none of the model's"});
  expect_error(with("model.norm.weight", at::randn({65})),
               {"tensor \"model.norm.weight\" in ", "has the shape [65], the model's is [64]"});
  expect_error(with("model.norm.weight", at::ones({64}, at::kLong)),
               {"is int64, which is not converted to float32"});
  nn::LlamaConfig larger = tiny;
  larger.layers = 3;
  // Nine tensors of the third layer, eight of them shown.
  expect_error([&] { Stored(larger, good); }, {"and 1 more"});
}

// What may be missing, and is drawn by seed 7, or left over: heads.
TEST(StoredValues, HeadsAreReadDrawnOrLeftOutAsTheModelNeedsThem) {
  nn::LlamaConfig tied = tools::preset("tiny"), classifier = tied, untied = tied;
  ASSERT_TRUE(tied.tied);
  classifier.classes = 5;
  untied.tied = false;
  const auto of = [](const nn::LlamaConfig& config) { return random_weights(config, at::kFloat); };
  safetensors::NamedTensors twice = of(tied);
  twice.emplace_back("lm_head.weight", at::randn({256, 64}));
  struct Row {
    nn::LlamaConfig model;
    safetensors::NamedTensors stored;
    std::vector<std::string> drawn, left_out;
  };
  for (const Row& row : {Row{tied, twice, {}, {"lm_head.weight"}}, Row{untied, of(untied), {}, {}},
                         Row{classifier, twice, {"score.weight"}, {"lm_head.weight"}},
                         Row{classifier, of(classifier), {}, {}}}) {
    const Stored stored(row.model, row.stored);
    const auto seeded = make_deferred<nn::Llama>(row.model);
    nn::SeededValues by_seed(7);
    initialize_parameters(*seeded, by_seed);
    EXPECT_EQ(stored.values->missing(), row.drawn);
    for (const nn::Parameter& p : stored.list.parameters) {
      const bool drawn = std::ranges::find(row.drawn, p.name) != row.drawn.end();
      const auto expected = drawn ? seeded->named_parameters()[p.name] : find(row.stored, p.name);
      EXPECT_TRUE(at::equal(p.tensor, expected)) << p.name;
    }
    for (const std::string& name : row.drawn) {
      EXPECT_THAT(stored.values->describe(), HasSubstr("not in it, and drawn by seed 7: " + name));
    }
    for (const std::string& name : row.left_out) {
      EXPECT_THAT(stored.values->describe(), HasSubstr("in it, and not read: " + name));
    }
  }
  // A language model has no use for a classifier's head, and may lack its own only if it is tied.
  expect_error([&] { Stored(tied, of(classifier)); }, {"tensor \"score.weight\" in "});
  expect_error([&] { Stored(untied, of(tied)); }, {"tensor \"lm_head.weight\" is missing"});
}

}  // namespace
}  // namespace zero::io
