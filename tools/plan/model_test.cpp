#include "model.hpp"

#include <gmock/gmock.h>

#include <numeric>

#include <tools/models/presets.hpp>
#include <zero/nn/defer.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::plan {
namespace {

using ::testing::HasSubstr;

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

nn::LlamaConfig with(const char* preset, bool tied, std::int64_t classes) {
  nn::LlamaConfig config = tools::preset(preset);
  config.tied = tied;
  config.classes = classes;
  return config;
}

// The sizes are made from the shape alone and must agree with the real model.
TEST(Model, HasTheSizesOfTheRealOne) {
  for (const nn::LlamaConfig& config :
       {with("tiny", true, 0), with("tiny", false, 0), with("tiny", true, 5),
        with("smollm2-135m", true, 0), with("smollm2-360m", true, 0)}) {
    const auto real = nn::defer([&] { return std::make_shared<nn::Llama>(config); });
    const nn::ParameterList parameters = nn::list_parameters(*real);
    std::vector<std::int64_t> units(parameters.units.size(), 0);
    for (const nn::Parameter& p : parameters.parameters) units[p.unit] += p.numel();
    const Model model = model_of(config, "model");
    EXPECT_EQ(model.parameters, parameters.numel());
    EXPECT_EQ(model.root, units.front());
    EXPECT_EQ(model.units, std::vector<std::int64_t>(units.begin() + 1, units.end()));
  }
}

TEST(Model, OfANumberOnly) {
  const Model seven = model_of_size(7'000'000'000, 32);
  EXPECT_EQ(seven.units.size(), 32U);
  EXPECT_EQ(sum(seven.units), 7'000'000'000);
  EXPECT_NEAR(static_cast<double>(seven.shape.hidden), 4270, 1);
  EXPECT_THAT(seven.note, HasSubstr("assumed"));
  EXPECT_THAT(model_of_size(13'000'000'000).note, HasSubstr("40 layers"));
  EXPECT_EQ(model_of_size(1).units, std::vector<std::int64_t>{1});
  EXPECT_EQ(sum(model_of_size(7, 3).units), 7);
  EXPECT_THROW(model_of_size(5, 6), Error);
}

}  // namespace
}  // namespace zero::plan
