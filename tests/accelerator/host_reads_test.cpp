// Before the host reads what depends on other ranks, it asks whether one of them is lost: what a
// lost rank leaves in a tensor of a GPU looks like any other value.

#include <ATen/ops/ones.h>

#include <tests/support/error_of.hpp>
#include <tests/support/hooked_communicator.hpp>
#include <tests/support/pipeline_run.hpp>
#include <tests/support/session.hpp>
#include <zero/io/whole_values.hpp>
#include <zero/train/unsharded_parameters.hpp>

#include "over_device.hpp"

namespace zero::testing {
namespace {

// Finds out in synchronize() that a peer is lost.
class LostPeer final : public ForwardingBackend {
 public:
  LostPeer(std::unique_ptr<dist::Backend> inner, const bool& lost)
      : ForwardingBackend(std::move(inner)), lost_(lost) {}
  void synchronize() override {
    if (lost_) throw Error("a peer is lost");
  }

 private:
  const bool& lost_;
};

TEST(HostReads, OfWholeParametersAreRefusedAfterALoss) {
  on_ranks(2, [](dist::Communicator& c) {
    bool lost = false;
    const Replaced<LostPeer> over(c, lost);
    Session session(c, "engine3");
    session.step(0);
    lost = true;
    expect_error([&] { const train::UnshardedParameters whole(session.strategy(), 0); },
                 {"a peer is lost"});
    lost = false;
  });
}

// The ladder's digests read these and those above.
TEST(HostReads, OfACutParameterAreRefusedAfterALoss) {
  on_ranks(2, [](dist::Communicator& c) {
    bool lost = false;
    const Replaced<LostPeer> over(c, lost);
    const nn::TensorPlacement rows{.axis = &c, .dim = 0};
    const at::Tensor part = at::ones({2, 3});
    EXPECT_TRUE(at::equal(rows.whole_of(part), at::ones({4, 3})));
    lost = true;
    expect_error([&] { rows.whole_of(part); }, {"a peer is lost"});
    lost = false;
  });
}

// The peer is lost while the parameter travels: before that, ranks have asked for their own units.
TEST(HostReads, OfAnotherStageAreRefusedAfterALoss) {
  on_ranks(2, [](dist::Communicator& world) {
    const ThreeAxes axes(world, /*stages=*/2);
    PipelineRank rank(axes, {});
    for (const io::WholeOn ranks : {io::WholeOn::kAllRanks, io::WholeOn::kFirstRank}) {
      bool lost = false;
      const Replaced<LostPeer> over(*axes.pipeline, lost);
      const Hooked loses(*axes.pipeline, [&](dist::Operation, dist::Purpose purpose, bool) {
        lost = purpose == dist::Purpose::kParameter;
      });
      int seen = 0;  // of stage 0, before anything travels
      expect_error(
          [&] {
            io::whole_values(*rank.strategy, ranks, [&](std::size_t, const auto&) { ++seen; });
          },
          {"a peer is lost"});
      EXPECT_LE(seen, 1);
      lost = false;
    }
  });
}

// A loss that is found before the update leaves the weights as they were.
TEST(HostReads, OfAStepAreRefusedBeforeTheUpdate) {
  on_ranks(2, [](dist::Communicator& c) {
    bool lost = false;
    const Replaced<LostPeer> over(c, lost);
    Session session(c, "engine3");
    session.step(0);
    const std::vector<at::Tensor> before = session.weights();
    lost = true;
    expect_error([&] { session.step(1); }, {"a peer is lost"});
    lost = false;
    session.strategy().zero_grad();
    EXPECT_TRUE(same_bits(session.weights(), before));
  });
}

}  // namespace
}  // namespace zero::testing
