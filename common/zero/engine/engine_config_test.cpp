#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include <tests/support/error_of.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/error.hpp>
#include <zero/engine/engine_config.hpp>

namespace zero {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string refused(const std::string& json) {
  return testing::error_of([&] { engine_config(json); });
}
std::string refused_deepspeed(const std::string& json) {
  return testing::error_of([&] { engine_config_from_deepspeed(json); });
}

TEST(EngineConfig, OfACommandLine) {
  const OverlapOptions options =
      overlap_options(3, "lookahead=2:bucket_mib=0.5:whole_below=hybrid");
  EXPECT_EQ(options.stage, 3);
  EXPECT_EQ(options.lookahead, 2);
  EXPECT_EQ(options.bucket_bytes, 512 << 10);
  EXPECT_EQ(options.whole_below, kHybridThreshold);
  EXPECT_EQ(overlap_options(3, "lookahead=auto").lookahead, kAutoLookahead);
  EXPECT_EQ(overlap_options(1, "in_flight_mib=1").stage, 1);
  const auto refused = [](const std::string& text) {
    return testing::error_of([&] { overlap_options(2, text); });
  };
  EXPECT_THAT(refused("lookahaed=2"),
              HasSubstr("unknown key 'lookahaed'; known keys: accumulation_steps"));
  EXPECT_THAT(refused("lookahead=two"), HasSubstr("lookahead is \"two\""));
  EXPECT_THAT(refused("bucket_mib=5:fast"), HasSubstr("'fast' is no setting"));
  EXPECT_THAT(refused("bucket_mib="), HasSubstr("bucket_mib is \"\""));
  EXPECT_THAT(refused("stage=3"), HasSubstr("mode engine2 was asked for"));
  EXPECT_THAT(refused("clip_norm=1"), HasSubstr("for zero::Engine"));
  EXPECT_THAT(refused("loss_scale=2"), HasSubstr("for zero::Engine"));
  EXPECT_THAT(refused("reduce_in_float32=true"), HasSubstr("for zero::Engine"));
  EXPECT_THAT(refused("config=/not/there"), HasSubstr("'/not/there' cannot be read"));
  EXPECT_THAT(refused("deepspeed=/not/there"), ::testing::StartsWith("the engine configuration"));
  EXPECT_THAT(refused("config=/tmp"), HasSubstr("'/tmp' cannot be read"));
  EXPECT_THAT(refused("lookahead=1:lookahead=2"),
              HasSubstr("'2' is the second value of lookahead"));
}

TEST(EngineConfig, OfACommandLineBeginsWithAFile) {
  const testing::TestFolder folder;
  const std::string file = (folder / "engine.json").string();
  std::ofstream(file) << R"({"stage": 3, "lookahead": 4, "bucket_mib": 5})";
  const OverlapOptions options = overlap_options(3, "config=" + file + ":lookahead=2");
  EXPECT_EQ(options.bucket_bytes, 5 << 20);
  EXPECT_EQ(options.lookahead, 2);
  EXPECT_THAT(testing::error_of([&] { overlap_options(2, "config=" + file); }),
              HasSubstr("stage is 3, but mode engine2 was asked for"));
  const std::string deepspeed = (folder / "ds.json").string();
  std::ofstream(deepspeed) << R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": 1000}})";
  EXPECT_EQ(overlap_options(2, "deepspeed=" + deepspeed).bucket_bytes, 4000);
  std::vector<std::string> notes;
  const std::string with_more = (folder / "more.json").string();
  std::ofstream(with_more) << R"({"stage": 2, "sub_group_size": 1e9})";
  overlap_options(2, "deepspeed=" + with_more, &notes);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("sub_group_size")));
  EXPECT_THAT(testing::error_of([&] { overlap_options(3, "deepspeed=" + deepspeed); }),
              HasSubstr("stage is 2, but mode engine3 was asked for"));
}

