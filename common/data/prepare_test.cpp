// Runs prepare.py, as a user would, and reads what it wrote.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <zero/data/random.hpp>
#include <zero/data/reviews.hpp>
#include <zero/data/sha256.hpp>
#include <zero/data/test_files.hpp>
#include <zero/data/text.hpp>
#include <zero/data/tokens.hpp>

namespace zero::data {
namespace {

using testing::mentions;
using testing::read_bytes;
using Ids = std::vector<std::int64_t>;

/// A tokenizer.json of whole words, small enough to see what each text must become. Id 9 is a gap,
/// so the vocabulary is 11 with 10 tokens; it asks for padding and truncation of its own, which
/// prepare.py must not obey.
constexpr const char* kTokenizer = R"({
  "version": "1.0",
  "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
  "padding": {"strategy": {"Fixed": 7}, "direction": "Right", "pad_to_multiple_of": null,
              "pad_id": 1, "pad_type_id": 0, "pad_token": "[PAD]"},
  "added_tokens": [
    {"id": 0, "content": "[UNK]", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 1, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 2, "content": "[CLS]", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true}],
  "normalizer": null,
  "pre_tokenizer": {"type": "WhitespaceSplit"},
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}}},
  "decoder": null,
  "model": {"type": "WordLevel", "unk_token": "[UNK]",
    "vocab": {"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "good": 3, "bad": 4, "soup": 5, "and": 6,
              "bread": 7, "very": 8, "tea": 10}}
})";

const char* const kReviewsCsv = "label,text\n4,very good soup and tea\n0,bad bread\n2,soup\n";

std::string python() {
  const char* named = std::getenv("ZERO_PYTHON");
  return named != nullptr && *named != '\0' ? named : "python3";
}

