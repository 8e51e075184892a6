// The ladder program on a tiny model: weights in and out, kinds of data, traces.
#include <ATen/ops/ones.h>

#include <nlohmann/json.hpp>
#include <set>

#include <tests/support/bad_input.hpp>
#include <tests/support/deferred.hpp>
#include <tests/support/ladder_program.hpp>
#include <tests/support/save_safetensors_folder.hpp>
#include <tests/support/token_file_writer.hpp>
#include <tools/ladder/data/dataset.hpp>
#include <tools/models/presets.hpp>
#include <zero/base/sha256.hpp>
#include <zero/nn/llama.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::ladder {
namespace {

using nlohmann::json;
using testing::figures_of;
using ::testing::HasSubstr;
using testing::kQuick;
using ::testing::Not;
using testing::ProcessResult;
using testing::row_of;
using testing::run_ladder;
using testing::shell_word;
using testing::succeed;
using testing::TestFolder;

std::string digest_of(const json& report, const std::string& mode) {
  return row_of(report, mode).at("ranks").at(0).at("digest");
}

void expect_identical(const json& report, std::size_t modes) {
  EXPECT_EQ(report.at("modes").size(), modes);
  for (const json& row : report.at("modes")) EXPECT_EQ(row.at("identical_to_ddp"), true) << row;
}

nn::ParameterList tiny_parameters(std::int64_t classes) {
  nn::LlamaConfig config = tools::preset("tiny");
  config.classes = classes;
  return nn::list_parameters(*testing::make_deferred<nn::Llama>(config));
}

// What the ladder reports as the digest of a model with the tensors of this folder.
std::string digest_of_folder(const std::filesystem::path& path, std::int64_t classes) {
  const safetensors::Folder folder(path);
  base::Sha256 all;
  for (const nn::Parameter& p : tiny_parameters(classes).parameters) {
    const at::Tensor tensor = folder.read(p.name);
    all.add(base::Sha256().add(tensor.const_data_ptr(), tensor.nbytes()).hex());
  }
  return all.hex();
}

// A folder of weights for the tiny language model, without the tensor of this name.
std::string tiny_weights(const TestFolder& folder, const std::string& without = "") {
  safetensors::NamedTensors tensors;
  for (const nn::Parameter& p : tiny_parameters(/*classes=*/0).parameters) {
    if (p.name != without) tensors.emplace_back(p.name, at::ones(p.tensor.sizes()));
  }
  testing::save_safetensors_folder(folder / "weights", tensors);
  folder.write("weights/config.json", nn::to_hugging_face_json(tools::preset("tiny")).dump());
  return (folder / "weights").string();
}

TEST(Links, BetweenHostsChangeNoWeights) {
  const TestFolder folder;
  const std::string run = kQuick + "--nproc 4 --modes ddp,engine3,hpz ";
  const auto sent = [](const json& report, const std::string& mode) {
    return row_of(report, mode).at("ranks").at(3).at("sent_between_hosts_bytes").get<double>();
  };
  const json plain = figures_of(folder, run);
  const auto [said, linked] = succeed(folder, run + "--ranks-per-host 2 --link 0.5gbit");
  EXPECT_THAT(said, HasSubstr("on 4 ranks, 2 a host, 0.5gbit between hosts, 2 steps"));
  EXPECT_EQ(linked.at("link"), "0.5gbit");
  for (const char* const mode : {"ddp", "engine3", "hpz"}) {
    EXPECT_EQ(digest_of(linked, mode), digest_of(plain, mode)) << mode;
    EXPECT_EQ(sent(plain, mode), 0) << mode;
  }
  // Groups of a host, which hpZ finds for itself, keep its second gather inside.
  EXPECT_GT(sent(linked, "hpz"), 0);
  EXPECT_LT(sent(linked, "hpz"), sent(linked, "engine3"));
}

TEST(Reviews, EveryModeTrainsTheClassifierToTheSameWeights) {
  const TestFolder folder;
  const auto [said, report] = succeed(folder, kQuick + "--task reviews");
  EXPECT_THAT(said, HasSubstr("tiny as 5-class classifier on 2 ranks"));
  expect_identical(report, 4);
  EXPECT_EQ(report.at("parameters"), tiny_parameters(data::kReviewClasses).numel());
  EXPECT_EQ(report.at("task"), "reviews");
  // At the published size a column is to be right within 0.01 MiB; nothing else may be resident.
  for (const json& row : report.at("modes")) EXPECT_LT(row.at("other_mib_max"), 0.005) << row;
}

TEST(MuonOfTheLadder, HasTheBitsOfDdpAndOneMomentOfAHiddenMatrix) {
  const json report = figures_of(TestFolder(), kQuick + "--nproc 3 --optimizer muon");
  expect_identical(report, 4);
  EXPECT_EQ(report.at("optimizer"), "Muon");
  const json& ddp = row_of(report, "ddp").at("ranks").at(0);
  const double v = ddp.at("parameter_mib"), states = ddp.at("optimizer_mib");
  EXPECT_GT(states, v);  // of all others there are two
  EXPECT_LT(states, 1.5 * v);
}

TEST(OptimizerStatesOnADisk, AreOneMoreRowWithItsBytes) {
  const TestFolder folder;
  const json report =
      figures_of(folder, kQuick + "--modes ddp,engine3:offload=" + folder.path().string());
  expect_identical(report, 2);
  const json& row = report.at("modes").at(1);
  EXPECT_EQ(row.at("mode"), "engine3:offload=" + folder.path().string());
  EXPECT_DOUBLE_EQ(row.at("optimizer_mib"), 2 * (16 + 4.0 / 1024));
}

TEST(Text, TokenFileIsTrainedOnAndASmallerVocabularyIsMentioned) {
  const TestFolder folder;
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 400; ++i) ids.push_back(i * i % 101);
  testing::write_token_file(folder / "t",
                            testing::stream_of(ids, /*vocabulary=*/200, std::string(64, 'a')));
  const auto [said, report] = succeed(folder, kQuick + "--data" + shell_word(folder / "t"));
  EXPECT_THAT(said, HasSubstr("the data's vocabulary is 200, the model's 256"));
  expect_identical(report, 4);
}

