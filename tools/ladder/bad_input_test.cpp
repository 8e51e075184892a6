// What the ladder program does with input that is wrong: a message that says what would be right,
// an exit code that is not 0, and not one file written.

#include <cstdlib>
#include <nlohmann/json.hpp>

#include <tests/support/bad_input.hpp>
#include <tests/support/ladder_program.hpp>
#include <tests/support/port.hpp>
#include <tests/support/token_file_writer.hpp>

namespace zero::ladder {
namespace {

using ::testing::AllOf;
using testing::expect_all_refused;
using testing::expect_refused;
using ::testing::HasSubstr;
using testing::kQuick;
using testing::ProcessResult;
using testing::run_ladder;
using testing::TestFolder;

TEST(BadArguments, AreRefusedBeforeAnythingIsWritten) {
  expect_all_refused(
      "--model tiny ",
      {
          {"--modes ddp,zer1", {"unknown mode 'zer1'; known modes: ddp"}},
          {"--lr nan", {"--lr", "'nan' is not a number"}},
          {"--seed -1", {"--seed", "'-1' is no seed"}},
          {"--timeout nan", {"--timeout", "'nan' is not a number"}},
          {"--timeout inf", {"--timeout", "inf not in range"}},
          {"--timeout -5", {"--timeout", "-5 not in range"}},
          {"--lr -1", {"--lr", "-1 not in range"}},
          {"--modes engine3:lookahaed=2", {"unknown key 'lookahaed'; known keys: ", "lookahead"}},
          {"--modes hsdp3 --shard-size 0",
           {"hsdp3 was asked for, but with these settings it is engine3"}},
          {"--modes ddp --shard-size 2x", {"hddp: shard_size is \"2x\"; it must be"}},
          {"--modes ddp,zero1 --shard-size 2", {"--shard-size", "mode zero1"}},
          {"--modes engine3:shard_size=2",
           {"engine3 was asked for, but with these settings it is hsdp3"}},
          {"--modes zero1:naiv", {"unknown mode 'zero1:naiv'", "zero1:naive"}},
          {"--task review", {"--task", "review not in {text,reviews}"}},
          {"--dtype fp3", {"--dtype", "fp3 not in {fp32,bf16}"}},
          {"--dtype fp16", {"--dtype", "fp16 was removed: bf16 needs no loss scale"}},
          {"--reduce-dtype fp32", {"--reduce-dtype was removed: an engine has reduce_in_float32"}},
          {"--alone-mode ddp", {"--alone-mode was removed"}},
          {"--auto-resume", {"--auto-resume was removed: --resume FOLDER goes on"}},
          {"--device cup", {"--device", "cup not in {cpu,cuda}"}},
          {"--ownership siez", {"'siez'", "size"}},
          {"--step 3", {"unknown option '--step'; known options: --help, --task"}},
          {"--steps 2 extra", {"'extra' is not expected here"}},
          {"--nproc 0", {"--nproc", "Value 0 not in range"}},
          {"--link 100mbit", {"--link requires --ranks-per-host"}},
          {"--link fast --ranks-per-host 1",
           {"ZERO_LINK='fast' makes no sense: a rate such as 100mbit"}},
          {"--link 1gbit --ranks-per-host 2", {"--ranks-per-host 2 puts all 2 ranks on one"}},
          {"--steps -3", {"--steps", "Value -3 not in range"}},
          {"--steps many", {"--steps", "many"}},
          {"--epochs 0", {"--epochs", "Value 0 not in range"}},
          {"--epochs 2 --steps 3", {"--steps excludes --epochs"}},
          {"--validation nan", {"--validation", "'nan' is not a number"}},
          {"--validation -0.1", {"--validation", "-0.1 not in range"}},
          {"--validation 1", {"--validation 1 holds out", "and leave the 2 of a step"}},
          {"--validation 1e-09", {"--validation 1e-09 holds out 0 of"}},
          {"--seq-len 1", {"--seq-len", "Value 1 not in range"}},
          {"--batch 0", {"--batch", "Value 0 not in range"}},
          {"--weights .", {"--model", "--weights"}},
      });
  expect_all_refused(
      "", {
              {"--model smollm2-350m", {"--model", "smollm2-350m not in {llama-1.5b,"}},
              {"--seqlen=16", {"unknown option '--seqlen'", "--seq-len"}},
              {"--weights /nowhere/at/all",
               {"/nowhere/at/all/config.json", "save_pretrained", "cannot be opened"}},
              {"--model smollm2-360m --assume-free-memory 4096",
               {"smollm2-360m on 2 ranks needs about", "4.0 GiB are free",
                "smollm2-135m, smollm2-360m, tiny"}},
              {"--assume-free-memory 100",
               {"smollm2-360m on 2 ranks needs about", "smollm2-135m on 2 ranks needs about",
                "tiny on 2 ranks needs about", "0.1 GiB are free"}},
          });
}

TEST(BadMeshes, AreRefusedBeforeARankIsStarted) {
  expect_all_refused(
      "--model tiny ",
      {
          {"--tp 2 --nproc 3",
           {"--tp 2 and --pp 1", "3 ranks", "no multiple of 2", "take --nproc 4"}},
          {"--tp 2 --pp 2", {"2 ranks", "no multiple of 4", "take --nproc 4"}},
          {"--tp 4 --nproc 4",
           {"--tp 4", "2 key/value heads, which 4 tensor ranks cannot share evenly",
            "take a --tp that divides"}},
          {"--tp 0", {"--tp", "Value 0 not in range"}},
          {"--pp 65", {"--pp", "Value 65 not in range"}},
          {"--pp 3 --nproc 3 --modes ddp",
           {"--pp 3: tiny has 2 layers", "take at most as many stages"}},
          {"--pp 2", {"--pp 2", "mode zero3 does not keep", "take ddp,zero1,zero2"}},
          {"--pp 2 --modes ddp,hsdp3 --shard-size 1", {"mode hsdp3:shard_size=1 does not keep"}},
          {"--pp 2 --modes ddp,zeropp", {"mode zeropp does not keep"}},
          {"--pp 2 --modes ddp --task reviews", {"a pipeline trains language models"}},
          {"--pipeline-schedule gpipe", {"--pipeline-schedule requires --pp"}},
          {"--pp 2 --pipeline-schedule gipe", {"--pipeline-schedule", "gipe not in {1f1b,gpipe}"}},
          {"--micro-batches 0", {"--micro-batches", "Value 0 not in range"}},
          {"--sequence-parallel", {"--sequence-parallel requires --tp"}},
          {"--tp 1 --sequence-parallel", {"--sequence-parallel", "take --tp 2"}},
          {"--tp 1 --activation-checkpointing --partition-activations",
           {"--partition-activations", "take --tp 2"}},
          {"--tp 2 --sequence-parallel --seq-len 15", {"--seq-len", "multiple of 2, not 15"}},
          {"--tp 2 --sequence-parallel --task reviews",
           {"--task reviews", "leave out --sequence-parallel"}},
          {"--tp 2 --partition-activations", {"requires --activation-checkpointing"}},
          {"--activations-on-host", {"requires --activation-checkpointing"}},
          {"--activation-checkpointing --partition-activations",
           {"--partition-activations requires --tp"}},
          {"--tp 2 --activation-checkpointing --partition-activations --sequence-parallel",
           {"excludes"}},
          {"--nproc 4 --tp 2 --modes ddp,hsdp2 --shard-size 4",
           {"--shard-size 4 does not divide the 2 ranks of the data axis"}},
      });
  expect_all_refused("--assume-free-memory 1000000 ",
                     {{"--model smollm2-360m --tp 2",
                       {"--tp 2", "15 heads, which 2 tensor ranks cannot share",
                        "the preset llama-360m has 16 and 4"}}});
  expect_all_refused(
      "",
      {{"--tp 2 --assume-free-memory 100",
        {"llama-360m on 2 ranks needs about", "tiny on 2 ranks needs about", "take fewer ranks"}}});
}

TEST(BadArguments, ThatNameFilesAreRefusedBeforeAnythingIsWritten) {
  expect_all_refused(
      kQuick,
      {
          {"--data /nowhere/text.txt", {"/nowhere/text.txt"}},
          {"--task reviews --data /nowhere/r.csv", {"/nowhere/r.csv"}},
          {"--json tools/CMakeLists.txt/x.json",
           {"cannot write 'tools/CMakeLists.txt/x.json'", "Not a directory"}},
          {"--json ladder/", {"it names a folder"}},
          {"--save tools/CMakeLists.txt/weights",
           {"cannot write 'tools/CMakeLists.txt/weights/config.json'"}},
          {"--trace tools/CMakeLists.txt/t.json", {"cannot write 'tools/CMakeLists.txt/t.json'"}},
          {"--trace ladder/", {"it names a folder"}},
      });
}

TEST(EmptyValues, AreRefusedForEveryOptionThatNamesSomething) {
  for (const std::string given :
       {"--checkpoint ''", "--resume ''", "--save ''", "--weights ''", "--data ''", "--json ''",
        "--trace ''", "--memory-timeline ''", "--json="}) {
    const std::string option = given.substr(0, given.find_first_of(" ="));
    expect_all_refused(kQuick + "--modes ddp ", {{given, {option + " needs a name or a value"}}});
  }
}

// The variables of a launcher, as long as this lives.
class Launched {
 public:
  Launched(int rank, int world_size) {
    set("RANK", rank);
    set("WORLD_SIZE", world_size);
    set("MASTER_PORT", zero::testing::free_port());
  }
  ~Launched() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_PORT"}) ::unsetenv(name);
  }