/// Runs Python with `arguments` in a shell; the exit code, and all it printed in `output`.
int run_python(const std::string& arguments, const std::filesystem::path& output) {
  const int status = std::system(fmt::format("PYTHONDONTWRITEBYTECODE=1 '{}' {} > '{}' 2>&1",
                                             python(), arguments, output.string())
                                     .c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class Prepare : public ::testing::Test {
 protected:
  void SetUp() override {
    if (run_python("-c 'pass'", folder_ / "log") != 0) {
      GTEST_SKIP() << "prepare.py IS NOT TESTED: " << python()
                   << " does not run. Set ZERO_PYTHON to a Python of 3.10 or later.";
    }
  }

  /// Whether Python has `package`; says loudly what is left out where it has not.
  bool has(const std::string& package) {
    if (run_python(fmt::format("-c 'import {}'", package), folder_ / "log") == 0) {
      return true;
    }
    fmt::print(stderr,
               "prepare.py IS NOT TESTED with {0}: {1} cannot import it. To enable: {1} -m pip "
               "install -r requirements-peers.txt, or set ZERO_PYTHON to a Python that has it.\n",
               package, python());
    return false;
  }

  /// Runs prepare.py in the test's folder; "" where it succeeds, else what it printed.
  std::string prepare(const std::string& arguments) {
    const auto script = testing::data_folder() / "prepare.py";
    const int code = run_python(fmt::format("'{}' {}", script.string(), arguments),
                                folder_ / "log");
    const std::string said = read_bytes(folder_ / "log");
    return code == 0 ? "" : fmt::format("exit code {}: {}", code, said);
  }

  std::string path(const std::string& name) const {
    return fmt::format("'{}'", (folder_ / name).string());
  }

  /// A text of `records` as ids, found by its label, which is unique in kReviewsCsv.
  static Ids text_labelled(const Records& records, std::uint32_t label) {
    const auto found = std::ranges::find(records.labels, label) - records.labels.begin();
    if (found == records.size()) {
      return {};
    }
    Ids ids(static_cast<std::size_t>(records.length(found)));
    records.tokens.copy(static_cast<std::int64_t>(records.offsets[static_cast<std::size_t>(found)]),
                        ids);
    return ids;
  }

  testing::TestFolder folder_;
};

TEST_F(Prepare, BytesOfTextAreThoseThatTheProgramsRead) {
  folder_.write("docs/b.md", "second \xC3\xA9\r\n");
  folder_.write("docs/a.txt", "first\n");
  folder_.write("docs/.hidden.md", "never");
  ASSERT_EQ(prepare(fmt::format("text --bytes --input {} --output {}", path("docs"),
                                path("t.tokens"))),
            "");
  const TokenStream text = text_from_files({(folder_ / "docs").string()});
  EXPECT_EQ(TokenFile(folder_ / "t.tokens").stream().fingerprint(), text.fingerprint());
  // The same bytes on disk as from the C++ writer, header and all.
  write_token_file(folder_ / "ours.tokens", text);
  EXPECT_EQ(read_bytes(folder_ / "t.tokens"), read_bytes(folder_ / "ours.tokens"));
}

TEST_F(Prepare, BytesOfReviewsAreThoseThatTheProgramsReadInSeededOrder) {
  const auto fixture = testing::data_folder() / "fixtures/reviews.csv";
  ASSERT_EQ(prepare(fmt::format("reviews --bytes --input '{}' --output {} --max-length 40",
                                fixture.string(), path("r.tokens"))),
            "");
  const Records prepared = TokenFile(folder_ / "r.tokens").records();
  const Records expected = reviews_from_csv(fixture, /*max_length=*/40);
  const Ids order = permutation(expected.size(), generator_for(/*seed=*/42, /*stream=*/0));
  ASSERT_EQ(prepared.size(), expected.size());
  for (std::int64_t i = 0; i < prepared.size(); ++i) {
    const std::int64_t source = order[static_cast<std::size_t>(i)];
    EXPECT_EQ(prepared.slice(i, i + 1).fingerprint(),
              expected.slice(source, source + 1).fingerprint());
  }
}

TEST_F(Prepare, SplitsAndLimits) {
  const auto fixture = testing::data_folder() / "fixtures/reviews.csv";
  const std::string base = fmt::format("reviews --bytes --input '{}' --seed 7", fixture.string());
  ASSERT_EQ(prepare(fmt::format("{} --output {}", base, path("all.tokens"))), "");
  ASSERT_EQ(prepare(fmt::format("{} --output {} --limit 50 --validation 0.2", base,
                                path("part.tokens"))),
            "");
  const Records all = TokenFile(folder_ / "all.tokens").records();
  EXPECT_EQ(TokenFile(folder_ / "part.train.tokens").records().fingerprint(),
            all.slice(0, 40).fingerprint());
  EXPECT_EQ(TokenFile(folder_ / "part.validation.tokens").records().fingerprint(),
            all.slice(40, 50).fingerprint());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "part.tokens"));

  folder_.write("t.txt", "0123456789");
  ASSERT_EQ(prepare(fmt::format("text --bytes --input {} --output {} --validation 0.3",
                                path("t.txt"), path("t.tokens"))),
            "");
  EXPECT_EQ(TokenFile(folder_ / "t.train.tokens").stream().size(), 7);
  EXPECT_EQ(TokenFile(folder_ / "t.validation.tokens").stream()[0], '7');
}

TEST_F(Prepare, EveryFormOfReviewsGivesTheSameFile) {
  folder_.write("header.csv", "text,id,label\n\"very \"\"good\"\"\nsoup\",1,4\nbad bread,2,0\n");
  folder_.write("stars.csv", "stars,text\n5,\"very \"\"good\"\"\nsoup\"\n1,bad bread\n");
  folder_.write("original.csv", "\"5\",\"very \"\"good\"\"\\nsoup\"\n\"1\",\"bad bread\"\n");
  folder_.write("label.jsonl",
                "{\"label\": 4, \"text\": \"very \\\"good\\\"\\nsoup\"}\n\n"
                "{\"text\": \"bad bread\", \"label\": 0, \"id\": 2}\n");
  folder_.write("stars.json",
                "{\"stars\": 5.0, \"text\": \"very \\\"good\\\"\\nsoup\"}\n"
                "{\"stars\": 1.0, \"text\": \"bad bread\"}\n");
  std::vector<std::string> names{"header.csv", "stars.csv", "original.csv", "label.jsonl",
                                 "stars.json"};
  if (has("pyarrow")) {
    const std::string make = fmt::format(
        "-c 'import pyarrow, pyarrow.parquet as p; p.write_table(pyarrow.table(dict("
        "label=[4, 0], text=[\"very \\\"good\\\"\\nsoup\", \"bad bread\"])), \"{}\")'",
        (folder_ / "r.parquet").string());
    ASSERT_EQ(run_python(make, folder_ / "log"), 0) << read_bytes(folder_ / "log");
    names.emplace_back("r.parquet");
  }
  std::string first;
  for (const auto& name : names) {
    ASSERT_EQ(prepare(fmt::format("reviews --bytes --input {} --output {}", path(name),
                                  path("r.tokens"))),
              "")
        << name;
    const std::string bytes = read_bytes(folder_ / "r.tokens");
    first = first.empty() ? bytes : first;
    EXPECT_EQ(bytes, first) << name;
  }
  const Records records = TokenFile(folder_ / "r.tokens").records();
  const std::string good = "very \"good\"\nsoup";
  EXPECT_EQ(text_labelled(records, 4), Ids(good.begin(), good.end()));
}