TEST(EngineConfig, ReadsEveryKey) {
  const EngineConfig config = engine_config(
      R"({"stage": 2, "bucket_mib": 0.5, "in_flight_mib": 3, "lookahead": 4, "whole_below": 1000,
          "accumulation_steps": 8, "clip_norm": 1.5, "loss_scale": 1024, "keep_buffers": false, "keep_gradients": false,
          "reduce_in_float32": true, "defer_parameter_gather": true, "on_nonfinite_gradient": "skip"})");
  EXPECT_EQ(config.overlap.stage, 2);
  EXPECT_EQ(config.overlap.bucket_bytes, 512 << 10);
  EXPECT_EQ(config.overlap.in_flight_bytes, 3 << 20);
  EXPECT_EQ(config.overlap.lookahead, 4);
  EXPECT_EQ(config.overlap.whole_below, 1000);
  EXPECT_FALSE(config.overlap.keep_buffers);
  EXPECT_FALSE(config.overlap.keep_gradients);
  EXPECT_TRUE(config.reduce_in_float32);
  EXPECT_TRUE(config.overlap.defer_parameter_gather);
  EXPECT_EQ(config.on_nonfinite_gradient, train::OnNonfiniteGradient::kSkip);
  EXPECT_EQ(config.accumulation_steps, 8);
  EXPECT_EQ(config.clip_norm, 1.5);
  EXPECT_EQ(config.loss_scale.initial, 1024);
  const EngineConfig automatic = engine_config(R"({"lookahead": "auto", "ahead_mib": 64})");
  EXPECT_EQ(automatic.overlap.lookahead, kAutoLookahead);
  EXPECT_EQ(automatic.overlap.ahead_bytes, 64 << 20);
  EXPECT_EQ(engine_config(R"({"whole_below": "hybrid"})").overlap.whole_below, 100'000'000);
}

TEST(EngineConfig, LeavesWhatIsNotSaidAtItsDefault) {
  const EngineConfig config = engine_config("{}");
  EXPECT_EQ(config.overlap.stage, 3);
  EXPECT_EQ(config.overlap.bucket_bytes, 25 << 20);
  EXPECT_EQ(config.overlap.in_flight_bytes, 50 << 20);
  EXPECT_EQ(config.overlap.lookahead, 1);
  EXPECT_TRUE(config.overlap.keep_buffers);
  EXPECT_FALSE(config.overlap.defer_parameter_gather);
  EXPECT_EQ(config.on_nonfinite_gradient, train::OnNonfiniteGradient::kError);
  EXPECT_EQ(config.accumulation_steps, 1);
}

