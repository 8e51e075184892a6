#include "parity.hpp"

#include <ATen/ops/equal.h>

#include "deferred.hpp"
#include "edge_case_model.hpp"
#include "moved_to.hpp"

namespace zero::testing {
RunRecord run_edge_case_model(dist::Communicator& communicator, const std::string& mode,
                              const RunOptions& options) {
  const auto model = make_deferred<EdgeCaseModel>();
  move_to(options.device, *model);
  nn::SeededValues values(options.same_seed ? 3 : 3 + communicator.rank());
  const auto strategy = make_strategy(
      mode, {*model, communicator, options.optimizer, &values, "", options.accumulation});
  tools::Trainer trainer(*strategy, losses_of(*strategy), {.clip_norm = options.clip_norm});
  RunRecord record;
  for (int step = 0; step < options.steps; ++step) {
    std::vector<data::Batch> batches;
    for (int m = 0; m < options.micro_batches; ++m) {
      batches.push_back(
          moved_to(options.device,
                   edge_case_batch(17, communicator.rank(), step * options.micro_batches + m)));
    }
    const tools::StepResult result = trainer.step(batches);
    record.losses.push_back(result.loss);
    record.norms.push_back(result.gradient_norm);
    record.gradients.push_back(whole_gradients(*strategy));
  }
  record.state = whole_state(*strategy);
  for (auto& [name, tensor] : record.state) tensor = tensor.cpu();
  return record;
}

void expect_identical(const RunRecord& record, const RunRecord& reference) {
  ASSERT_EQ(record.gradients.size(), reference.gradients.size());
  for (std::size_t step = 0; step < record.gradients.size(); ++step) {
    EXPECT_TRUE(same_bits(record.gradients[step], reference.gradients[step])) << "step " << step;
  }
  ASSERT_EQ(record.state.size(), reference.state.size());
  for (const auto& [name, tensor] : record.state) {
    if (at::equal(tensor, reference.state.at(name))) continue;
    // LibTorch's Adagrad has a state of a parameter before its first update, where it is not cut.
    const std::string parameter = name.substr(name.find('/') + 1);
    EXPECT_FALSE(name.starts_with("parameter/") || tensor.any().item<bool>() ||
                 reference.state.at("steps/" + parameter).any().item<bool>())
        << name << " differs";
  }
  EXPECT_EQ(record.losses, reference.losses);
  EXPECT_EQ(record.norms, reference.norms);
}

}  // namespace zero::testing
