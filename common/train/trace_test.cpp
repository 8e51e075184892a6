#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <zero/error.hpp>
#include <zero/report/test_folder.hpp>
#include <zero/train/trace.hpp>

#include "harness.hpp"

namespace zero::train {
namespace {

using report::TestFolder;
using testing::on_ranks;

std::vector<std::string> names_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> names;
  const nlohmann::json trace = nlohmann::json::parse(file);
  for (const auto& event : trace.at("traceEvents")) {
    names.push_back(event.value("name", ""));
  }
  return names;
}

std::ptrdiff_t count(const std::vector<std::string>& names, const std::string& name) {
  return std::count(names.begin(), names.end(), name);
}

// Milliseconds of work around the range: the profiler's clock is not exact to the microsecond, and
// what falls on the edge of a trace is left out of it.
void multiply(const char* range) {
  const at::Tensor large = at::ones({512, 512});
  at::matmul(large, large);
  {
    RECORD_USER_SCOPE(range);
    at::mm(at::ones({2, 2}), at::ones({2, 2}));
  }
  at::matmul(large, large);
}

TEST(Trace, HoldsWhatRanBetweenStartAndFinish) {
  on_ranks(1, [](dist::Communicator&) {
    const TestFolder folder;
    multiply("before");
    Trace trace;
    multiply("inside");
    multiply("inside");
    trace.finish(folder / "new/trace.json");
    multiply("after");
    const auto names = names_in(folder / "new/trace.json");
    EXPECT_EQ(count(names, "inside"), 2);
    EXPECT_EQ(count(names, "aten::mm"), 6);
    EXPECT_EQ(count(names, "before") + count(names, "after"), 0);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "new"), {}), 1);
  });
}

TEST(Trace, SecondOneStartsEmpty) {
  on_ranks(1, [](dist::Communicator&) {
    const TestFolder folder;
    {
      const Trace dropped;
      multiply("dropped");
    }
    EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
    Trace trace;
    multiply("kept");
    trace.finish(folder / "trace.json");
    const auto names = names_in(folder / "trace.json");
    EXPECT_EQ(count(names, "kept"), 1);
    EXPECT_EQ(count(names, "dropped"), 0);
  });
}

TEST(Trace, UnwritableFileIsAnError) {
  on_ranks(1, [](dist::Communicator&) {
    const TestFolder folder;
    std::ofstream(folder / "file") << "x";
    Trace trace;
    EXPECT_THROW(trace.finish(folder / "file/trace.json"), Error);
  });
}

}  // namespace
}  // namespace zero::train
