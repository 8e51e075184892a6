#include "arguments.hpp"

#include <c10/util/Exception.h>

#include <stdexcept>

#include <tests/support/error_of.hpp>
#include <tests/support/test_folder.hpp>

namespace zero::tools {
namespace {

// What check_arguments() says of the words after the program's name.
std::string refusal_of(std::vector<const char*> words) {
  words.insert(words.begin(), "program");
  return testing::error_of([&] { check_arguments(static_cast<int>(words.size()), words.data()); });
}

TEST(Arguments, MayNotBeEmpty) {
  EXPECT_EQ(refusal_of({}), "");
  EXPECT_EQ(refusal_of({"--json", "x=", "--modes=engine3:config=", "-", "--flag"}), "");
  for (const std::vector<const char*>& words : std::vector<std::vector<const char*>>{
           {"--json", ""}, {"--json=", "x"}, {"--seed", "1", "--json", "a", "", "--flag"}}) {
    EXPECT_EQ(refusal_of(words),
              "--json needs a name or a value, and what it was given is empty: give it one, or "
              "leave --json out");
  }
  EXPECT_EQ(refusal_of({"", "--json"}), "the command line has an empty word: leave it out");
}

TEST(Arguments, NumbersAreNumbers) {
  for (const char* good : {"1", "-3", "0.5", "inf", "1e9", "no number, which CLI11 refuses"}) {
    EXPECT_EQ(refuse_nan(good), "");
  }
  for (const char* bad : {"nan", "NaN", "-nan", "nan(1)"}) {
    EXPECT_EQ(refuse_nan(bad), "'" + std::string(bad) + "' is not a number");
  }
}

TEST(Arguments, SeedsAreWholeNumbersOf64Bits) {
  for (const char* good : {"0", "42", "18446744073709551615"}) EXPECT_EQ(refuse_bad_seed(good), "");
  for (const char* bad : {"-1", "+1", "18446744073709551616", "1.5", "1e3", "0x10", "010", " 1",
                          "1 ", "seed", "", "nan"}) {
    EXPECT_EQ(refuse_bad_seed(bad), "'" + std::string(bad) +
                                        "' is no seed: a whole number from 0 to "
                                        "18446744073709551615 is");
  }
}

TEST(MessageOf, IsWhatTheErrorSaysWithoutTheCallsThatLibTorchLists) {
  EXPECT_EQ(zero::message_of(Error("a sentence")), "a sentence");
  EXPECT_EQ(zero::message_of(std::out_of_range("another")), "another");
  try {
    TORCH_CHECK(false, "one of LibTorch's");
  } catch (const std::exception& error) {
    EXPECT_EQ(zero::message_of(error), "one of LibTorch's");
    EXPECT_NE(error.what(), zero::message_of(error));
  }
  try {
    TORCH_CHECK_INDEX(false, "and of a class of its own");
  } catch (const std::exception& error) {
    EXPECT_EQ(zero::message_of(error), "and of a class of its own");
  }
}

}  // namespace
}  // namespace zero::tools
