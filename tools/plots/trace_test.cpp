#include "trace.hpp"

#include <ATen/record_function.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <nlohmann/json.hpp>

#include <tests/support/ranks.hpp>
#include <tests/support/test_folder.hpp>

namespace zero::plots {
namespace {

using testing::on_ranks;
using testing::TestFolder;

std::vector<std::string> names_in(const std::filesystem::path& path) {
  std::vector<std::string> names;
  const nlohmann::json trace = nlohmann::json::parse(testing::read_bytes(path));
  for (const auto& event : trace.at("traceEvents")) names.push_back(event.value("name", ""));
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

// Of a GPU too, where there is none.
TEST(Trace, HoldsWhatRanBetweenStartAndFinish) {
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    on_ranks(1, [device](dist::Communicator& communicator) {
      const TestFolder folder;
      multiply("before");
      {
        const Trace dropped;
        multiply("dropped");
      }
      EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
      Trace trace(&communicator, at::Device(device, 0));
      multiply("inside");
      multiply("inside");
      trace.finish(folder / "new/trace.json");
      multiply("after");
      const auto names = names_in(folder / "new/trace.json");
      EXPECT_EQ(count(names, "inside"), 2);
      EXPECT_EQ(count(names, "aten::mm"), 6);
      EXPECT_EQ(count(names, "before") + count(names, "dropped") + count(names, "after"), 0);
      EXPECT_EQ(folder.listing().size(), 2U);  // it and its folder
    });
  }
}

// The only event of a trace with this phase and name.
nlohmann::json event_of(const nlohmann::json& trace, const char* phase, const std::string& name) {
  nlohmann::json found;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("ph", "") != phase || event.value("name", "") != name) continue;
    EXPECT_TRUE(found.is_null()) << "several " << name;
    found = event;
  }
  EXPECT_FALSE(found.is_null()) << "no " << phase << " " << name;
  return found;
}

TEST(Trace, ShowsWhatRanWhileACollectiveWasUnderWay) {
  on_ranks(2, [](dist::Communicator& communicator) {
    const TestFolder folder;
    at::Tensor all = at::ones({64}), mine = at::ones({32});
    communicator.all_gather(all, mine, dist::Purpose::kSetup).wait();
    const double in_flight_before = communicator.times().in_flight_seconds();
    const double exposed_before = communicator.times().exposed_seconds();
    Trace trace(&communicator);
    dist::Work pending = communicator.all_gather(all, mine, dist::Purpose::kParameter);
    multiply("meanwhile");
    pending.wait();
    trace.finish(folder / "trace.json");
    communicator.all_gather(all, mine, dist::Purpose::kControl).wait();

    const nlohmann::json json = nlohmann::json::parse(testing::read_bytes(folder / "trace.json"));
    const auto names = names_in(folder / "trace.json");
    EXPECT_EQ(count(names, "all_gather setup") + count(names, "all_gather control"), 0);
    const auto begin = event_of(json, "b", "all_gather parameter");
    const auto end = event_of(json, "e", "all_gather parameter");
    const auto meanwhile = event_of(json, "X", "meanwhile");
    const auto waits = event_of(json, "X", "wait all_gather parameter");
    const auto starts = event_of(json, "X", "start all_gather parameter");
    EXPECT_EQ(begin.at("id"), end.at("id"));
    EXPECT_EQ(begin.at("pid"), meanwhile.at("pid"));
    EXPECT_EQ(begin.at("args").at("bytes"), 128);
    // One clock for what LibTorch records and what the communicator does.
    const auto at = [](const nlohmann::json& event) { return event.at("ts").get<double>(); };
    const auto end_of = [&](const nlohmann::json& e) { return at(e) + e.at("dur").get<double>(); };
    EXPECT_LE(at(begin), at(starts));
    EXPECT_LE(end_of(starts), at(meanwhile));
    EXPECT_LE(end_of(meanwhile), at(waits));
    EXPECT_LE(end_of(waits), at(end));
    EXPECT_GE(1e6 * (communicator.times().in_flight_seconds() - in_flight_before),
              meanwhile.at("dur").get<double>());
    EXPECT_LT(1e6 * (communicator.times().exposed_seconds() - exposed_before), at(end) - at(begin));
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
}  // namespace zero::plots
