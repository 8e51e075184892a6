// Compares with what the allocator counts: for Zero1Sharding, and for tensors that share memory.

#include <fmt/format.h>

#include <01_zero1/zero1_sharding.hpp>
#include <grading/check.hpp>
#include <tools/models/mlp.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/optim/adamw.hpp>

#include "01e.hpp"

namespace exercise_01e {

using zero::dist::Communicator;
using zero::exercise::Mistake;
using zero::memory::Category;

constexpr std::int64_t kPage = 4096;

/// A wrong number of bytes that people give, and the mistake.
using Known = std::pair<std::int64_t, std::string>;

void compare(const std::string& begin, const std::string& category, std::int64_t found,
             std::int64_t counted, std::int64_t tolerance, const std::vector<Known>& known) {
  if (std::abs(found - counted) <= tolerance) return;
  std::string sentence =
      fmt::format("{} {} bytes {}, and the allocator counts {}", begin, found, category, counted);
  for (const auto& [bytes, mistake] : known) {
    if (found != bytes) continue;
    sentence = fmt::format("{} {} bytes {}: {}", begin, found, category, mistake);
  }
  throw Mistake(sentence);
}

// A rank of chapter 01 after a step.
void check_zero1(const Answer& answer, Communicator& communicator) {
  const zero::memory::Snapshot before = zero::memory::snapshot();
  zero::tools::Mlp model(zero::tools::MlpConfig{.inputs = 100, .hidden = {120, 80}, .outputs = 30});
  zero::nn::SeededValues values(1);
  initialize_parameters(model, values);
  zero::Zero1Sharding zero1({model, communicator, zero::optim::adamw()});
  zero1.backward(zero1.forward([&] {
    return model.loss(at::ones({2, 100}), at::ones({2, 30}), /*terms=*/2);
  }));
  zero1.finish_backward();
  zero1.optimizer_step();
  zero1.sync_parameters();
  const zero::memory::Snapshot after = zero::memory::snapshot();
  const auto counted = [&](Category category) { return after[category] - before[category]; };

  std::vector<at::Tensor> parameters, moments;
  std::int64_t owned = 0;
  for (const auto& parameter : zero1.list().parameters) {
    parameters.push_back(parameter.tensor);
    const auto state = zero1.optimizer().state(parameter.tensor);
    for (const auto& [name, tensor] : state) moments.push_back(tensor);
    if (!state.empty()) owned += parameter.numel();
  }
  const std::int64_t p = counted(Category::kParameters), g = counted(Category::kGradients);
  const std::int64_t o = counted(Category::kOptimizer);
  const Bytes found = answer.held_bytes(parameters, moments);
  const std::string rank = fmt::format("rank {} finds", communicator.rank());
  compare(rank, "of parameters", found.parameters, p, kPage, {});
  compare(rank, "of gradients", found.gradients, g, kPage, {});
  compare(rank, "of the optimizer", found.optimizer, o, kPage, {});

  const std::int64_t all = zero1.list().numel();
  const Bytes formula = answer.formula_bytes(all, all, owned);
  const std::string by_formula = fmt::format("by formula rank {} holds", communicator.rank());
  compare(by_formula, "of parameters", formula.parameters, p, 0, {});
  compare(by_formula, "of gradients", formula.gradients, g, 0,
          {{4 * owned, "under ZeRO-1 they stay on all ranks"}});
  compare(by_formula, "of the optimizer", formula.optimizer, o, 0,
          {{8 * all, "a rank has moments of what it owns only"},
           {4 * owned, "AdamW has two moments for each parameter"}});
  const zero::train::ModelStateBytes costs = zero1.costs().at_rest;
  if (costs != zero::train::ModelStateBytes{p, g, o}) {
    throw Mistake("the allocator does not agree with the formula of the class");
  }
}

// An embedding that is the output layer too, a frozen weight, a weight; gradients and moments in
// buffers that are padded. The allocator charges all of it to other categories.
void check_shared_memory(const Answer& answer) {
  std::int64_t before = zero::memory::snapshot().total;
  const auto counted = [&] {
    const std::int64_t now = zero::memory::snapshot().total;
    return now - std::exchange(before, now);
  };
  const at::Tensor embedding = at::zeros({100, 50}), frozen = at::zeros({40, 40});
  const at::Tensor weight = at::zeros({60, 50});
  const std::vector<at::Tensor> parameters = {embedding, frozen, weight, embedding};
  const std::int64_t p = counted();
  const at::Tensor gradients = at::zeros({11'000});  // 3,000 more than there are
  const std::int64_t g = counted();
  const at::Tensor buffer = at::zeros({2, 4'500});
  const std::int64_t o = counted();
  embedding.mutable_grad() = gradients.narrow(0, 0, 5'000).view({100, 50});
  weight.mutable_grad() = gradients.narrow(0, 5'000, 3'000).view({60, 50});
  const std::vector<at::Tensor> moments = {buffer[0].narrow(0, 0, 3'000).view({60, 50}),
                                           buffer[1].narrow(0, 0, 3'000).view({60, 50})};

  const std::string begin = "of tensors that share memory you find";
  const Bytes found = answer.held_bytes(parameters, moments);
  compare(begin, "of parameters", found.parameters, p, kPage,
          {{p + 20'000, "the weight that two layers share is counted twice"}});
  compare(begin, "of gradients", found.gradients, g, kPage,
          {{4 * 8'000, "a view keeps the whole buffer that it lies in, not its own bytes only"},
           {4 * 13'000, "the shared weight has one gradient, and a view keeps its whole buffer"},
           {2 * g, "the buffer is counted once for each gradient that lies in it"},
           {3 * g, "the buffer is counted once for each gradient that lies in it"},
           {p, "a parameter that is not trained has no gradient"}});
  compare(begin, "of the optimizer", found.optimizer, o, kPage,
          {{4 * 6'000, "a view keeps the whole buffer that it lies in, not its own bytes only"},
           {2 * o, "the buffer is counted once for each moment that lies in it"}});

  const Bytes formula = answer.formula_bytes(9'600, 8'000, 3'000);
  compare("by formula a rank that trains 8,000 of 9,600 parameters holds", "of gradients",
          formula.gradients, 4 * 8'000, 0, {});
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& communicator) {
    check_zero1(answer, communicator);
    check_shared_memory(answer);
  });
}

}  // namespace exercise_01e