 private:
  static void set(const char* name, int value) {
    ::setenv(name, std::to_string(value).c_str(), /*replace=*/1);
  }
};

TEST(LaunchedRank, IsNotAskedForAnotherNumberOfRanks) {
  {
    const Launched alone(/*rank=*/0, /*world_size=*/1);
    expect_refused(TestFolder(), kQuick + "--modes ddp --nproc 4",
                   {"--nproc 4: this process is rank 0 of 1 by the variables of a"},
                   ::testing::AnyOf(1, 2));
  }
  {
    const Launched one_of_two(/*rank=*/1, /*world_size=*/2);
    expect_refused(TestFolder(), kQuick + "--fake-process-group 4",
                   {"--fake-process-group", "start it without a launcher"});
  }
  for (const std::string asked : {"", "--nproc 1"}) {
    const TestFolder folder;
    const Launched alone(/*rank=*/0, /*world_size=*/1);
    const ProcessResult one = run_ladder(folder, kQuick + "--modes ddp " + asked);
    EXPECT_EQ(one.code, 0) << one.said;
    EXPECT_THAT(one.said, HasSubstr("on 1 rank,"));
  }
}

// What is refused after the choice of a model has passed it.
TEST(Memory, RanksThatShareAModelNeedLess) {
  expect_all_refused("--model llama-360m --assume-free-memory 9000 ",
                     {{"", {"llama-360m on 2 ranks needs about"}},
                      {"--tp 2 --sequence-parallel --seq-len 15", {"multiple of 2, not 15"}},
                      {"--pp 2", {"--pp 2: mode zero3 does not keep"}}});
}

TEST(Memory, TheNextSmallerModelIsTakenAndNamed) {
  const TestFolder folder;
  const ProcessResult ended = run_ladder(
      folder, "--assume-free-memory 2000 --steps 1 --seq-len 16 --modes ddp --no-compute-alone");
  EXPECT_EQ(ended.code, 0) << ended.said;
  EXPECT_THAT(ended.said, AllOf(HasSubstr("smollm2-360m on 2 ranks needs about"),
                                HasSubstr("2.0 GiB are free: trying the next smaller model"),
                                HasSubstr("smollm2-135m on 2 ranks needs about"),
                                HasSubstr("tiny as language model on 2 ranks")));
}

// Runs with --data FILE and expects a refusal before a rank is started.
void expect_data_refused(const TestFolder& folder, const std::string& path, const std::string& more,
                         const std::string& message) {
  const std::string said =
      expect_refused(folder, kQuick + "--data '" + path + "' " + more, {message});
  EXPECT_THAT(said, ::testing::Not(HasSubstr("rank 0"))) << "found out too late, by a rank";
}

TEST(BadData, Texts) {
  const TestFolder folder;
  const std::string empty = folder.write("empty.txt", "");
  expect_data_refused(folder, empty, "", "empty.txt: is empty");
  expect_data_refused(folder, empty, "--task reviews", "empty.txt: is empty");
  expect_data_refused(folder, folder.write("short.txt", "ten bytes."), "",
                      "the text has 10 tokens; one sequence of 16 takes 17");
  expect_data_refused(folder, folder.write("text.txt", std::string(40, 'a')), "--batch 4",
                      "the data set has 2 samples, one step over all ranks takes 8");
  expect_data_refused(folder, folder.write("reviews.csv", "label,text\n4,good\n"), "--task reviews",
                      "reviews.csv: is not a token file; make one with ./run data");
}

TEST(BadData, TokenFilesThatDoNotFit) {
  const TestFolder folder;
  const auto stream = [&](const std::string& name, std::int64_t id) {
    const std::vector<std::int64_t> ids(200, id);
    testing::write_token_file(folder / name, testing::stream_of(ids, /*vocabulary=*/id + 1));
    return (folder / name).string();
  };
  const auto records = [&](const std::string& name, int label) {
    const std::vector<testing::Record> all(9, testing::Record{label, {3, 4}});
    testing::write_token_file(folder / name,
                              testing::records_of(all, /*classes=*/label + 1, /*vocabulary=*/10));
    return (folder / name).string();
  };
  expect_data_refused(folder, stream("large", 299), "",
                      "the data has a vocabulary of 300 tokens, the model tiny one of 256");
  expect_data_refused(folder, stream("stream", 9), "--task reviews", "stream");
  expect_data_refused(folder, records("records", 4), "", "records: holds labelled texts");
  expect_data_refused(folder, records("classes", 6), "--task reviews", "has 7 classes");
}

}  // namespace
}  // namespace zero::ladder
