#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include <tests/support/data_files.hpp>
#include <zero/data/text.hpp>
#include <zero/data/token_file.hpp>

namespace zero::data {
namespace {

using testing::error_of;
using testing::mentions;
using testing::TestFolder;

std::string to_string(const TokenStream& tokens) {
  std::string text;
  for (std::int64_t i = 0; i < tokens.size(); ++i) {
    text += static_cast<char>(tokens[i]);
  }
  return text;
}

TEST(Text, BytesBecomeTokensUnchanged) {
  const TestFolder folder;
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
  }
  const auto path = folder.write("all.bin", all);
  const TokenStream tokens = text_from_files({path.string()});
  ASSERT_EQ(tokens.size(), 256);
  EXPECT_EQ(tokens.vocabulary(), 256);
  EXPECT_EQ(tokens.tokenizer_fingerprint(), kByteTokenizer);
  for (std::int64_t i = 0; i < 256; ++i) {
    EXPECT_EQ(tokens[i], i);
  }
}

TEST(Text, FilesFollowInTheOrderGivenAndFoldersByPath) {
  const TestFolder folder;
  folder.write("late.txt", "L");
  folder.write("docs/b.md", "b");
  folder.write("docs/a.txt", "a");
  folder.write("docs/Z.md", "Z");
  folder.write("docs/deep/c.md", "c");
  folder.write("docs/picture.png", "X");
  folder.write("docs/.hidden.md", "X");
  folder.write("docs/.cache/d.md", "X");
  const std::string late = (folder / "late.txt").string();
  const std::string docs = (folder / "docs").string();
  EXPECT_EQ(to_string(text_from_files({late, docs})), "LZabc");
  EXPECT_EQ(to_string(text_from_files({docs, late, late})), "ZabcLL");
}

TEST(Text, PatternsStandForFilesInByteOrder) {
  const TestFolder folder;
  folder.write("part-2.txt", "2");
  folder.write("part-1.txt", "1");
  folder.write("Part-0.txt", "0");
  folder.write("part-[x].txt", "x");
  EXPECT_EQ(to_string(text_from_files({(folder / "[pP]art-?.txt").string()})), "012");
  // The name of a file wins over the pattern that it could also be.
  EXPECT_EQ(to_string(text_from_files({(folder / "part-[x].txt").string()})), "x");
}

TEST(Text, RefusesWhatItCannotRead) {
  const TestFolder folder;
  const auto empty = folder.write("empty.txt", "");
  const auto none = folder.write("folder/picture.png", "X").parent_path();
  const auto refusal = [](const std::string& name) {
    return error_of([&] { text_from_files({name}); });
  };
  EXPECT_TRUE(mentions(refusal((folder / "no.txt").string()), "no.txt does not exist"));
  EXPECT_TRUE(mentions(refusal(empty.string()), "empty.txt is empty"));
  EXPECT_TRUE(mentions(refusal(none.string()), "has no *.txt or *.md"));
  EXPECT_TRUE(mentions(refusal((folder / "*.nothing").string()), "no file matches"));
  EXPECT_TRUE(mentions(refusal("/dev/null"), "not a regular file"));
  EXPECT_TRUE(mentions(error_of([] { text_from_files({}); }), "no text given"));
}

TEST(Text, RefusesTokenFilesThatAreWholeOrDamaged) {
  const TestFolder folder;
  folder.write("a.txt", "text");
  const std::vector<std::int64_t> ids = {1, 2, 3};
  write_token_file(folder / "b.txt", TokenStream::from_ids(ids, /*vocabulary=*/10));
  const auto refusal = [&] { return error_of([&] { text_from_files({folder.path().string()}); }); };
  EXPECT_TRUE(mentions(refusal(), "b.txt is a token file, which is taken alone"));
  folder.write("b.txt", "z" + testing::read_bytes(folder / "b.txt").substr(1));
  EXPECT_TRUE(mentions(refusal(), "b.txt is laid out as a token file, but does not begin"));
}

TEST(Text, RefusesAFileWithoutPermission) {
  const TestFolder folder;
  const auto secret = folder.write("secret.txt", "text");
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(secret, std::filesystem::perms::none);
  // root may read everything, so be somebody else for a moment.
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid();
  ASSERT_TRUE(user != 0 || ::seteuid(kNobody) == 0);
  const std::string why = error_of([&] { text_from_files({secret.string()}); });
  ASSERT_TRUE(user != 0 || ::seteuid(user) == 0);
  EXPECT_TRUE(mentions(why, "cannot be read"));
}

TEST(Text, ProjectTextTakesLessonsAndDocsInAFixedOrder) {
  const TestFolder folder;
  folder.write("README.md", "R");
  folder.write("CONTRIBUTING.md", "C");
  folder.write("docs/names.md", "n");
  folder.write("docs/figures/x.svg", "X");
  folder.write("02_zero2/README.md", "2");
  folder.write("00_simple_ddp/README.md", "0");
  folder.write("00_simple_ddp/exercises/one/task.md", "t");
  folder.write("00_simple_ddp/empty.md", "");
  folder.write("build/notes.md", "X");
  folder.write(".venv/notes.md", "X");
  folder.write("notes.txt", "X");
  EXPECT_EQ(to_string(project_text(folder.path())), "0t2CRn");
}

TEST(Text, ProjectTextRefusesAFolderWithoutProse) {
  const TestFolder folder;
  EXPECT_TRUE(mentions(error_of([&] { project_text(folder.path()); }), "no lessons or docs"));
  EXPECT_TRUE(mentions(error_of([&] { project_text(folder / "no"); }), "not the folder"));
}

TEST(Text, ProjectTextOfThisProjectIsEnoughToTrainOn) {
  const TokenStream text = project_text(testing::repository());
  EXPECT_GT(text.size(), 10'000);
  EXPECT_EQ(text.fingerprint(), project_text(testing::repository()).fingerprint());
}

TEST(UnigramEntropy, OfKnownDistributions) {
  EXPECT_EQ(unigram_entropy(TokenStream::from_bytes("aaaa")), 0.0);
  EXPECT_NEAR(unigram_entropy(TokenStream::from_bytes("abab")), std::log(2.0), 1e-15);
  // Shares 1/2, 1/4, 1/4: 1.5 bits.
  EXPECT_NEAR(unigram_entropy(TokenStream::from_bytes("aabc")), 1.5 * std::log(2.0), 1e-15);
}

TEST(UnigramEntropy, OfMoreTokensThanOnePieceAndALargeVocabulary) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 70'000; ++i) {
    ids.push_back(i);
  }
  EXPECT_NEAR(unigram_entropy(TokenStream::from_ids(ids, 70'000)), std::log(70'000.0), 1e-9);
}

TEST(UnigramEntropy, RefusesNoTokens) {
  EXPECT_TRUE(mentions(error_of([] { unigram_entropy(TokenStream()); }), "undefined"));
}

}  // namespace
}  // namespace zero::data
