// The memory table that was published for SmolLM2-360M, fp32, AdamW, 2 ranks, by the formulas of
// the real strategies at the real size. Nothing is trained: parameters get storage and no values,
// so that their pages are never touched.
#include <fmt/format.h>

#include <tests/support/deferred.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/states.hpp>
#include <tools/models/presets.hpp>
#include <tools/support/fake_backend.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>

namespace zero::testing {
namespace {

class NoValues final : public nn::ParameterSource {
 public:
  void fill(const nn::Parameter&, at::Tensor&) override {}
};

// Means over the ranks, in bytes.
struct Means {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double total = 0;
};

// By the formulas of `mode`. Also sees that a rank holds the parameters that its formula says.
Means means_of(const std::string& mode, const nn::LlamaConfig& config, int ranks) {
  Means mean;
  for (int rank = 0; rank < ranks; ++rank) {
    const memory::Snapshot before = memory::snapshot();
    const auto model = make_deferred<nn::Llama>(config);
    dist::Communicator communicator = dist::connect_fake(rank, ranks);
    NoValues values;
    const auto strategy = make_strategy(mode, {*model, communicator, optim::adamw(), &values});
    const train::ModelStateBytes bytes = strategy->costs().at_rest;
    EXPECT_EQ(states_since(before).parameters, bytes.parameters);
    const auto add = [&](double& to, std::int64_t more) {
      to += static_cast<double>(more) / ranks;
    };
    add(mean.parameters, bytes.parameters);
    add(mean.gradients, bytes.gradients);
    add(mean.optimizer, bytes.optimizer);
    add(mean.total, bytes.total());
  }
  return mean;
}

constexpr double kMib = 1 << 20;

TEST(PublishedTable, ClassifierComesOutWithin0Point01Mib) {
  nn::LlamaConfig config = tools::preset("smollm2-360m");
  config.classes = 5;
  on_ranks(1, [&](dist::Communicator&) {
    for (const auto& [mode, published] : std::vector<std::pair<const char*, Means>>{
             {"ddp", {1380.26, 1380.26, 2760.51, 5521.03}},
             {"zero1", {1380.26, 1380.26, 1380.26, 4140.78}},
             {"zero2", {1380.26, 690.12, 1380.26, 3450.65}},
             {"zero3", {690.12, 690.12, 1380.26, 2760.51}}}) {
      SCOPED_TRACE(mode);
      const Means found = means_of(mode, config, 2);
      EXPECT_NEAR(found.parameters / kMib, published.parameters, 0.01);
      EXPECT_NEAR(found.gradients / kMib, published.gradients, 0.01);
      EXPECT_NEAR(found.optimizer / kMib, published.optimizer, 0.01);
      EXPECT_NEAR(found.total / kMib, published.total, 0.02);
    }
  });
}

// The formulas of docs/formulas.md, by rank where that has means, beside what the strategies say
// that a rank sends; residency_test.cpp compares that with the communicator's counters.

constexpr std::int64_t kElementBytes = 4;

// What `look` says of `mode` on one of so many ranks.
std::int64_t of_rank(const std::string& mode, int rank, int ranks,
                     const std::function<std::int64_t(train::Strategy&)>& look) {
  const auto model = make_deferred<nn::Llama>(tools::preset("tiny"));
  dist::Communicator communicator = dist::connect_fake(rank, ranks);
  NoValues values;
  return look(*make_strategy(mode, {*model, communicator, optim::adamw(), &values, ""}));
}

std::int64_t rounded_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// F, and G of the root alone: buffers of units, or one for each parameter, for so many ranks.
std::int64_t buffer_bytes(std::int64_t ranks, bool root_only, bool per_parameter = false) {
  const auto model = make_deferred<nn::Llama>(tools::preset("tiny"));
  const nn::ParameterList list = nn::list_parameters(*model);
  std::int64_t elements = 0;
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    if (root_only && u > 0) continue;
    std::int64_t unit = 0;
    for (const std::size_t i : list.units[u].parameters) {
      const std::int64_t n = rounded_up(list.parameters[i].numel(), 64);
      unit += per_parameter ? rounded_up(n, 64 * ranks) : n;
    }
    elements += rounded_up(unit, 64 * ranks);
  }
  return elements * kElementBytes;
}

void expect_sent(const std::string& mode, int rank, int ranks, std::int64_t bytes) {
  SCOPED_TRACE(fmt::format("{}, rank {} of {}", mode, rank, ranks));
  EXPECT_EQ(of_rank(mode, rank, ranks, [](train::Strategy& s) { return s.costs().sent; }), bytes);
}

TEST(CommunicationFormulas, OfWholeParameters) {
  on_ranks(1, [](dist::Communicator&) {
    for (const int n : {2, 4, 8}) {
      for (int r = 0; r < n; ++r) {
        const std::int64_t v = tools::preset("tiny").parameters() * kElementBytes;
        const auto owned = [&](bool root_only) {
          return of_rank("zero3", r, n, [&](train::Strategy& s) {
            std::int64_t bytes = 0;
            for (std::size_t i = 0; i < s.list().size(); ++i) {
              const nn::Parameter& p = s.list().parameters[i];
              if (s.owns(i) && (!root_only || p.unit == 0)) bytes += p.numel() * kElementBytes;
            }
            return bytes;
          });
        };
        const std::int64_t o = owned(false), g = owned(true);
        for (const char* mode : {"ddp", "ddp:flat"}) expect_sent(mode, r, n, 2 * v * (n - 1) / n);
        for (const char* mode : {"zero1", "zero2", "zero2:after", "zero3:whole"}) {
          expect_sent(mode, r, n, v + (n - 2) * o);
        }
        expect_sent("zero1:naive", r, n, 2 * v * (n - 1) / n + (n - 1) * o);
        expect_sent("zero2:placeholder", r, n, (n - 1) * (v + o));
        expect_sent("zero3", r, n, v - o + (n - 1) * (2 * o - g));
      }
    }
  });
}

TEST(CommunicationFormulas, OfSplitTensors) {
  on_ranks(1, [](dist::Communicator&) {
    for (const int n : {2, 3, 4, 8}) {
      const int r = n - 1;
      const std::int64_t f = buffer_bytes(n, false), g = buffer_bytes(n, true);
      for (const char* mode : {"engine0", "tensor_zero1", "tensor_zero2", "engine1", "engine2",
                               "tensor_zero3:whole", "engine3:whole_below=100000000"}) {
        expect_sent(mode, r, n, 2 * f * (n - 1) / n);
      }
      for (const char* mode : {"tensor_zero3", "engine3"}) {
        expect_sent(mode, r, n, (3 * f - g) * (n - 1) / n);
      }
      expect_sent("tensor_zero1:naive", r, n, 3 * f * (n - 1) / n);
      const std::int64_t single = buffer_bytes(n, false, true), root = buffer_bytes(n, true, true);
      expect_sent("tensor_zero3:per_parameter", r, n, (3 * single - root) * (n - 1) / n);
      // Layers are larger than the threshold, the root is not.
      expect_sent("engine3:whole_below=20000", r, n, (2 * f + f - g) * (n - 1) / n);
    }
  });
}

}  // namespace
}  // namespace zero::testing
