// Pipelines whose messages travel as NCCL's do.

#include <fmt/format.h>

#include <tests/support/hooked_communicator.hpp>
#include <tests/support/pipeline_run.hpp>

#include "over_device.hpp"

namespace zero::testing {
namespace {

using dist::Backend;
using dist::Call;

// Messages over a backend of devices, everything else as before: what ranks agree on is read by the
// host.
class MessagesOverDevice final : public ForwardingBackend {
 public:
  MessagesOverDevice(std::unique_ptr<Backend> others, std::unique_ptr<Backend> messages)
      : ForwardingBackend(std::move(others)), messages_(std::move(messages)) {}

  WorkPtr start(const Call& call, at::Tensor output, at::Tensor input) override {
    const bool is_message =
        call.operation == dist::Operation::kSend || call.operation == dist::Operation::kRecv;
    return is_message ? messages_->start(call, output, input)
                      : ForwardingBackend::start(call, output, input);
  }
  void synchronize() override { messages_->synchronize(); }

 private:
  std::unique_ptr<Backend> messages_;
};

// No send completes before its receive. Had both directions one stream, a stage would wait with the
// next activation for the stage after it, and that one with its gradient for this one.
TEST(DevicePipeline, EndsAlthoughEachSendWaitsForItsReceive) {
  const TestFolder folder;
  on_ranks({.world_size = 3}, [&](dist::Communicator& world) {
    for (const PipelineSchedule schedule :
         {PipelineSchedule::kOneForwardOneBackward, PipelineSchedule::kGPipe}) {
      for (const bool tied : {false, true}) {
        const std::string which = fmt::format("{}, {}", name(schedule), tied ? "tied" : "untied");
        SCOPED_TRACE(which);
        const ThreeAxes axes(world, /*stages=*/3);
        const PipelineShape shape{.tied = tied, .schedule = schedule};
        WholeRank whole(axes.of_stage, shape);
        std::filesystem::create_directories(folder / which);
        const Replaced<MessagesOverDevice> over(
            *axes.pipeline, dist::testing::device_backend(world.rank(), 3, folder / which));
        PipelineRank rank(axes, shape);
        expect_part_of(trained_model(rank, 2, 5), trained_model(whole, 2, 5));
      }
    }
  });
}

}  // namespace
}  // namespace zero::testing
