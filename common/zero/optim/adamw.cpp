#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <utility>

#include <zero/optim/adamw.hpp>
#include <zero/optim/fused_optimizer.hpp>

namespace zero::optim {
namespace {

class AdamW final : public FusedOptimizer<AdamWOptions> {
 public:
  using FusedOptimizer::FusedOptimizer;

  Settings settings() const override {
    Settings all{"AdamW", {}};
    for (const AdamWOptions& o : options()) {
      all.groups.push_back({{"learning_rate", o.learning_rate},
                            {"beta1", o.beta1},
                            {"beta2", o.beta2},
                            {"epsilon", o.epsilon},
                            {"weight_decay", o.weight_decay}});
    }
    return all;
  }
  bool can_offload() const override { return true; }

 private:
  std::vector<std::string> state_names(const AdamWOptions&) const override {
    return {"exp_avg", "exp_avg_sq"};
  }

  void update(const std::vector<std::vector<at::Tensor>>& lists, const AdamWOptions& o,
              std::int64_t step) override {
    // The kernel wants the step count as a tensor per parameter; all can be the same one.
    const at::Tensor count =
        at::full({}, static_cast<double>(step), lists[0].front().options().dtype(at::kFloat));
    const std::vector<at::Tensor> counts(lists[0].size(), count);
    at::_fused_adamw_(lists[0], lists[1], lists[2], lists[3], /*max_exp_avg_sqs=*/{}, counts,
                      o.learning_rate, o.beta1, o.beta2, o.weight_decay, o.epsilon,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(std::vector<Group<AdamWOptions>> groups) {
  return std::make_unique<AdamW>(std::move(groups));
}

OptimizerFactory adamw(AdamWOptions options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return make_adamw({{parameters, options}});
  };
}

OptimizerFactory adamw(const torch::nn::Module& module, std::vector<AdamWOptions> groups,
                       const GroupRule& rule) {
  return [named = module.named_parameters(), groups = std::move(groups),
          rule](const std::vector<at::Tensor>& parameters) {
    std::vector<Group<AdamWOptions>> all;
    for (const auto& members : split_by_name(named, parameters, groups.size(), rule)) {
      all.push_back({members, groups[all.size()]});
    }
    return make_adamw(std::move(all));
  };
}

}  // namespace zero::optim
