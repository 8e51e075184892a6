// Faults that are planted in the library: its own sources under the patches of this folder. On the
// emulated accelerator the checker finds each, and the weights cannot show it: they are those of
// the CPU, but where the host reads too early.

#include <10_offload/kept_on_host.hpp>
#include <tests/accelerator/llama_on.hpp>
#include <tests/accelerator/toy_on.hpp>
#include <tests/support/accelerator/emulated_test.hpp>
#include <tests/support/error_of.hpp>
#include <tests/support/same_bits.hpp>

#include "plant.hpp"

namespace zero::testing {
namespace {

using emulated::Checker;
using emulated::Fault;

struct Plant {
  std::string name;
  std::string mode;  ///< in which it shows
  Fault fault;
  std::vector<std::string> words;  ///< of the finding
  at::ScalarType dtype = at::kFloat;
  bool checkpoints = false;  ///< of a Llama, on the host
  bool shows = false;        ///< in the values, too: they are poison
};

void PrintTo(const Plant& plant, std::ostream* out) { *out << plant.name; }

// Reads, as a save does, what the ranks hold; then trains on.
template <typename Run>
std::vector<at::Tensor> trained(Run run) {
  std::vector<at::Tensor> seen;
  for (int step = 0; step < 3; ++step) {
    run.step(step);
    for (std::size_t i = 0; i < run.strategy->list().size(); ++i) {
      run.strategy->bring(i);
      const at::Tensor shard = run.strategy->placement(i).kept.tensor;
      if (shard.defined()) seen.push_back(shard.detach().cpu().clone());
    }
  }
  for (const at::Tensor& t : run.weights()) seen.push_back(t);
  return seen;
}

std::vector<at::Tensor> trained(dist::Communicator& communicator, const Plant& how,
                                at::Device device) {
  if (!how.checkpoints) return trained(ToyOn(communicator, how.mode, device, how.dtype));
  return trained(LlamaOn(communicator, how.mode, device, {.keep = keep_on_host}, how.dtype));
}

class PlantedFault : public ::testing::TestWithParam<Plant> {};

TEST_P(PlantedFault, IsFoundByTheCheckerAndByNoValue) {
  emulated::enable_backend();
  on_ranks({.world_size = 2, .backend = "emulated"}, [](dist::Communicator& communicator) {
    const Plant& how = GetParam();
    const auto expected = trained(communicator, how, at::kCPU);
    EXPECT_TRUE(same_bits(trained(communicator, how, emulated::kDevice), expected));
    emulated::expect_clean();
    plant() = how.name;
    if (how.shows) {
      expect_error([&] { trained(communicator, how, emulated::kDevice); },
                   {"the loss is infinite or NaN on ranks 0, 1"});
    } else {
      EXPECT_TRUE(same_bits(trained(communicator, how, emulated::kDevice), expected));
    }
    const auto findings = Checker::get().take_findings();
    ASSERT_FALSE(findings.empty());
    EXPECT_EQ(findings[0].fault, how.fault);
    for (const std::string& word : how.words) {
      EXPECT_THAT(findings[0].text, ::testing::HasSubstr(word)) << emulated::text_of(findings);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Library, PlantedFault,
    ::testing::Values(Plant{"use_before_wait",
                            "engine3",
                            Fault::kUnordered,
                            {"a read by aten::addmm", "the write by _ALLGATHER_BASE"}},
                      Plant{"reduction_before_event",
                            "engine3",
                            Fault::kUnordered,
                            {"a read by _ALLGATHER_BASE", "on stream 0"}},
                      Plant{"bucket_freed_early",
                            "engine2",
                            Fault::kFreedInUse,
                            {"release_storage", "the read by _ALLGATHER_BASE"}},
                      Plant{"shard_before_join",
                            "engine2:defer_parameter_gather=true",
                            Fault::kUnordered,
                            {"a read by copy_ on stream 0", "the write by _ALLGATHER_BASE"}},
                      Plant{"secondary_shard_elsewhere",
                            "hpz:by_rank",
                            Fault::kUnordered,
                            {"a read by copy_", "keep_part_of", "the write by _ALLGATHER_BASE"}},
                      Plant{"buffers_not_held",
                            "zero1",
                            Fault::kFreedInUse,
                            {"gives memory back to stream 0", "the read by _ALLGATHER_BASE"},
                            at::kBFloat16},
                      Plant{"input_copied_early",
                            "engine3",
                            Fault::kUnordered,
                            {"a read by copy_", "keep_on_host", "on stream 0"},
                            at::kFloat,
                            /*checkpoints=*/true},
                      Plant{"input_freed_early",
                            "engine3",
                            Fault::kFreedInUse,
                            {"gives memory back to stream 0", "the read by copy_"},
                            at::kFloat,
                            /*checkpoints=*/true},
                      Plant{"gradient_copied_early",
                            "engine2:offload=host",
                            Fault::kUnordered,
                            {"a read by copy_", "the write by copy_", "sum_by_operations"}},
                      Plant{"update_before_copy",
                            "engine3:offload=host",
                            Fault::kReadEarly,
                            {"uses the result of the non-blocking copy_"},
                            at::kFloat,
                            /*checkpoints=*/false,
                            /*shows=*/true},
                      Plant{"use_before_return",
                            "engine3:offload=host",
                            Fault::kUnordered,
                            {"a read by", "the write by copy_", "Strategy::update"}}),
    [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace zero::testing
