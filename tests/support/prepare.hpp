#pragma once

#include <fmt/format.h>

#include <string>

#include "data_files.hpp"
#include "python.hpp"

/// What the tests of prepare.py share; nothing else includes this.
namespace zero::testing {

/// A tokenizer.json of whole words, small enough to see what each text must become. The last of its
/// 11 ids belongs to an added token. It asks for padding and truncation of its own, which
/// prepare.py must not obey.
inline constexpr const char* kTokenizer = R"({
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
     "normalized": false, "special": true},
    {"id": 10, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false,
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
              "bread": 7, "very": 8, "tea": 9}}
})";

/// Runs prepare.py, as a user would, in a folder of its own.
class Prepare : public ::testing::Test {
 protected:
  void SetUp() override {
    if (run_python("-c 'pass'").code != 0) {
      GTEST_SKIP() << "prepare.py IS NOT TESTED: " << python()
                   << " does not run. Set ZERO_PYTHON to a Python of 3.10 or later.";
    }
  }

  /// Whether Python has `package`; says loudly what is left out where it has not.
  bool has(const std::string& package) {
    if (run_python(fmt::format("-c 'import {}'", package)).code == 0) {
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
    const auto script = data_tools() / "prepare.py";
    const ProcessResult ended = run_python(fmt::format("'{}' {}", script.string(), arguments));
    said_ = ended.said;
    return ended.code == 0 ? "" : fmt::format("exit code {}: {}", ended.code, said_);
  }

  /// The same for text as bytes, to t.tokens; `inputs` as words.
  std::string prepare_text(const std::string& inputs, const std::string& more = "") {
    return prepare(
        fmt::format("text --bytes --input {} --output {} {}", inputs, path("t.tokens"), more));
  }

  std::string path(const std::string& name) const {
    return fmt::format("'{}'", (folder_ / name).string());
  }

  TestFolder folder_;
  std::string said_;  ///< by the last prepare()
};

/// The same with the package tokenizers.
class PrepareWithTokenizers : public Prepare {
 protected:
  void SetUp() override {
    Prepare::SetUp();
    if (IsSkipped()) return;
    if (!has("tokenizers")) {
      GTEST_SKIP() << "NOT TESTED: prepare.py --tokenizer (see above how to enable it)";
    }
    folder_.write("tokenizer.json", kTokenizer);
  }
};

}  // namespace zero::testing
