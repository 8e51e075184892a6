#include <gmock/gmock.h>

#include <tests/support/error_of.hpp>
#include <tools/ladder/registry.hpp>
#include <zero/base/keys.hpp>
#include <zero/engine_config.hpp>

namespace zero {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The options of a mode of this name.
EngineConfig options_of(const std::string& mode) {
  tools::Registry registry;
  tools::register_all_chapters(registry);
  return registry.config(mode);
}

TEST(Registry, NamesTheNearestModeForAnUnknownOne) {
  tools::Registry registry;
  registry.add({"zero1", "01_zero1", {"owner", "naive"}, nullptr});
  registry.check("zero1");
  registry.check("zero1:naive");
  EXPECT_EQ(registry.modes(), (std::vector<std::string>{"zero1", "zero1:naive"}));
  for (const char* wrong : {"zer1", "zero1:nave", "zero1:"}) {
    expect_error([&] { registry.check(wrong); }, {"unknown mode '", "zero1:owner, zero1:naive"});
  }
}

TEST(ModeOptions, OfACommandLine) {
  const EngineConfig options = options_of("engine3:lookahead=2:bucket_mib=0.5:whole_below=1000");
  EXPECT_EQ(options.stage, 3);
  EXPECT_EQ(options.lookahead, 2);
  EXPECT_EQ(options.bucket_bytes, 512 << 10);
  EXPECT_EQ(options.whole_below, 1000);
  EXPECT_EQ(options_of("engine1:in_flight_mib=1").stage, 1);
  const std::vector<std::pair<const char*, const char*>> rows = {
      {"lookahaed=2", "unknown key 'lookahaed'; known keys: bucket_mib"},
      {"lookahead=two", "lookahead is \"two\""},
      {"bucket_mib=5:fast=1:more", "'more' is no setting"},
      {"bucket_mib=", "bucket_mib is \"\""},
      {"stage=3", "mode engine2 was asked for"},
      {"clip_norm=1", "unknown key 'clip_norm'"},
      {"lookahead=1:lookahead=2", "'2' is the second value of lookahead"}};
  for (const auto& row : rows) {
    expect_error([&] { options_of(std::string("engine2:") + row.first); }, {row.second});
  }
}

TEST(ModeOptions, AKeyThatIsThereTwiceIsAnError) {
  expect_error([] { engine_config(R"({"stage": 3, "lookahead": 1, "stage": 2})"); },
               {"the engine configuration: the key \"stage\" is there twice"});
  expect_error(
      [] {
        engine_config_from_deepspeed(
            R"({"fp16": {"enabled": true}, "zero_optimization": {"stage": 1, "stage": 2}})");
      },
      {"the key \"stage\" is there twice"});
}

TEST(ModeOptions, VariantsStandForOptions) {
  EXPECT_EQ(options_of("engine3").lookahead, 1);
  EXPECT_EQ(options_of("engine3:on_demand").lookahead, 0);
  expect_error([] { options_of("engine2:on_demand"); }, {"unknown mode 'engine2:on_demand'"});
}

TEST(EngineConfig, ReadsEveryKey) {
  const EngineConfig config = engine_config(
      R"({"stage": 2, "bucket_mib": 0.5, "in_flight_mib": 3, "lookahead": 4, "whole_below": 1000,
          "accumulation_steps": 8, "clip_norm": 1.5, "loss_scale": 1024, "keep_buffers": false, "keep_gradients": false,
          "reduce_in_float32": true, "reduce_each_micro_batch": true, "defer_parameter_gather": true, "on_nonfinite_gradient": "skip",
          "broadcast_buffers": true})");
  EXPECT_EQ(config.stage, 2);
  EXPECT_EQ(config.bucket_bytes, 512 << 10);
  EXPECT_EQ(config.in_flight_bytes, 3 << 20);
  EXPECT_EQ(config.lookahead, 4);
  EXPECT_EQ(config.whole_below, 1000);
  EXPECT_FALSE(config.keep_buffers);
  EXPECT_FALSE(config.keep_gradients);
  EXPECT_TRUE(config.reduce_in_float32);
  EXPECT_TRUE(config.reduce_each_micro_batch);
  EXPECT_TRUE(config.broadcast_buffers);
  EXPECT_TRUE(config.defer_parameter_gather);
  EXPECT_EQ(config.on_nonfinite_gradient, train::OnNonfiniteGradient::kSkip);
  EXPECT_EQ(config.accumulation_steps, 8);
  EXPECT_EQ(config.clip_norm, 1.5);
  EXPECT_EQ(config.loss_scale.initial, 1024);
}

