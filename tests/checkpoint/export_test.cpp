// The script that reads a checkpoint with nothing of ours, as docs/checkpoints.md describes it:
// what it puts together is the model, and what is damaged it refuses.
#include <ATen/ops/equal.h>

#include <tests/support/error_of.hpp>
#include <tests/support/python.hpp>
#include <zero/safetensors/safetensors.hpp>

#include "one_checkpoint.hpp"

namespace zero::testing {
namespace {

class Export : public OneCheckpoint {
 protected:
  void SetUp() override {
    const ProcessResult ended = run_python("-c 'import sys; sys.exit(sys.version_info < (3, 9))'");
    if (ended.code != 0) {
      GTEST_SKIP() << "THE EXPORT IS NOT TESTED: there is no Python 3.9 or later (set ZERO_PYTHON)";
    }
  }

  ProcessResult run_script(const fs::path& checkpoint) const {
    return run_python(fmt::format("tools/checkpoint/export_checkpoint.py '{}' '{}'",
                                  checkpoint.string(), output_.string()));
  }

  const fs::path output_ = folder_ / "model.safetensors";
};

TEST_F(Export, GivesEveryParameterOnceAtAnyWorldSizeAndUnderAnyStrategy) {
  const std::pair<const char*, int> savers[] = {
      {"ddp", 2}, {"zero3", 3}, {"tensor_zero1", 2}, {"tensor_zero3", 3}};
  for (const auto& [mode, ranks] : savers) {
    on_ranks(ranks, [&, mode = mode](dist::Communicator& communicator) {
      Session session(communicator, mode, options_);
      session.step(0);
      io::save_checkpoint(session.strategy(), good_, note(1, mode));
      const WholeState state = whole_state(session);
      if (communicator.rank() == 0) keep(folder_ / "expected.safetensors", state);
    });
    const ProcessResult ended = run_script(good_);
    ASSERT_EQ(ended.code, 0) << ended.said;
    EXPECT_THAT(ended.said, HasSubstr(fmt::format("saved by {} on {} ranks", mode, ranks)));
    const safetensors::File exported(output_);
    EXPECT_EQ(exported.metadata(), (safetensors::Metadata{{"format", "pt"}}));
    std::size_t parameters = 0;
    for (const auto& [name, tensor] : kept(folder_ / "expected.safetensors")) {
      if (!name.starts_with("parameter/")) continue;
      ++parameters;
      EXPECT_TRUE(at::equal(exported.read(name.substr(10)), tensor)) << mode << ": " << name;
    }
    EXPECT_EQ(exported.names().size(), parameters) << "a tied weight is there once";
  }
}

TEST_F(Export, RefusesWhatIsDamagedAndWritesNothing) {
  on_two_ranks([](Session&) {});
  const auto expect_refusal = [&](const std::string& reason, const std::function<void()>& damage) {
    fs::remove_all(bad_);
    fs::copy(good_, bad_, fs::copy_options::recursive);
    damage();
    const ProcessResult ended = run_script(bad_);
    EXPECT_EQ(ended.code, 1) << ended.said;
    EXPECT_THAT(ended.said, HasSubstr(reason));
    EXPECT_FALSE(fs::exists(output_)) << reason;
  };
  expect_refusal("rank-00001-of-00002.safetensors: was altered",
                 [&] { flip_bit(rank_file(1), 0.5); });
  expect_refusal("rank-00000-of-00002.safetensors: has 9 bytes",
                 [&] { fs::resize_file(rank_file(0), 9); });
  expect_refusal("rank-00000-of-00002.safetensors: No such file",
                 [&] { fs::remove(rank_file(0)); });
  expect_refusal("manifest.json: ", [&] { flip_bit(bad_ / "manifest.json", 0.5); });
  expect_refusal("has version 3, this script reads versions 1 and 2",
                 [&] { rewrite_manifest([](nlohmann::json& m) { m["version"] = 3; }); });
  expect_refusal("its JSON is nested too deeply",
                 [&] { write(bad_ / "manifest.json", "{\"a\": " + nested_json() + "}"); });
  expect_refusal("is not laid out as docs/checkpoints.md says: KeyError: 'runs'", [&] {
    rewrite_manifest([](nlohmann::json& m) { m["parameters"][0].erase("runs"); });
  });
  expect_refusal("is not the manifest of a checkpoint",
                 [&] { write(bad_ / "manifest.json", "[]"); });
}

}  // namespace
}  // namespace zero::testing