TEST_F(Prepare, ManyInputsAreOneSet) {
  folder_.write("a.csv", "label,text\n4,good\n");
  folder_.write("b.jsonl", "{\"label\": 0, \"text\": \"bad\"}\n");
  ASSERT_EQ(prepare(fmt::format("reviews --bytes --input {} {} --output {}", path("a.csv"),
                                path("b.jsonl"), path("r.tokens"))),
            "");
  EXPECT_EQ(TokenFile(folder_ / "r.tokens").records().size(), 2);
}

TEST_F(Prepare, ReviewsWithoutTextAreLeftOutAndCounted) {
  folder_.write("r.csv", "label,text\n4,good\n0,\"\"\n");
  ASSERT_EQ(prepare(fmt::format("reviews --bytes --input {} --output {}", path("r.csv"),
                                path("r.tokens"))),
            "");
  EXPECT_TRUE(mentions(read_bytes(folder_ / "log"), "left out: 1 reviews without a token"));
  EXPECT_EQ(TokenFile(folder_ / "r.tokens").records().size(), 1);
}

TEST_F(Prepare, TokenizerForReviews) {
  if (!has("tokenizers")) {
    GTEST_SKIP() << "NOT TESTED: prepare.py --tokenizer (see above how to enable it)";
  }
  folder_.write("tokenizer.json", kTokenizer);
  folder_.write("r.csv", kReviewsCsv);
  const std::string base = fmt::format("reviews --tokenizer {} --input {} --output {}",
                                       path("tokenizer.json"), path("r.csv"), path("r.tokens"));
  ASSERT_EQ(prepare(base), "");
  const Records whole = TokenFile(folder_ / "r.tokens").records();
  EXPECT_EQ(whole.tokens.vocabulary(), 11);
  EXPECT_EQ(whole.pad_id, 1);
  EXPECT_EQ(whole.tokens.tokenizer_fingerprint(),
            to_hex(Sha256().add(std::string(kTokenizer)).digest()));
  EXPECT_EQ(text_labelled(whole, 4), (Ids{2, 8, 3, 5, 6, 10}));
  EXPECT_EQ(text_labelled(whole, 0), (Ids{2, 4, 7}));
  EXPECT_EQ(text_labelled(whole, 2), (Ids{2, 5}));

  ASSERT_EQ(prepare(base + " --max-length 3 --pad-token tea"), "");
  const Records cut = TokenFile(folder_ / "r.tokens").records();
  EXPECT_EQ(cut.pad_id, 10);
  EXPECT_EQ(text_labelled(cut, 4), (Ids{2, 8, 3}));
  EXPECT_EQ(text_labelled(cut, 2), (Ids{2, 5}));
}

TEST_F(Prepare, TokenizerForText) {
  if (!has("tokenizers")) {
    GTEST_SKIP() << "NOT TESTED: prepare.py --tokenizer (see above how to enable it)";
  }
  folder_.write("tokenizer.json", kTokenizer);
  folder_.write("a.txt", "good soup and bad bread\n");
  folder_.write("b.txt", "very good coffee");
  ASSERT_EQ(prepare(fmt::format("text --tokenizer {} --input {} {} --output {}",
                                path("tokenizer.json"), path("a.txt"), path("b.txt"),
                                path("t.tokens"))),
            "");
  const TokenStream text = TokenFile(folder_ / "t.tokens").stream();
  EXPECT_EQ(text.vocabulary(), 11);
  Ids ids(static_cast<std::size_t>(text.size()));
  text.copy(0, ids);
  EXPECT_EQ(ids, (Ids{3, 5, 6, 4, 7, 8, 3, 0}));
}