TEST(EngineConfig, RefusesWhatItDoesNotKnowOrCannotBe) {
  const char* const mib = "it must be a number of MiB, from one byte to 1e+09";
  const std::vector<std::pair<const char*, const char*>> rows = {
      {R"({"stages": 2})", "unknown key 'stages'; known keys: "},
      {R"({"stage": 4})", "stage is 4; it must be 0, 1, 2 or 3"},
      {R"({"stage": 2.5})", "stage is 2.5"},
      {R"({"stage": "3"})", "stage is \"3\""},
      {R"({"bucket_mib": 0})", "bucket_mib is 0"},
      {R"({"bucket_mib": 1e-300})", mib},
      {R"({"bucket_mib": 1e300})", mib},
      {R"({"bucket_mib": 8796093022208})", mib},
      {R"({"lookahead": 9223372036854775807})", "from 0 to 9e+15"},
      {R"({"lookahead": -1})", "lookahead is -1"},
      {R"({"lookahead": 1.5})", "a whole number from 0 to 9e+15"},
      {R"({"lookahead": "automatic"})", "lookahead is \"automatic\""},
      {R"({"accumulation_steps": 0})", "a whole number from 1 to 9e+15"},
      {R"({"clip_norm": -1})", "clip_norm is -1"},
      {R"({"loss_scale": 1000})", "loss_scale is 1000"},
      {R"({"loss_scale": "big"})", "loss_scale is \"big\""},
      {R"({"keep_buffers": 1})", "keep_buffers is 1; it must be true"},
      {R"({"on_nonfinite_gradient": "ignore"})", "it must be \"error\" or \"skip\""},
      {"[1]", "must be a JSON object"},
      {"{", "is not JSON"}};
  for (const auto& row : rows) expect_error([&] { engine_config(row.first); }, {row.second});
}

TEST(EngineConfig, RefusesWhatIsNestedTooDeeply) {
  const std::string deep = "{\"stage\": " + testing::nested_json() + "}";
  expect_error([&] { engine_config(deep); }, {"nested deeper than 64 levels"});
  expect_error([&] { engine_config_from_deepspeed(deep); }, {"nested deeper than 64 levels"});
}

TEST(DeepSpeedConfig, IsReadForWhatPeopleHaveInIt) {
  const ReadConfig read = engine_config_from_deepspeed(
      R"({"gradient_accumulation_steps": 4, "gradient_clipping": 0.5, "bf16": {"enabled": true},
          "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e6,
            "stage3_prefetch_bucket_size": 0, "offload_optimizer": {"device": "cpu"}}})");
  EXPECT_EQ(read.config.stage, 2);
  EXPECT_EQ(read.config.bucket_bytes, 10'000'000);
  EXPECT_EQ(read.config.in_flight_bytes, 20'000'000);
  EXPECT_EQ(read.config.lookahead, 0);
  EXPECT_EQ(read.config.offload, "host");
  EXPECT_EQ(read.config.accumulation_steps, 4);
  EXPECT_EQ(read.config.clip_norm, 0.5);
  EXPECT_THAT(read.notes, IsEmpty());
}

// Nothing and "auto", which transformers' Trainer writes for what it does not know, are defaults:
// DeepSpeed's own for the stage, ours for sizes.
TEST(DeepSpeedConfig, HasDefaults) {
  const ReadConfig read = engine_config_from_deepspeed(
      R"({"gradient_accumulation_steps": "auto", "fp16": {"enabled": "auto"},
          "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto",
            "offload_optimizer": {"device": "none", "nvme_path": null}}})");
  EngineConfig plain;
  plain.stage = 0;
  EXPECT_EQ(base::text_of(read.config), base::text_of(plain));
  EXPECT_EQ(read.config.accumulation_steps, 1);
  EXPECT_EQ(read.config.clip_norm, 0);
  EXPECT_THAT(read.notes,
              ElementsAre("ignored of the DeepSpeed configuration: fp16.enabled, "
                          "gradient_accumulation_steps, zero_optimization.reduce_bucket_size, "
                          "zero_optimization.stage",
                          HasSubstr("gradient_clipping is missing: nothing is clipped")));
  EXPECT_EQ(engine_config_from_deepspeed("{}").config.stage, 0);
}

