// The script that reads a checkpoint with nothing of ours, as docs/checkpoints.md describes it,
// refuses what is damaged. saved_weights_test.cpp compares what it puts together with the model.
#include <tests/support/error_of.hpp>
#include <tests/support/python.hpp>

#include "one_checkpoint.hpp"

namespace zero::testing {
namespace {

class Export : public OneCheckpoint {};

TEST_F(Export, RefusesWhatIsDamagedAndWritesNothing) {
  if (run_python("-c 'import sys; sys.exit(sys.version_info < (3, 9))'").code != 0) {
    GTEST_SKIP() << "THE EXPORT IS NOT TESTED: there is no Python 3.9 or later (set ZERO_PYTHON)";
  }
  on_two_ranks([](Session&) {});
  const fs::path output = folder_ / "model.safetensors";
  const auto expect_refusal = [&](const std::string& reason, const std::function<void()>& damage) {
    fs::remove_all(bad_);
    fs::copy(good_, bad_, fs::copy_options::recursive);
    damage();
    const ProcessResult ended = run_python(fmt::format(
        "tools/checkpoint/export_checkpoint.py '{}' '{}'", bad_.string(), output.string()));
    EXPECT_EQ(ended.code, 1) << ended.said;
    EXPECT_THAT(ended.said, HasSubstr(reason));
    EXPECT_FALSE(fs::exists(output)) << reason;
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
