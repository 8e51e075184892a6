#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <tests/support/error_of.hpp>
#include <zero/base/keys.hpp>

namespace zero::base {
namespace {

using testing::expect_error;

struct Fields {
  bool flag = false;
  std::int64_t count = 3;
  std::int64_t ahead = -1;  // "auto"
  std::int64_t bytes = 1 << 20;
  std::int64_t even = 2;
  double norm = 0;
  bool operator==(const Fields&) const = default;
};

void declare(Keys& keys, Fields& f) {
  keys.flag("flag", f.flag);
  keys.count("count", 1, f.count);
  keys.count_or("ahead", "auto", -1, f.ahead);
  keys.mib("mib", f.bytes);
  keys.count_if(
      "even", [](std::int64_t n) { return n >= 0 && n % 2 == 0; }, "an even number", f.even);
  keys.real("norm", "a norm", f.norm);
  keys.require([&f] { return f.count != f.even; }, "count and even are equal");
}

TEST(Keys, ReadsWhatItWrites) {
  const std::vector<Fields> all = {
      {}, {.flag = true, .count = 9, .ahead = 4, .bytes = 1, .even = 8, .norm = 0.5}};
  for (const Fields& fields : all) {
    EXPECT_EQ(options_from<Fields>(text_of(fields)), fields);
    EXPECT_EQ(checked(fields), fields);
  }
  EXPECT_EQ(nlohmann::json::parse(text_of(Fields{})).at("ahead"), "auto");
}

TEST(Keys, LeavesWhatIsNotSaid) {
  const Fields before{.count = 7, .bytes = 5};
  EXPECT_EQ(options_from<Fields>("{}", "here", before), before);
  EXPECT_EQ(options_from<Fields>(R"({"mib": 0.5})", "here", before).bytes, 512 << 10);
}

TEST(Keys, RefusesWhatCannotBe) {
  const std::vector<std::pair<const char*, const char*>> rows = {
      {R"({"flags": true})",
       "unknown key 'flags'; known keys: ahead, count, even, flag, mib, norm"},
      {R"({"flag": 1})", "flag is 1; it must be true or false"},
      {R"({"count": 0})", "count is 0; it must be a whole number from 1"},
      {R"({"count": 1.5})", "count is 1.5"},
      {R"({"ahead": -1})", "ahead is -1; it must be \"auto\" or a whole number from 0"},
      {R"({"mib": 0})", "mib is 0; it must be a number of MiB, from one byte"},
      {R"({"even": 3})", "even is 3; it must be an even number"},
      {R"({"even": "2"})", "even is \"2\""},
      {R"({"norm": -1})", "norm is -1; it must be a norm"},
      {R"({"count": 4, "even": 4})", "count and even are equal"},
      {"[1]", "must be a JSON object"},
      {"{", "is not JSON"}};
  for (const auto& [json, message] : rows) {
    expect_error([&, text = json] { options_from<Fields>(text, "here"); }, {"here", message});
  }
  expect_error([] { checked(Fields{.ahead = -2}); }, {"ahead is -2"});
}

}  // namespace
}  // namespace zero::base
