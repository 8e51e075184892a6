// Before the host reads what depends on other ranks, it asks whether one of them is lost: what a
// lost rank leaves in a tensor of a GPU looks like any other value.

#include <tests/support/error_of.hpp>
#include <tests/support/session.hpp>
#include <zero/train/unsharded_parameters.hpp>

#include "forwarding_backend.hpp"
#include "over_device.hpp"

namespace zero::testing {
namespace {

// Finds out in synchronize() that a peer is lost.
class LostPeer final : public dist::testing::ForwardingBackend {
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
    const dist::testing::Replaced<LostPeer> over(c, lost);
    Session session(c, "engine3");
    session.step(0);
    lost = true;
    expect_error([&] { const train::UnshardedParameters whole(session.strategy(), 0); },
                 {"a peer is lost"});
    lost = false;
  });
}

// A loss that is found before the update leaves the weights as they were.
TEST(HostReads, OfAStepAreRefusedBeforeTheUpdate) {
  on_ranks(2, [](dist::Communicator& c) {
    bool lost = false;
    const dist::testing::Replaced<LostPeer> over(c, lost);
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
