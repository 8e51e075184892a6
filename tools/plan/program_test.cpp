// Runs the planner as a user does: what it prints, writes and exits with.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include <tests/support/python.hpp>
#include <zero/base/arguments.hpp>
#include <zero/base/json.hpp>
#include <zero/nn/llama_config.hpp>

namespace zero::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProcessResult;

// In the folder of the project, with words for the shell.
ProcessResult run_plan(const std::string& arguments) {
  return testing::run_command(fmt::format("'{}' {}", ZERO_PLAN_PROGRAM, arguments));
}

TEST(PlanProgram, ExitsWithItsVerdict) {
  const ProcessResult no = run_plan("--parameters 13e9 --world-size 8 --memory 24GB");
  EXPECT_EQ(no.code, 3);
  EXPECT_THAT(no.said,
              AllOf(HasSubstr("No stage fits 24.00 GB on 8 ranks"), HasSubstr("fit from 9 ranks")));
  const ProcessResult yes = run_plan("--parameters 1.5e9 --nproc 8 --memory 16GB");
  EXPECT_EQ(yes.code, 0);
  EXPECT_THAT(yes.said, HasSubstr("Take ZeRO-1"));
}

TEST(PlanProgram, PlansPresetsAndWithoutMemory) {
  const ProcessResult ended = run_plan("--model smollm2-135m --dtype fp32 --world-size 2");
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.said, AllOf(HasSubstr("smollm2-135m: 134,515,008 parameters"),
                                HasSubstr("fp32 (4 + 4 + 8"), HasSubstr("513.13")));
}

TEST(PlanProgram, PlansTheMeshThatIsNamedAndExitsWithItsVerdict) {
  const std::string mesh =
      "--parameters 7e9 --nproc 8 --tp 2 --pp 2 --micro-batches 1 --pipeline-schedule gpipe ";
  const ProcessResult yes = run_plan(mesh + "--memory 40GB");
  EXPECT_EQ(yes.code, 0);
  EXPECT_THAT(yes.said, AllOf(HasSubstr("ZeRO-3 on 1x2x2x2"), HasSubstr("  40.00 GB\n")));
  EXPECT_EQ(run_plan(mesh + "--memory 2GB").code, 3);
  const ProcessResult printed = run_plan(mesh + "--json -");
  EXPECT_EQ(printed.code, 0);
  EXPECT_EQ(base::Json::parse(printed.said)["wire"].size(), 4U);
  EXPECT_THAT(run_plan("--parameters 7e9 --batch 2 --micro-batches 2").said,
              HasSubstr("ZeRO-1 on 1x8x1x1"));
}

TEST(PlanProgram, PrintsTheHybridByModuleAndByUnit) {
  const std::string asked = "--model smollm2-360m --nproc 8 --hybrid --hybrid-threshold 5M";
  const ProcessResult printed = run_plan(asked);
  EXPECT_EQ(printed.code, 0);
  using ::testing::ContainsRegex;
  EXPECT_THAT(
      printed.said,
      AllOf(ContainsRegex("model.embed_tokens +1 +47,185,920  ZeRO-3 "),
            ContainsRegex("model.layers.\\*.mlp.up_proj +32 +2,457,600  ZeRO-2 "),
            ContainsRegex("layer +32 +9,832,320  ZeRO-3 "),
            ContainsRegex("\nZeRO-2 +289 +together "), ContainsRegex("\nall +33 +together "),
            HasSubstr("5,000,000 parameters and more are under ZeRO-3")));
  const base::Json json = base::Json::parse(run_plan(asked + " --json -").said);
  EXPECT_EQ(json["modules"].size(), 14U);  // 11 and the sums
  EXPECT_EQ(json["units"][0]["stage"], "ZeRO-3");
  const ProcessResult number = run_plan("--parameters 7B --hybrid");
  EXPECT_THAT(number.said, ContainsRegex("layer +29 +212,121,212  ZeRO-3 "));
  EXPECT_THAT(run_plan("--hybrid --memory 24GB").said, HasSubstr("--memory excludes --hybrid"));
}

