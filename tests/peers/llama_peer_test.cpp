// SmolLM2's architecture beside Hugging Face's transformers, both directions: what save_pretrained
// writes is read here and gives the same logits, and what is saved here loads there and does too,
// as a model and out of a checkpoint.
#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>
#include <c10/core/GradMode.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include <tests/support/deferred.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/python.hpp>
#include <tests/support/test_folder.hpp>
#include <tools/ladder/data/dataset.hpp>
#include <tools/models/presets.hpp>
#include <zero/io/checkpoint.hpp>
#include <zero/io/save_model.hpp>
#include <zero/io/stored_values.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

namespace fs = std::filesystem;

constexpr double kTolerance = 1e-4;  // of a logit, in float32

struct Case {
  std::string model;
  std::string task;
  std::string mode;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ", " << c.task << ", " << c.mode;
}

class LlamaPeer : public ::testing::TestWithParam<Case> {
 protected:
  bool classifier() const { return GetParam().task == "reviews"; }
  fs::path from_python() const { return folder_ / "from_python"; }
  fs::path from_cpp() const { return folder_ / "from_cpp"; }

  nn::LlamaConfig config_of(const fs::path& folder) const {
    nn::LlamaConfig config = nn::llama_config_from_json(tools::read_config_text(folder));
    if (classifier()) config.classes = data::kReviewClasses;
    return config;
  }

  // Sharded as finely as it goes: the model is never whole on a rank, neither to be read nor to be
  // saved.
  void read_compare_save(dist::Communicator& communicator) const {
    const nn::LlamaConfig config = config_of(from_python());
    const auto model = make_deferred<nn::Llama>(config);
    io::StoredValues values(from_python(), nn::list_parameters(*model),
                            io::llama_values_options(config, /*seed=*/1));
    EXPECT_TRUE(values.missing().empty());
    EXPECT_NE(values.describe().find("bfloat16, converted to float32"), std::string::npos);
    const auto strategy =
        make_strategy(GetParam().mode, {*model, communicator, optim::adamw(), &values});
    compare_logits(*model);
    io::save_model(*strategy,
                   nn::to_hugging_face_json(config, tools::read_config_text(from_python())),
                   from_cpp());
    io::CheckpointInfo info;
    info.step = 100;
    if (from_a_checkpoint()) io::save_checkpoint(*strategy, from_checkpoint() / "out/run", info);
  }

  // One file, and the tied weight in it under one name.
  void expect_layout_of_transformers() const {
    EXPECT_TRUE(fs::exists(from_cpp() / "model.safetensors"));
    EXPECT_EQ(std::distance(fs::directory_iterator(from_cpp()), fs::directory_iterator()), 2);
    const safetensors::Folder saved(from_cpp());
    EXPECT_TRUE(saved.contains("model.embed_tokens.weight"));
    EXPECT_FALSE(saved.contains("lm_head.weight"));
  }

  // Loads folders with transformers and compares their logits with those of the first model.
  void expect_logits_there(const std::vector<fs::path>& folders) const {
    std::string command = script() + "check " + shell_word(from_python() / "logits.safetensors");
    for (const fs::path& folder : folders) command += " " + shell_word(folder);
    const ProcessResult ended = run_python(command);
    EXPECT_EQ(ended.code, 0) << ended.said;
    std::cout << ended.said;
  }

  // The checkpoint of all ranks, put together by the lines of the documents.
  fs::path export_checkpoint() const {
    fs::copy(from_cpp() / "config.json", from_checkpoint());
    const ProcessResult ended = run_lines_of("docs/checkpoints.md", from_checkpoint());
    EXPECT_EQ(ended.code, 0) << ended.said;
    return from_checkpoint();
  }

  fs::path from_checkpoint() const { return folder_ / "from_checkpoint"; }
  bool from_a_checkpoint() const { return GetParam().model == "tiny"; }
  static std::string script() {
    return shell_word(fs::canonical(__FILE__).parent_path() / "llama_peer.py") + " ";
  }

  void compare_logits(nn::Llama& model) const {
    const safetensors::File expected(from_python() / "logits.safetensors");
    data::Batch batch;
    batch.inputs = expected.read("input_ids");
    if (classifier()) batch.lengths = expected.read("lengths");
    const c10::NoGradGuard no_grad;
    const at::Tensor found = model.predict(batch.inputs, batch.lengths);
    const at::Tensor logits = expected.read("logits");
    ASSERT_EQ(found.sizes(), logits.sizes());
    EXPECT_EQ(logits.size(0) * (classifier() ? 128 : logits.size(1)), 2 * 128);
    EXPECT_LT(at::max(at::abs(found - logits)).item<double>(), kTolerance);
    EXPECT_GT(logits.std().item<double>(), 0.1) << "logits that say nothing compare nothing";
  }

  testing::TestFolder folder_;
};

TEST_P(LlamaPeer, SameLogitsFromTheirFilesAndFromOurs) {
  if (!python_has({"torch", "transformers", "safetensors"})) {
    GTEST_SKIP() << "transformers IS NOT COMPARED WITH: " << python()
                 << " lacks torch, transformers or safetensors. To enable: " << python()
                 << " -m pip install -r requirements-peers.txt, or set ZERO_PYTHON.";
  }
  const ProcessResult made =
      run_python(script() + "make " + shell_word(from_python()) + " --model " + GetParam().model +
                 " --task " + GetParam().task);
  ASSERT_EQ(made.code, 0) << made.said;
  std::cout << made.said;
  on_ranks({.timeout = std::chrono::seconds(100), .total_timeout = std::chrono::seconds(250)},
           [this](dist::Communicator& communicator) { read_compare_save(communicator); });
  expect_layout_of_transformers();
  std::vector<fs::path> folders = {from_cpp()};
  if (from_a_checkpoint()) folders.push_back(export_checkpoint());
  expect_logits_there(folders);
}

INSTANTIATE_TEST_SUITE_P(Tiny, LlamaPeer,
                         ::testing::Values(Case{"tiny", "text", "tensor_zero3"},
                                           Case{"tiny", "reviews", "zero3"}),
                         [](const auto& info) { return info.param.task; });
INSTANTIATE_TEST_SUITE_P(SmolLM2_360M, LlamaPeer,
                         ::testing::Values(Case{"smollm2-360m", "text", "zero3"}),
                         [](const auto& info) { return info.param.task; });

}  // namespace
}  // namespace zero::testing
