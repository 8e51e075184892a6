#include "ranks.hpp"

#include <stdexcept>

namespace zero::testing {
namespace {

int failed_assertions() {
  const ::testing::TestInfo* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  int failed = 0;
  for (int i = 0; test != nullptr && i < test->result()->total_part_count(); ++i) {
    failed += test->result()->GetTestPartResult(i).failed() ? 1 : 0;
  }
  return failed;
}

}  // namespace

std::vector<dist::RankExit> ranks_ended(const RankOptions& options,
                                        const std::function<void(dist::Communicator&)>& body) {
  dist::LaunchOptions launch = captured(options.world_size, options.total_timeout);
  launch.connect.timeout = options.timeout;
  launch.connect.order = options.order;
  launch.connect.backend = options.backend;
  return dist::launch_ranks(launch, [&](dist::Communicator& communicator) -> std::string {
    const int before = failed_assertions();  // of earlier ranks of this test, in the parent
    body(communicator);
    if (failed_assertions() > before) throw std::runtime_error("assertions failed, see above");
    return "";
  });
}

void on_ranks(const RankOptions& options, const std::function<void(dist::Communicator&)>& body) {
  const std::string failures = dist::describe_failures(ranks_ended(options, body));
  if (!failures.empty()) ADD_FAILURE() << failures;
}

void on_ranks(int world_size, const std::function<void(dist::Communicator&)>& body) {
  on_ranks(RankOptions{.world_size = world_size}, body);
}

}  // namespace zero::testing