TEST(PlanProgram, WritesWhatIsOnTheHost) {
  const auto json = [](const std::string& more) {
    return base::Json::parse(run_plan("--model tiny --recompute --json - " + more).said);
  };
  EXPECT_EQ(json("--activations-on-host")["inputs_on_host"]["device_bytes"], 2 * 2048 * 64 * 2);
  EXPECT_FALSE(json("").contains("inputs_on_host"));
}

TEST(PlanProgram, SendsBetweenHostsInARingUnlessToldOtherwise) {
  const std::string hosts = "--parameters 7e9 --nproc 16 --ranks-per-host 8 ";
  EXPECT_THAT(run_plan(hosts).said, HasSubstr("by ring"));
  EXPECT_THAT(run_plan(hosts + "--collectives direct").said, HasSubstr("by direct sends"));
}

TEST(PlanProgram, PlansAFolderOfHuggingFace) {
  const testing::TestFolder folder;
  folder.write("config.json", nn::to_hugging_face_json(nn::preset("smollm2-360m")).dump());
  const ProcessResult ended = run_plan("--weights '" + folder.path().string() + "'");
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.said, HasSubstr("361,821,120 parameters"));
}

TEST(PlanProgram, WritesJsonOrPrintsIt) {
  const testing::TestFolder folder;
  const std::string path = (folder / "plan.json").string();
  EXPECT_EQ(run_plan("--parameters 7B --json '" + path + "'").code, 0);
  const base::Json written = base::read_json(path);
  EXPECT_EQ(written["parameters"], 7'000'000'000);
  EXPECT_TRUE(written["run"].contains("command_line"));
  const ProcessResult printed = run_plan("--parameters 1.5e9 --memory 16GB --json -");
  const base::Json json = base::Json::parse(printed.said);
  EXPECT_EQ(json["parameters"], 1'500'000'000);
  EXPECT_EQ(json["memory"][3]["model_states_total_bytes"], 3'000'000'000);
  EXPECT_EQ(json["choice"]["stage"], "ZeRO-1");
  EXPECT_EQ(json["choice"]["next"], "ZeRO-2");
  EXPECT_EQ(json["beside"][1]["name"], "ZeRO-3 + offload");
  EXPECT_EQ(json["beside"][1]["model_state_bytes"], 750'000'000);
}

TEST(PlanProgram, ItsJsonCanBeDrawn) {
  if (!testing::python_has({"matplotlib"}))
    GTEST_SKIP() << testing::python() << " has no matplotlib";
  const testing::TestFolder folder;
  const std::string path = "'" + (folder / "p.json").string() + "'";
  ASSERT_EQ(run_plan("--parameters 7B --memory 24GB --json " + path).code, 0);
  const ProcessResult ended = testing::run_python("tools/plots/plot_plan.py " + path);
  EXPECT_EQ(ended.code, 0) << ended.said;
  EXPECT_GT(std::filesystem::file_size(folder / "p.png"), 10'000U);
  EXPECT_THAT(testing::read_bytes(folder / "p.svg"), HasSubstr("</svg>"));
}

TEST(PlanProgram, DoesNotWriteOverWhatItReads) {
  const testing::TestFolder folder;
  const std::string config = nn::to_hugging_face_json(nn::preset("tiny")).dump();
  const std::string path = folder.write("config.json", config).string();
  for (const std::string& weights : {folder.path().string(), path}) {
    const ProcessResult ended = run_plan("--weights '" + weights + "' --json '" + path + "'");
    EXPECT_EQ(ended.code, 1) << ended.said;
    EXPECT_THAT(ended.said,
                HasSubstr("would be written over what --weights " + weights + " reads"));
    EXPECT_EQ(testing::read_bytes(path), config);
  }
}

TEST(PlanProgram, RefusesBadArgumentsWithAClearMessage) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--parameters 1.5x", "--parameters: '1.5x' is not a whole number"},
           {"--memory 24", "--memory: '24' is not an amount of memory"},
           {"--model smollm", "unknown model 'smollm'; known models: llama-1.5b"},
           {"--weights /nowhere", "/nowhere: no model is there"},
           {"--stage zero4", "zero4 not in {ddp,zero1,zero2,zero3}"},
           {"--world-size 0", "Value 0 not in range"},
           {"--batch 0", "Value 0 not in range"},
           {"--bandwith 3GB/s", "unknown option '--bandwith'; known options: --help"},
           {"tables", "'tables' is not expected here"},
           {"--bandwidth 100", "--bandwidth: '100' is not a bandwidth"},
           {"--latency 10", "--latency: '10' is not a time"},
           {"--flops fast", "--flops: 'fast' is not a speed"},
           {"--parameters 1e9 --layers 10001", "Value 10001 not in range"},
           {"--parameters 5 --layers 6", "5 parameters cannot be shared out over 6 layers"},
           {"--world-size 1000001", "Value 1000001 not in range"},
           {"--batch=-9223372036854775808", "not in range 1 to 1048576"},
           {"--sequence 16777217", "Value 16777217 not in range"},
           {"--batch 1048576 --sequence 16777216", "a smaller --batch or"},
           {"--parameters 1e15 --layers 10000 --batch 1048576 --sequence 1048576",
            "more than can be counted: fewer tokens a rank are needed"},
           {"--overhead nan", "'nan' is not a number"},
           {"--overhead 0", "Value 0 not in range"},
           {"--sequence=-1", "Value -1 not in range"},
           {"--batch 1048577", "Value 1048577 not in range"},
           {"--parameters 7e9 --tp 3", "--world-size 8 has no mesh with this --tp"},
           {"--model smollm2-360m --tp 2", "the model has 15 heads"},
           {"--tp 0", "Value 0 not in range"},
           {"--tp 2 --pipeline-schedule zigzag", "zigzag not in {1f1b,gpipe}"},
           {"--tp 2 --micro-batches x", "--micro-batches"},
           {"--tp 2 --partition-activations", "--partition-activations requires --recompute"},
           {"--offload-parameters", "--offload-parameters was removed: --disk-bandwidth plans"},
           {"--activations-on-host", "--activations-on-host requires --recompute"},
           {"--recompute --activations-on-host --pp 2", "excludes"},
           {"--ranks-per-host 4 --memory 24GB", "excludes"},
           {"--ranks-per-host 4 --tp 2", "excludes"},
           {"--ranks-per-host 3", "--world-size 8 is not two or more such hosts"},
           {"--host-bandwidth 10", "--host-bandwidth: '10' is not a bandwidth"},
           {"--ranks-per-host 4 --collectives hierarchical", "hierarchical not in {ring,direct}"},
           {"--scenarios --memory 24GB", "excludes"},
           {"--dtype fp8", "unknown dtype 'fp8'"},
           {"--optimizer adam", "unknown optimizer 'adam'; known optimizers: sgd, momentum, adamw"},
           {"--parameters 1e9 --model tiny", "excludes"},
           {"--model tiny --layers 3", "requires --parameters"},
           {"--weights ''", "--weights needs a name or a value"},
           {"--model tiny --json ''", "--json needs a name or a value"},
           {"--model tiny --json tools/CMakeLists.txt/x.json", "tools/CMakeLists.txt"},
           {"--memory= --model tiny", "--memory needs a name or a value"},
       }) {
    const ProcessResult ended = run_plan(arguments);
    EXPECT_THAT(ended.code, ::testing::AnyOf(1, base::kWrongUsage)) << arguments << ended.said;
    EXPECT_THAT(ended.said, HasSubstr(message)) << arguments;
  }
}

// ---- the documentation ----

struct Example {
  std::string arguments;
  std::string output;
};

// The blocks of docs/planner.md that begin with "$ ./run plan".
std::vector<Example> examples() {
  std::ifstream file("docs/planner.md");
  std::vector<Example> found;
  std::string line;
  const std::string prompt = "$ ./run plan";
  bool inside = false;
  while (std::getline(file, line)) {
    if (line.starts_with(prompt)) {
      found.push_back({line.substr(prompt.size()), ""});
      inside = true;
    } else if (line.starts_with("```")) {
      inside = false;
    } else if (inside) {
      found.back().output += line + "\n";
    }
  }
  std::erase_if(found,
                [](const Example& e) { return e.arguments.find("--json") != std::string::npos; });
  return found;
}

TEST(PlannerDocs, ShowWhatTheProgramPrints) {
  const std::vector<Example> all = examples();
  EXPECT_EQ(all.size(), 6U);
  for (const Example& example : all) {
    EXPECT_EQ(run_plan(example.arguments).said, example.output) << example.arguments;
  }
}

}  // namespace
}  // namespace zero::plan