TEST_F(Prepare, RefusesBadTokenizers) {
  if (!has("tokenizers")) {
    GTEST_SKIP() << "NOT TESTED: prepare.py --tokenizer (see above how to enable it)";
  }
  folder_.write("tokenizer.json", kTokenizer);
  folder_.write("bad.json", "{}");
  folder_.write("r.csv", kReviewsCsv);
  const auto with = [&](const std::string& options) {
    return prepare(fmt::format("reviews --input {} --output {} --tokenizer {}", path("r.csv"),
                               path("r.tokens"), options));
  };
  EXPECT_TRUE(mentions(with(path("bad.json")), "is not a tokenizer.json"));
  EXPECT_TRUE(mentions(with(path("no.json")), "No such file"));
  EXPECT_TRUE(mentions(with(path("tokenizer.json") + " --pad-token nothing"), "no token 'nothing'"));
}

TEST_F(Prepare, RefusesBadReviews) {
  const auto with = [&](const std::string& name, const std::string& content) {
    folder_.write(name, content);
    const std::string said = prepare(fmt::format("reviews --bytes --input {} --output {}",
                                                 path(name), path("r.tokens")));
    EXPECT_FALSE(mentions(said, "Traceback")) << said;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "r.tokens"));
    return said;
  };
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n5,x\n"), "line 2: '5' is no label: 0 to 4"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\nnan,x\n"), "'nan' is no label"));
  EXPECT_TRUE(mentions(with("r.csv", "0,x\n"), "line 1: '0' is no label: 1 to 5"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n1\n"), "1 columns, the first line has 2"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n1,\"x\n"), "unexpected end of data"));
  EXPECT_TRUE(mentions(with("r.csv", "mark,body\n1,x\n"), "columns 'text' and 'label'"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n"), "holds no reviews"));
  EXPECT_TRUE(mentions(with("r.csv", "label,text\n1,\xFF\n"), "not UTF-8"));
  EXPECT_TRUE(mentions(with("r.csv", ""), "is empty"));
  EXPECT_TRUE(mentions(with("r.txt", "text"), "files named .csv"));
  EXPECT_TRUE(mentions(with("r.jsonl", "{\"label\": 1}\n"), "columns 'text' and 'label'"));
  EXPECT_TRUE(mentions(with("r.jsonl", "{\"label\": 1, \"text\": 3}\n"), "text of a review is"));
  EXPECT_TRUE(mentions(with("r.jsonl", "{\"label\": 1, \"text\": \"\\ud800\"}\n"), "no valid"));
  EXPECT_TRUE(mentions(with("r.jsonl", "[1]\n"), "must be an object"));
  EXPECT_TRUE(mentions(with("r.jsonl", "\n{oops\n"), "line 2: not JSON"));
  if (has("pyarrow")) {
    EXPECT_TRUE(mentions(with("r.parquet", "PAR1 it is not"), "cannot be read as Parquet"));
  }
}

TEST_F(Prepare, RefusesBadTextAndOptions) {
  folder_.write("empty.txt", "");
  folder_.write("binary.txt", "\xFF\xFE");
  folder_.write("good.txt", "text");
  std::filesystem::create_directories(folder_ / "none");
  const auto with = [&](const std::string& options) {
    const std::string said = prepare("text --bytes " + options);
    EXPECT_FALSE(mentions(said, "Traceback")) << said;
    return said;
  };
  const std::string output = " --output " + path("t.tokens");
  EXPECT_TRUE(mentions(with("--input " + path("no.txt") + output), "does not exist"));
  EXPECT_TRUE(mentions(with("--input " + path("empty.txt") + output), "is empty"));
  EXPECT_TRUE(mentions(with("--input " + path("binary.txt") + output), "is not UTF-8"));
  EXPECT_TRUE(mentions(with("--input " + path("none") + output), "has no *.txt or *.md"));
  const std::string good = "--input " + path("good.txt");
  EXPECT_TRUE(mentions(with(good + " --output " + path("no/t.tokens")), "No such file"));
  EXPECT_TRUE(mentions(with(good + output + " --validation 1.5"), "not between 0 and 1"));
  EXPECT_TRUE(mentions(with(good + output + " --validation 0.01"), "leaves one part empty"));
  EXPECT_TRUE(mentions(with(good + output + " --tokenizer x"), "not allowed with"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "t.tokens"));
}

}  // namespace
}  // namespace zero::data