TEST(EngineConfig, RefusesWhatItDoesNotKnowOrCannotBe) {
  EXPECT_THAT(refused(R"({"stages": 2})"), HasSubstr("unknown key 'stages'; known keys: "));
  EXPECT_THAT(refused(R"({"stage": 4})"), HasSubstr("stage is 4; it must be 0, 1, 2 or 3"));
  EXPECT_THAT(refused(R"({"stage": 2.5})"), HasSubstr("stage is 2.5"));
  EXPECT_THAT(refused(R"({"stage": "3"})"), HasSubstr("stage is \"3\""));
  EXPECT_THAT(refused(R"({"bucket_mib": 0})"), HasSubstr("bucket_mib is 0"));
  for (const char* size : {"1e-300", "1e300", "8796093022208"}) {
    EXPECT_THAT(refused(fmt::format(R"({{"bucket_mib": {}}})", size)),
                HasSubstr("it must be a number of MiB, from one byte to 1e+09"));
  }
  EXPECT_THAT(refused(R"({"lookahead": 9223372036854775807})"), HasSubstr("from 0 to 9e+15"));
  EXPECT_THAT(refused(R"({"lookahead": -1})"), HasSubstr("lookahead is -1"));
  EXPECT_THAT(refused(R"({"lookahead": 1.5})"),
              HasSubstr("\"auto\" or a whole number from 0 to 9e+15"));
  EXPECT_THAT(refused(R"({"lookahead": "automatic"})"), HasSubstr("lookahead is \"automatic\""));
  EXPECT_THAT(refused(R"({"accumulation_steps": 0})"), HasSubstr("a whole number from 1 to 9e+15"));
  EXPECT_THAT(refused(R"({"clip_norm": -1})"), HasSubstr("clip_norm is -1"));
  EXPECT_THAT(refused(R"({"loss_scale": 1000})"), HasSubstr("loss_scale is 1000"));
  EXPECT_THAT(refused(R"({"loss_scale": "big"})"), HasSubstr("loss_scale is \"big\""));
  EXPECT_THAT(refused(R"({"keep_buffers": 1})"), HasSubstr("keep_buffers is 1; it must be true"));
  EXPECT_THAT(refused(R"({"on_nonfinite_gradient": "ignore"})"),
              HasSubstr("it must be \"error\" or \"skip\""));
  EXPECT_THAT(refused("[1]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refused("{"), HasSubstr("is not JSON"));
}

TEST(EngineConfig, RefusesWhatIsNestedTooDeeply) {
  constexpr int kLevels = 300'000;
  const std::string deep =
      "{\"stage\": " + std::string(kLevels, '[') + std::string(kLevels, ']') + "}";
  EXPECT_THAT(refused(deep), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(refused_deepspeed(deep), HasSubstr("nested deeper than 64 levels"));
}

TEST(DeepSpeedConfig, ReadsTheBlockInItsFileAndAlone) {
  const std::string block =
      R"({"stage": 3, "overlap_comm": true, "reduce_bucket_size": 5e6,
          "stage3_prefetch_bucket_size": 5e7, "stage3_param_persistence_threshold": 100000,
          "contiguous_gradients": true})";
  for (const std::string& text :
       {block, R"({"train_batch_size": 8, "gradient_accumulation_steps": 4,
                   "gradient_clipping": 0.5, "zero_optimization": )" +
                   block + "}"}) {
    const ReadConfig read = engine_config_from_deepspeed(text);
    EXPECT_EQ(read.config.overlap.stage, 3);
    EXPECT_EQ(read.config.overlap.bucket_bytes, 20'000'000);
    EXPECT_EQ(read.config.overlap.in_flight_bytes, 40'000'000);
    EXPECT_EQ(read.config.overlap.lookahead, 1);
    EXPECT_EQ(read.config.overlap.whole_below, 100000);
    EXPECT_EQ(read.config.accumulation_steps, text == block ? 1 : 4);
    EXPECT_EQ(read.config.clip_norm, text == block ? 0.0 : 0.5);
    EXPECT_EQ(read.notes, text == block ? std::vector<std::string>{}
                                        : std::vector<std::string>{"train_batch_size is not read"});
  }
}

TEST(DeepSpeedConfig, CountsElementsByDtype) {
  const auto bucket = [](const std::string& dtype) {
    return engine_config_from_deepspeed(
               R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": 1000}, )" + dtype + "}")
        .config.overlap.bucket_bytes;
  };
  EXPECT_EQ(bucket(R"("bf16": {"enabled": true})"), 2000);
  EXPECT_EQ(bucket(R"("fp16": {"enabled": true, "loss_scale": 0})"), 2000);
  EXPECT_EQ(bucket(R"("bf16": {"enabled": false}, "fp16": {})"), 4000);
  EXPECT_THAT(refused_deepspeed(R"({"bf16": true, "zero_optimization": {}})"),
              HasSubstr("bf16 is true; it must be a JSON object"));
}

// As transformers' Trainer writes it: what is not known before is "auto".
TEST(DeepSpeedConfig, AutoIsTheDefault) {
  const ReadConfig read = engine_config_from_deepspeed(
      R"({"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "optimizer": {},
          "bf16": "auto",
          "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "overlap_comm": "auto"}})");
  const EngineConfig plain = engine_config("{}");
  EXPECT_EQ(read.config.accumulation_steps, 1);
  EXPECT_EQ(read.config.clip_norm, 0);
  EXPECT_EQ(read.config.overlap.bucket_bytes, plain.overlap.bucket_bytes);
  EXPECT_EQ(read.config.overlap.lookahead, plain.overlap.lookahead);
  EXPECT_THAT(read.notes,
              ::testing::UnorderedElementsAre(
                  HasSubstr("gradient_accumulation_steps is \"auto\""),
                  HasSubstr("gradient_clipping is"), HasSubstr("bf16 is"), "optimizer is not read",
                  HasSubstr("reduce_bucket_size is"), HasSubstr("overlap_comm is")));
}

TEST(DeepSpeedConfig, WithoutOverlapNothingIsAhead) {
  const ReadConfig read = engine_config_from_deepspeed(
      R"({"stage": 3, "overlap_comm": false, "reduce_bucket_size": 100})");
  EXPECT_EQ(read.config.overlap.lookahead, 0);
  EXPECT_EQ(read.config.overlap.in_flight_bytes, 400);
  EXPECT_EQ(engine_config_from_deepspeed(R"({"stage": 3, "stage3_prefetch_bucket_size": 0})")
                .config.overlap.lookahead,
            0);
  EXPECT_EQ(engine_config_from_deepspeed("{}").config.overlap.stage, 0);
}

TEST(DeepSpeedConfig, SaysWhatMakesNoDifferenceAndRefusesOffload) {
  EXPECT_THAT(engine_config_from_deepspeed(R"({"stage": 2, "sub_group_size": 1e9})").notes,
              ElementsAre(HasSubstr("sub_group_size makes no difference here")));
  EXPECT_THAT(engine_config_from_deepspeed(R"({"offload_param": {"device": "none"}})").notes,
              IsEmpty());
  EXPECT_THAT(refused_deepspeed(R"({"offload_optimizer": {"device": "cpu"}})"),
              HasSubstr("offload_optimizer is {\"device\":\"cpu\"}; it must be left out"));
  EXPECT_THAT(refused_deepspeed(R"({"stage": 3, "overlap_com": true})"),
              HasSubstr("unknown key 'overlap_com'; known keys: "));
  EXPECT_THAT(refused_deepspeed(R"({"zero_optimization": 3})"),
              HasSubstr("zero_optimization must be a JSON object"));
}

}  // namespace
}  // namespace zero
