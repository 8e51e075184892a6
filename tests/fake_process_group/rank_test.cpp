// A rank of a fake process group beside the same rank of a real one, also of a mesh: what it holds
// and sends. On a tensor axis values mean nothing, bytes are exact.

#include <tests/support/session.hpp>
#include <tests/support/split_run.hpp>
#include <tests/support/states.hpp>
#include <tools/support/fake_backend.hpp>
#include <zero/distributed/mesh.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::testing {
namespace {

// What can be the same although the others are missing.
struct Seen {
  train::ModelStateBytes predicted, held;
  std::int64_t predicted_traffic = 0;
  std::int64_t activations = 0;     // their peak in a step, in bytes
  dist::Traffic setup, step, axis;  // the last one of the tensor axis in a step
};

// Trains two steps of the model that `make` makes on the tensor axis.
Seen look_at(const dist::Mesh& mesh, const std::string& mode,
             const std::function<std::shared_ptr<torch::nn::Module>()>& make,
             const std::function<data::Batch(int rank, int step)>& batch) {
  dist::Communicator &data = mesh.data(), &tensor = mesh.tensor();
  Seen seen;
  const dist::Traffic at_start = data.traffic();
  const memory::Snapshot before = memory::snapshot();
  const auto model = make();
  nn::SeededValues values(3);
  // Without effect on float32.
  const auto strategy =
      make_strategy(mode, {*model, mesh, optim::with_master_weights(optim::adamw()), &values, ""});
  seen.setup = data.traffic().since(at_start);
  tools::Trainer trainer(*strategy, losses_of(*strategy));
  trainer.step({batch(data.rank(), 0)});
  const dist::Traffic on_data = data.traffic(), on_tensor = tensor.traffic();
  memory::reset_peaks();
  trainer.step({batch(data.rank(), 1)});
  seen.step = data.traffic().since(on_data);
  seen.axis = tensor.traffic().since(on_tensor);
  seen.held = states_since(before);
  seen.activations = memory::snapshot().peak_of(memory::Category::kActivations) -
                     before[memory::Category::kActivations];
  seen.predicted = strategy->costs().at_rest;
  seen.predicted_traffic = strategy->costs().sent;
  return seen;
}

void expect_same(const Seen& fake, const Seen& real) {
  EXPECT_EQ(text_of(fake.predicted), text_of(real.predicted));
  EXPECT_EQ(text_of(fake.held), text_of(real.held));
  EXPECT_EQ(text_of(real.held), text_of(real.predicted));
  EXPECT_EQ(training_bytes(fake.step), fake.predicted_traffic);
  EXPECT_EQ(fake.predicted_traffic, real.predicted_traffic);
  for (std::size_t p = 0; p < dist::kPurposes; ++p) {
    const auto purpose = static_cast<dist::Purpose>(p);
    EXPECT_EQ(fake.setup.bytes(purpose), real.setup.bytes(purpose)) << name(purpose);
    for (const auto& of : {&Seen::step, &Seen::axis}) {
      EXPECT_EQ((fake.*of).bytes(purpose), (real.*of).bytes(purpose)) << name(purpose);
      EXPECT_EQ((fake.*of).calls(purpose), (real.*of).calls(purpose)) << name(purpose);
    }
  }
}

ZERO_TESTS_ON_RANKS(FakeProcessGroup, 1, 2, 3, 4);

TEST_P(FakeProcessGroup, ARankHoldsAndSendsWhatItDoesInARealOne) {
  on_all_modes(GetParam(), [](dist::Communicator& real, const std::string& mode) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(c10::toString(dtype));
      const RandomModelConfig config{.parts = "sanfg", .dtype = dtype};
      const auto make = [&] { return make_deferred<RandomModel>(config); };
      const auto batch = [&](int rank, int step) {
        return random_model_batch(config, 17, rank, step);
      };
      dist::Communicator fake = dist::connect_fake(real.rank(), real.size());
      expect_same(look_at(fake, mode, make, batch), look_at(real, mode, make, batch));
    }
  });
}

class FakeMesh : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DataRanks, FakeMesh, ::testing::Values(1, 2), name_of_ranks);

TEST_P(FakeMesh, ARankHoldsAndSendsWhatItDoesInARealOne) {
  on_all_modes(2 * GetParam(), [](dist::Communicator& real, const std::string& mode) {
    for (const bool sequence : {false, true}) {
      SCOPED_TRACE(fmt::format("sequence {}", sequence));
      const auto look = [&](dist::Communicator& world) {
        const TwoAxes axes(world, 2);
        return look_at(
            axes.mesh, mode,
            [&] {
              return make_deferred<nn::Llama>(llama_to_split(),
                                              nn::TensorParallel(*axes.tensor, sequence));
            },
            split_batch);
      };
      const Seen of_real = look(real);
      dist::Communicator fake = dist::connect_fake(real.rank(), real.size());
      const Seen of_fake = look(fake);
      expect_same(of_fake, of_real);
      EXPECT_EQ(of_fake.activations, of_real.activations);
    }
  });
}

}  // namespace
}  // namespace zero::testing
