// Before the host reads what depends on other ranks, it asks whether one of them is lost: what a
// lost rank leaves in a tensor of a GPU looks like any other value.

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <07_zero_plus_plus/quantized_gradients.hpp>
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

TEST(HostReads, OfQuantizedGradientsAreRefusedAfterALoss) {
  on_ranks(2, [](dist::Communicator& c) {
    bool lost = false;
    const dist::testing::Replaced<LostPeer> over(c, lost);
    const dist::Mesh mesh = dist::Mesh(c).with_shards(2);
    const train::ShardLayout layout({3000, 70}, 2);
    memory::StoragePool pool;
    const std::string name = "weight";
    const at::Tensor full = at::ones({layout.total()}), shard = at::empty({layout.shard()});
    QuantizedGradients transfer(mesh, {layout, {8, 256}}, {layout, full.options(), name, pool});
    transfer.reduce(full).wait();
    lost = true;
    expect_error([&] { transfer.reduce_rest(shard); }, {"a peer is lost"});
    expect_error([&] { transfer.reduce(full); }, {"a peer is lost"});
  });
}

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
