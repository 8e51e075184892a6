// The lines of Python in docs/checkpoints.md put a checkpoint together with nothing of ours.
#include <ATen/ops/equal.h>

#include <tests/support/python.hpp>
#include <tests/support/split_run.hpp>

#include "one_checkpoint.hpp"

namespace zero::testing {
namespace {

class Export : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!python_has({"torch", "safetensors"})) {
      GTEST_SKIP() << "THE LINES OF docs/checkpoints.md ARE NOT TESTED: " << python()
                   << " lacks torch or safetensors (requirements-peers.txt, or set ZERO_PYTHON)";
    }
  }

  // Those of the whole model, on rank 0.
  void save(train::Strategy& strategy, const std::vector<at::Tensor>& weights) const {
    const dist::Communicator& world = strategy.mesh().world();
    io::save_checkpoint(strategy, folder_ / "out/run", note(100, "any"));
    for (std::size_t i = 0; world.rank() == 0 && i < weights.size(); ++i) {
      const nn::Parameter& p = strategy.list().parameters[i];
      safetensors::save(folder_ / (p.name + ".expected"),
                        {{p.name, weights[i].view(p.whole_sizes())}});
    }
  }

  void expect_put_together() const {
    const ProcessResult ended = run_lines_of("docs/checkpoints.md", folder_.path());
    ASSERT_EQ(ended.code, 0) << ended.said;
    const safetensors::File made(folder_ / "model.safetensors");
    EXPECT_EQ(made.metadata(), (safetensors::Metadata{{"format", "pt"}}));
    EXPECT_GE(made.names().size(), 5U);
    for (const std::string& name : made.names()) {
      const at::Tensor expected = safetensors::File(folder_ / (name + ".expected")).read(name);
      EXPECT_TRUE(at::equal(made.read(name), expected)) << name;
      fs::remove(folder_ / (name + ".expected"));
    }
    for (const std::string& file : folder_.listing()) {
      EXPECT_FALSE(file.ends_with(".expected")) << file << " is not there";
    }
  }

  TestFolder folder_;
};

TEST_F(Export, OfShardsWithAScalarAndATiedAndAFrozenParameter) {
  on_ranks(3, [&](dist::Communicator& communicator) {
    Session session(communicator, kMode, checkpoint_options());
    session.step(0);
    save(session.strategy(), session.weights());
  });
  expect_put_together();
}

TEST_F(Export, OfShardsOfPartsThatATensorAxisCuts) {
  on_ranks(4, [&](dist::Communicator& world) {
    const TwoAxes axes(world, 2);
    SplitRun run(axes.mesh, {.mode = "engine3", .sequence = true, .dtype = at::kBFloat16});
    run.step(0);
    save(*run.strategy, run.model_weights());
  });
  expect_put_together();
}

}  // namespace
}  // namespace zero::testing