// The trace of the first mode takes the place of a text.
TEST(Text, ThatChangesBetweenTwoModesEndsTheRun) {
  const TestFolder folder;
  const std::filesystem::path text = folder.write("t.ddp.rank0.json", std::string(2000, 'z'));
  const ProcessResult ended =
      run_ladder(folder, kQuick + "--modes ddp,engine1 --data" + shell_word(text) + "--trace" +
                             shell_word(folder / "t.json"));
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.said, HasSubstr("mode engine1 failed"));
  EXPECT_THAT(ended.said, HasSubstr("the data has changed since the run began"));
}

// What is gathered inside groups has the weights of ddp; what is rounded has others, on all ranks
// the same. The program compares the bytes of a second step, and of a first one, with the formula.
// tests/parity has the modes on other ranks.
TEST(GroupsOfRanks, TrainUnderZeroPlusPlus) {
  const TestFolder folder;
  const json report =
      figures_of(folder, kQuick +
                             "--nproc 4 --data LICENSE --modes ddp,hpz:group_size=2,"
                             "qwz:group_size=2,zeropp:group_size=2");
  std::vector<double> sent;
  for (const json& mode : report.at("modes")) {
    const bool rounds = sent.size() > 1;
    EXPECT_EQ(mode.at("identical_to_ddp"), rounds ? json(nullptr) : json(true)) << mode.at("mode");
    EXPECT_EQ(mode.at("rounds"), rounds) << mode.at("mode");
    EXPECT_FALSE(mode.at("digest").is_null()) << mode.at("mode");
    EXPECT_NEAR(mode.at("loss_last").get<double>(),
                report.at("modes")[0].at("loss_last").get<double>(), 0.05);
    sent.push_back(mode.at("sent_in_v").get<double>());
  }
  ASSERT_EQ(sent.size(), 4U);
  EXPECT_LT(sent[3], sent[2]);
  EXPECT_LT(sent[2], sent[1]);
  figures_of(
      folder,
      "--model tiny --steps 1 --seq-len 16 --no-compute-alone --timeout 30 --nproc 4 --modes "
      "zeropp:group_size=2");
}

// tests/checkpoint/saved_weights_test.cpp saves what was trained under every way to hold
// parameters.
TEST(SavedWeights, AreWhatWasTrainedAndCanBeTrainedOn) {
  for (const std::string mode : {"zero3", "engine2"}) {
    SCOPED_TRACE(mode);
    const TestFolder folder;
    const std::string saved = (folder / "saved").string();
    const auto [first_said, first] =
        succeed(folder, kQuick + "--modes ddp," + mode + " --nproc 3 --save" + shell_word(saved));
    EXPECT_THAT(first_said, HasSubstr("weights: " + saved));
    EXPECT_EQ(digest_of_folder(saved, /*classes=*/0), digest_of(first, "ddp"));
    EXPECT_THAT(folder.listing(), ::testing::ElementsAre("out.json", "saved", "saved/config.json",
                                                         "saved/model.safetensors"));
    EXPECT_EQ(nn::llama_config_from_json(testing::read_bytes(folder / "saved/config.json")),
              tools::preset("tiny"));

    // What was saved is where the next run begins, in every mode.
    const auto [said, second] =
        succeed(folder, "--steps 1 --seq-len 16 --no-compute-alone --weights" + shell_word(saved));
    EXPECT_THAT(said, HasSubstr("20 tensors from " + saved + ": float32\n"));
    expect_identical(second, 4);
    EXPECT_EQ(second.at("model"), "saved");
  }
}

