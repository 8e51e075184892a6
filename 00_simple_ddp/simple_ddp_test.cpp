#include "simple_ddp.hpp"

#include <tests/support/ranks.hpp>
#include <tests/support/reference_reducer.hpp>
#include <tests/support/toy_run.hpp>

namespace zero {
namespace {

using memory::Category;
using testing::on_ranks;
using testing::Toy;
using Trial = testing::ToyRun<SimpleDdp>;

// Beside PyTorch's own: the class behind DistributedDataParallel, on the same model and batches.
TEST(SimpleDdp, GradientsAreThoseOfPyTorchsReducer) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    on_ranks(ranks, [](dist::Communicator& communicator) {
      Trial run(communicator, "per_parameter");
      run.reduce(0);
      const Toy theirs = Toy::alone();
      const std::vector<at::Tensor> parameters = theirs.model->parameters();
      dist::ReferenceReducer reducer(parameters, communicator, /*bucket_bytes=*/512);
      const at::Tensor loss = theirs.model->loss(run.batch(0));
      reducer.prepare_for_backward(loss);
      loss.backward();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor ours = run.strategy.list().parameters[i].tensor.grad();
        const at::Tensor expected = parameters[i].grad();
        // It divides before it adds: the same bits up to 2 ranks, where dividing is exact and a sum
        // has one order.
        if (communicator.size() <= 2) {
          EXPECT_TRUE(at::equal(ours, expected)) << i;
        }
        EXPECT_LE((ours - expected).abs().max().item<double>(),
                  1e-6 * expected.abs().max().item<double>());
      }
    });
  }
}

TEST(SimpleDdp, HoldsFourCopiesAtRestAndSendsWhatTheFormulaSays) {
  on_ranks(3, [](dist::Communicator& communicator) {
    for (const char* variant : {"per_parameter", "flat"}) {
      Trial run(communicator, variant);
      run.step(0);
      const std::int64_t v = run.strategy.list().bytes();
      EXPECT_EQ(run.held(Category::kParameters), v);
      EXPECT_EQ(run.held(Category::kGradients), v);
      EXPECT_EQ(run.held(Category::kOptimizer), 2 * v);
      EXPECT_EQ(run.held(Category::kCommunication), 0);
      EXPECT_EQ(run.step(1).bytes(dist::Purpose::kGradient), run.strategy.costs().sent);
    }
  });
}

}  // namespace
}  // namespace zero