TEST(DeepSpeedConfig, CountsElementsByDtype) {
  const auto bucket = [](const std::string& dtype) {
    return engine_config_from_deepspeed(R"({"zero_optimization": {"reduce_bucket_size": 1000}, )" +
                                        dtype + "}")
        .config.bucket_bytes;
  };
  EXPECT_EQ(bucket(R"("bf16": {"enabled": true})"), 2000);
  EXPECT_EQ(bucket(R"("fp16": {"enabled": true, "loss_scale": 0})"), 2000);
  EXPECT_EQ(bucket(R"("bf16": {"enabled": false}, "fp16": {})"), 4000);
}

// In one line, also of the blocks that are read, and a block that has lost its place.
TEST(DeepSpeedConfig, NamesAllThatIsIgnored) {
  const ReadConfig read = engine_config_from_deepspeed(
      R"({"stage": 2, "train_batch_size": 8, "gradient_clipping": 1,
          "activation_checkpointing": {"cpu_checkpointing": true},
          "fp16": {"enabled": true, "loss_scale": 0},
          "zero_optimization": {"stage": 3, "overlap_comm": false, "mics_shard_size": 4,
            "zero_quantized_weights": true, "offload_param": {"device": "cpu"},
            "offload_optimizer": {"device": "nvme", "nvme_path": "/disk", "pin_memory": true}}})");
  EXPECT_EQ(mode_of(read.config), "engine3");
  EXPECT_EQ(read.config.offload, "/disk");
  EXPECT_THAT(read.notes,
              ElementsAre("ignored of the DeepSpeed configuration: "
                          "activation_checkpointing.cpu_checkpointing, fp16.loss_scale, stage, "
                          "train_batch_size, zero_optimization.mics_shard_size, "
                          "zero_optimization.offload_optimizer.pin_memory, "
                          "zero_optimization.offload_param.device, "
                          "zero_optimization.overlap_comm, "
                          "zero_optimization.zero_quantized_weights"));
}

TEST(DeepSpeedConfig, RefusesWhatItCannotBe) {
  const std::vector<std::pair<const char*, const char*>> rows = {
      {R"({"bf16": true})", "bf16 is true; it must be a JSON object"},
      {R"({"zero_optimization": 3})", "zero_optimization is 3; it must be a JSON object"},
      {R"({"zero_optimization": {"stage": 4}})", "stage is 4; it must be 0, 1, 2 or 3"},
      {R"({"zero_optimization": {"reduce_bucket_size": 0}})", "a whole number from 1"},
      {R"({"zero_optimization": {"offload_optimizer": true}})", "it must be a JSON object"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": 3}}})", "device is 3"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "gpu"}}})",
       "must have the device \"none\", \"cpu\", or \"nvme\" and an nvme_path"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})", "and an nvme_path"},
      {R"({"gradient_clipping": -1})", "gradient_clipping is -1; it must be a norm"}};
  for (const auto& row : rows) {
    expect_error([&] { engine_config_from_deepspeed(row.first); }, {row.second});
  }
}

TEST(EngineConfig, KeepsOptimizerStatesElsewhere) {
  const EngineConfig config = engine_config(R"({"offload": "/disk", "offload_tile_mib": 0.5})");
  EXPECT_EQ(config.offload, "/disk");
  EXPECT_EQ(config.offload_tile_bytes, 1 << 19);
  EXPECT_EQ(options_of("engine1:offload=/disk").offload, "/disk");
  EXPECT_EQ(options_of("engine1:offload=host").offload, "host");
  EXPECT_EQ(options_of("engine1").offload, "none");
  EXPECT_EQ(config.offload_parameters, "none");
  EXPECT_EQ(options_of("engine3:offload_parameters=/disk").offload_parameters, "/disk");
  expect_error([] { engine_config(R"({"offload_parameters": 3})"); },
               {"offload_parameters is 3", "a folder for parameters"});
  for (const char* mode : {"hsdp3:shard_size=2", "hpz", "qwz", "qgz"}) {
    expect_error([&] { options_of(fmt::format("{}:offload_parameters=/disk", mode)); },
                 {"offload_parameters cannot be with a shard_size or a part of ZeRO++"});
  }
  expect_error([] { options_of("engine1:offload=/a:b"); },
               {"'b' is no setting of a mode", "no colon in the value"});
  expect_error([] { engine_config(R"({"offload": true})"); }, {"offload is true", "a folder"});
  expect_error([] { engine_config(R"({"offload": ""})"); }, {"offload is \"\"", "a folder"});
}

}  // namespace
}  // namespace zero