TEST(Weights, ValuesAreThoseOfTheFolder) {
  // With a learning rate too small to change a float, what was read is what is saved.
  const TestFolder folder;
  const std::string weights = tiny_weights(folder);
  const std::string saved = (folder / "saved").string();
  const ProcessResult ended = run_ladder(
      folder, "--steps 1 --seq-len 16 --no-compute-alone --lr 1e-30 --modes zero3 --weights" +
                  shell_word(weights) + "--save" + shell_word(saved));
  EXPECT_EQ(ended.code, 1);  // the ladder insists on weights that change
  EXPECT_THAT(ended.said, HasSubstr("FAILED zero3"));
  EXPECT_EQ(digest_of_folder(saved, 0), digest_of_folder(weights, 0));
}

// Expects that training from a folder is refused and writes nothing.
void expect_weights_refused(const TestFolder& folder, const std::string& more,
                            const std::string& message) {
  const std::string said = testing::expect_refused(
      folder, "--weights" + shell_word(folder / "weights") + more, {message});
  EXPECT_THAT(said, Not(HasSubstr("step 1/")));
}

TEST(Weights, OfAnotherModelAreRefused) {
  const TestFolder folder;
  tiny_weights(folder, "model.layers.0.self_attn.q_proj.weight");
  expect_weights_refused(folder, "",
                         "tensor \"model.layers.0.self_attn.q_proj.weight\" is missing");
}

TEST(Weights, TokensOfAnotherTokenizerAreRefused) {
  const TestFolder folder;
  tiny_weights(folder);
  const std::string tokenizer = "{\"version\": \"1.0\"}";
  folder.write("weights/tokenizer.json", tokenizer);
  const std::vector<std::int64_t> ids(400, 7);
  const auto write = [&](const std::string& fingerprint) {
    testing::write_token_file(folder / "t", testing::stream_of(ids, 256, fingerprint));
  };
  const std::string data = "--data" + shell_word(folder / "t");
  write(base::Sha256().add(tokenizer + " ").hex());
  expect_weights_refused(folder, data, "were made by the tokenizer");
  write(base::Sha256().add(tokenizer).hex());
  const ProcessResult ended =
      run_ladder(folder, data + "--modes ddp --steps 1 --seq-len 8 --weights" +
                             shell_word(folder / "weights"));
  EXPECT_THAT(ended.said, Not(HasSubstr("were made by the tokenizer")));
  EXPECT_TRUE(std::filesystem::exists(folder / "out.json")) << ended.said;
}

// The names of all events in a trace.
std::set<std::string> names_in(const std::filesystem::path& path) {
  std::set<std::string> names;
  const json trace = json::parse(testing::read_bytes(path), nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(trace.is_object()) << path << " is not JSON";
  if (!trace.is_object()) return names;
  for (const json& event : trace.at("traceEvents")) {
    if (event.contains("name")) names.insert(event.at("name").get<std::string>());
  }
  return names;
}

TEST(Trace, EveryModeAndRankHasOneWithTheNamedRanges) {
  const TestFolder folder;
  figures_of(folder, kQuick + "--modes ddp,zero1:naive,zero2,zero3 --trace" +
                         shell_word(folder / "traces/t.json"));
  const std::map<std::string, std::vector<std::string>> ranges = {
      {"ddp", {"ddp_grad_all_reduce"}},
      {"zero1-naive", {"zero1_grad_reduce", "zero1_param_broadcast"}},
      {"zero2", {"zero2_grad_reduce", "zero2_param_broadcast"}},
      {"zero3", {"zero3_grad_reduce", "zero3_param_gather"}}};
  for (const auto& [mode, expected] : ranges) {
    for (const char* rank : {"rank0", "rank1"}) {
      const std::set<std::string> names =
          names_in(folder / ("traces/t." + mode + "." + rank + ".json"));
      for (const std::string& range : expected) EXPECT_TRUE(names.contains(range)) << mode << range;
      for (const char* range : {"forward", "backward", "optimizer", "aten::mm"}) {
        EXPECT_TRUE(names.contains(range)) << mode << range;
      }
    }
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "traces"), {}), 8);
}

}  // namespace
}  // namespace zero::ladder
