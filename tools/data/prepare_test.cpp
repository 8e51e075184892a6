// What prepare.py writes is what the C++ side reads, and what it refuses it names, without a file.
#include <gmock/gmock.h>

#include <tests/support/prepare.hpp>
#include <tests/support/token_file_writer.hpp>
#include <tools/ladder/data/text.hpp>
#include <tools/ladder/data/token_file.hpp>
#include <zero/base/sha256.hpp>

namespace zero::data {
namespace {

using ::testing::HasSubstr;
using testing::kTokenizer;
using testing::Prepare;
using testing::PrepareWithTokenizers;
using testing::read_bytes;
using Ids = std::vector<std::int64_t>;

TEST_F(Prepare, BytesOfTextAreThoseThatTheProgramsRead) {
  folder_.write("docs/b.md", "second \xC3\xA9\r\n");
  folder_.write("docs/a.txt", "first\n");
  folder_.write("docs/.hidden.md", "never");
  ASSERT_EQ(prepare_text(path("docs")), "");
  const TokenStream text = text_from_files({(folder_ / "docs").string()});
  EXPECT_EQ(read_token_file(folder_ / "t.tokens").fingerprint(), text.fingerprint());
  // The same bytes on disk as from the C++ writer, header and all.
  testing::write_token_file(folder_ / "ours.tokens", text);
  EXPECT_EQ(read_bytes(folder_ / "t.tokens"), read_bytes(folder_ / "ours.tokens"));
}

TEST_F(PrepareWithTokenizers, ForText) {
  folder_.write("a.txt", "good soup and bad bread\n");
  folder_.write("b.txt", "very good coffee");
  const auto with = [&](const std::string& tokenizer) {
    return prepare(fmt::format("text --tokenizer {} --input {} {} --output {}", path(tokenizer),
                               path("a.txt"), path("b.txt"), path("t.tokens")));
  };
  ASSERT_EQ(with("tokenizer.json"), "");
  const TokenStream text = read_token_file(folder_ / "t.tokens");
  EXPECT_EQ(text.vocabulary(), 11);
  EXPECT_EQ(text.tokenizer_fingerprint(), base::Sha256().add(std::string(kTokenizer)).hex());
  EXPECT_EQ(testing::ids_of(text), (Ids{3, 5, 6, 4, 7, 8, 3, 0}));
  folder_.write("bad.json", "{}");
  EXPECT_THAT(with("bad.json"), HasSubstr("is not a tokenizer.json"));
  std::string unknown = kTokenizer;
  unknown.replace(unknown.find("\"unk_token\": \"[UNK]\""), 20, "\"unk_token\": \"[NONE]\"");
  folder_.write("none.json", unknown);
  EXPECT_THAT(with("none.json"), HasSubstr("none.json cannot encode the input"));
}

TEST_F(Prepare, RefusesBadTextAndOptions) {
  folder_.write("empty.txt", "");
  folder_.write("binary.txt", "\xFF\xFE");
  folder_.write("notes/a.txt", "first");
  std::filesystem::create_directories(folder_ / "none");
  const auto expect_refused = [&](const std::string& said, const char* message) {
    EXPECT_THAT(said, ::testing::AllOf(HasSubstr(message), Not(HasSubstr("Traceback"))));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "t.tokens"));
  };
  const std::string good = path("notes/a.txt");
  expect_refused(prepare_text(path("no.txt")), "No such file");
  expect_refused(prepare_text(path("empty.txt")), "is empty");
  expect_refused(prepare_text(path("binary.txt")), "is not UTF-8");
  expect_refused(prepare_text(path("none")), "has no *.txt or *.md");
  expect_refused(prepare_text(good, "--tokenizer x"), "not allowed with");
  expect_refused(prepare("reviews --bytes --input x --output t.tokens"), "reviews was removed");
  // The last of two --output counts.
  expect_refused(prepare_text(good, "--output " + path("no/t.tokens")), "No such file");
  expect_refused(prepare_text(path("notes"), "--output " + path("none/../notes/a.txt")),
                 "would be written over an input, name another");
  EXPECT_EQ(read_bytes(folder_ / "notes/a.txt"), "first");
}

}  // namespace
}  // namespace zero::data
