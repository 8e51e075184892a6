#include "text.hpp"

#include <tests/support/data_files.hpp>
#include <tests/support/records.hpp>
#include <tests/support/token_file_writer.hpp>

namespace zero::data {
namespace {

using testing::error_of;
using testing::expect_error;
using testing::mentions;
using testing::TestFolder;
using testing::write_token_file;

std::string to_string(const TokenStream& tokens) {
  const std::vector<std::int64_t> ids = testing::ids_of(tokens);
  return {ids.begin(), ids.end()};
}

TEST(Text, BytesBecomeTokensUnchanged) {
  const TestFolder folder;
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const TokenStream tokens = text_from_files({folder.write("all.bin", all).string()});
  ASSERT_EQ(tokens.size(), 256);
  EXPECT_EQ(tokens.vocabulary(), 256);
  EXPECT_EQ(tokens.tokenizer_fingerprint(), kByteTokenizer);
  EXPECT_EQ(to_string(tokens), all);
}

TEST(Text, FilesFollowInTheOrderGivenAndFoldersByPath) {
  const TestFolder folder;
  for (const auto& [name, text] : {std::pair{"late.txt", "L"},
                                   {"docs/b.md", "b"},
                                   {"docs/a.txt", "a"},
                                   {"docs/Z.md", "Z"},
                                   {"docs/deep/c.md", "c"},
                                   {"docs/picture.png", "X"},
                                   {"docs/.hidden.md", "X"},
                                   {"docs/.cache/d.md", "X"}}) {
    folder.write(name, text);
  }
  const std::string late = (folder / "late.txt").string(), docs = (folder / "docs").string();
  EXPECT_EQ(to_string(text_from_files({late, docs})), "LZabc");
  EXPECT_EQ(to_string(text_from_files({docs, late, late})), "ZabcLL");
}

TEST(Text, RefusesWhatItCannotRead) {
  const TestFolder folder;
  folder.write("empty.txt", "");
  folder.write("folder/picture.png", "X");
  for (const auto& [name, message] : {std::pair{"no.txt", "no.txt does not exist"},
                                      {"empty.txt", "empty.txt: is empty"},
                                      {"folder", "has no *.txt or *.md"}}) {
    expect_error([&, n = name] { text_from_files({(folder / n).string()}); }, {message});
  }
  expect_error([] { text_from_files({"/dev/null"}); }, {"not a regular file"});
}

TEST(Text, RefusesTokenFilesThatAreWholeOrDamaged) {
  const TestFolder folder;
  folder.write("a.txt", "text");
  write_token_file(folder / "b.txt", testing::stream_of({1, 2, 3}, /*vocabulary=*/10));
  const auto refusal = [&] { return error_of([&] { text_from_files({folder.path().string()}); }); };
  EXPECT_TRUE(mentions(refusal(), "b.txt is a token file, which is taken alone"));
  // Whatever byte was damaged.
  const std::string whole = testing::read_bytes(folder / "b.txt");
  for (std::size_t i = 0; i < 30; ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    folder.write("b.txt", damaged);
    EXPECT_TRUE(mentions(refusal(), "b.txt is a token file")) << "byte " << i;
  }
}

TEST(Text, ProjectTextTakesLessonsAndDocsInAFixedOrder) {
  const TestFolder folder;
  for (const auto& [name, text] : {std::pair{"README.md", "R"},
                                   {"CONTRIBUTING.md", "C"},
                                   {"docs/names.md", "n"},
                                   {"docs/figures/x.svg", "X"},
                                   {"02_zero2/README.md", "2"},
                                   {"00_simple_ddp/README.md", "0"},
                                   {"00_simple_ddp/exercises/one/task.md", "t"},
                                   {"00_simple_ddp/empty.md", ""},
                                   {"build/notes.md", "X"},
                                   {".venv/notes.md", "X"},
                                   {"notes.txt", "X"}}) {
    folder.write(name, text);
  }
  EXPECT_EQ(to_string(project_text(folder.path())), "0t2CRn");
}

TEST(Text, ProjectTextRefusesAFolderWithoutProse) {
  const TestFolder folder;
  expect_error([&] { project_text(folder.path()); }, {"no lessons or docs"});
  expect_error([&] { project_text(folder / "no"); }, {"not the folder"});
}

}  // namespace
}  // namespace zero::data
