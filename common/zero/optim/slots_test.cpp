// How optimizers find what they keep for a parameter, and that their work grows with the number of
// parameters and not with its square.

#include <gtest/gtest.h>

#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>
#include <zero/optim/slots.hpp>

namespace zero::optim {
namespace {

struct NumberedSlot {
  at::Tensor parameter;
  int number = 0;
};

TEST(Slots, FindEveryParameterAlsoAfterOthersAreGoneOrReplaced) {
  std::vector<at::Tensor> parameters;
  Slots<NumberedSlot> slots;
  for (int i = 0; i < 100; ++i) {
    parameters.push_back(at::ones({1}));
    slots.add({parameters.back(), i});
  }
  const at::Tensor stranger = at::ones({1});
  EXPECT_EQ(slots.find(stranger), nullptr);
  EXPECT_EQ(slots.find(at::Tensor()), nullptr);
  EXPECT_FALSE(slots.of(stranger).parameter.defined());
  EXPECT_EQ(slots.of(parameters[7]).number, 7);
  EXPECT_EQ(slots.that([](const NumberedSlot& slot) { return slot.number > 97; }).size(), 2U);
  // Every third goes, every third is another tensor, the rest stays.
  std::vector<at::Tensor> now = parameters;
  for (std::size_t i = 0; i < 100; ++i) {
    if (i % 3 == 0) now[i] = at::Tensor();
    if (i % 3 == 1) now[i] = at::ones({1});
  }
  int asked = 0;
  slots.replace(
      [&](const at::Tensor& held) {
        EXPECT_TRUE(held.is_same(parameters[static_cast<std::size_t>(asked)]));
        return now[static_cast<std::size_t>(asked++)];
      },
      [](NumberedSlot& slot, const at::Tensor& other) {
        slot = {other, slot.number + 1000};
      });
  EXPECT_EQ(asked, 100);
  for (std::size_t i = 0; i < 100; ++i) {
    const NumberedSlot* const slot = now[i].defined() ? slots.find(now[i]) : nullptr;
    EXPECT_EQ(slots.find(parameters[i]) != nullptr, i % 3 == 2) << i;
    EXPECT_EQ(slot != nullptr, i % 3 != 0) << i;
    if (slot == nullptr) continue;
    EXPECT_EQ(slot->number, static_cast<int>(i) + (i % 3 == 1 ? 1000 : 0));
  }
}

// In order, all of them, and each batch as large as it may be.
TEST(Slots, GoInBatchesOfAFractionOfAllElementsOrOfOneLargerParameter) {
  constexpr std::int64_t kBatches = 4;
  for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{
           {}, {0}, {5}, {1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 20, 1, 1}, {3, 3, 3, 3, 3}, {0, 9, 0}}) {
    Slots<NumberedSlot> slots;
    std::int64_t all = 0;
    for (const std::int64_t size : sizes) {
      slots.add({at::ones({size})});
      all += size;
    }
    std::size_t next = 0;
    std::int64_t before = all + 1;  // elements of the batch before
    for (const auto& batch : batches_of(slots.that([](auto&) { return true; }), kBatches)) {
      std::int64_t elements = 0;
      for (const NumberedSlot* slot : batch) {
        EXPECT_EQ(slots.index_of(*slot), next++);
        elements += slot->parameter.numel();
      }
      EXPECT_TRUE(elements <= all / kBatches || batch.size() == 1);
      EXPECT_GT(before + batch.front()->parameter.numel(), all / kBatches);
      before = elements;
    }
    EXPECT_EQ(next, sizes.size());
  }
}

// An optimizer that counts how often one of its parameters is looked at.
class LookCounter final : public Optimizer {
 public:
  LookCounter(const std::vector<at::Tensor>& parameters, std::int64_t& looks)
      : inner_(adamw()(parameters)), held_(parameters.size()), looks_(looks) {}

  void step() override {
    looks_ += static_cast<std::int64_t>(held_);
    inner_->step();
  }
  void replace(const std::function<at::Tensor(const at::Tensor&)>& with) override {
    looks_ += static_cast<std::int64_t>(held_);
    inner_->replace([&](const at::Tensor& held) {
      const at::Tensor other = with(held);
      held_ -= other.defined() ? 0 : 1;
      return other;
    });
  }
  std::map<std::string, at::Tensor> state(const at::Tensor& parameter) const override {
    ++looks_;
    return inner_->state(parameter);
  }
  std::int64_t steps(const at::Tensor& parameter) const override {
    ++looks_;
    return inner_->steps(parameter);
  }
  void load_state(const at::Tensor& parameter, std::int64_t steps,
                  const std::map<std::string, at::Tensor>& states) override {
    ++looks_;
    inner_->load_state(parameter, steps, states);
  }
  void set_learning_rate(double rate) override { inner_->set_learning_rate(rate); }

 private:
  std::unique_ptr<Optimizer> inner_;
  std::size_t held_;
  std::int64_t& looks_;
};

// Everything that becomes of master weights: the rank forgets and replaces some, updates, saves and
// loads.
std::int64_t looks_in_a_life_of(int parameters) {
  std::int64_t looks = 0;
  std::vector<at::Tensor> all;
  for (int i = 0; i < parameters; ++i) {
    all.push_back(at::ones({16}, i % 4 == 0 ? at::kFloat : at::kBFloat16).requires_grad_());
  }
  const auto optimizer = with_master_weights([&](const std::vector<at::Tensor>& given) {
    return std::make_unique<LookCounter>(given, looks);
  })(all);
  std::vector<at::Tensor> held;
  int asked = 0;
  optimizer->replace([&](const at::Tensor& p) {
    if (asked++ % 8 == 7) return at::Tensor();
    held.push_back(p.detach().clone());
    return held.back();
  });
  for (int step = 0; step < 3; ++step) {
    for (const at::Tensor& p : held) p.mutable_grad() = at::full({16}, 2, p.options());
    optimizer->step();
  }
  for (const at::Tensor& p : held) {
    optimizer->load_state(p, optimizer->steps(p), optimizer->state(p));
  }
  return looks;
}

TEST(MasterWeights, TakeTimeThatGrowsWithTheNumberOfParametersOnly) {
  const std::int64_t of_few = looks_in_a_life_of(64);
  EXPECT_LE(looks_in_a_life_of(64 * 16), 16 * of_few);
  EXPECT_LE(of_few, 64 * 120);  // three steps of at most 33 looks at each parameter, and the rest
}

}  // namespace
}  // namespace zero::optim
