#include <ATen/ops/_fused_sgd.h>

#include <zero/optim/fused_optimizer.hpp>
#include <zero/optim/sgd.hpp>

namespace zero::optim {
namespace {

class Sgd final : public FusedOptimizer<SgdOptions> {
 public:
  using FusedOptimizer::FusedOptimizer;

  Settings settings() const override {
    // Without momentum there are other states, so it is another kind.
    Settings all{"SGD without momentum", {}};
    for (const SgdOptions& o : options()) {
      if (o.momentum != 0.0) all.kind = "SGD";
      all.groups.push_back({{"learning_rate", o.learning_rate},
                            {"momentum", o.momentum},
                            {"weight_decay", o.weight_decay}});
    }
    return all;
  }

 private:
  // Without momentum the kernel takes no buffer at all.
  std::vector<std::string> state_names(const SgdOptions& o) const override {
    return o.momentum == 0.0 ? std::vector<std::string>()
                             : std::vector{std::string("momentum_buffer")};
  }

  void update(const std::vector<std::vector<at::Tensor>>& lists, const SgdOptions& o,
              std::int64_t step) override {
    const std::vector<at::Tensor> none;
    at::_fused_sgd_(lists[0], lists[1], lists.size() > 2 ? lists[2] : none, o.weight_decay,
                    o.momentum, o.learning_rate,
                    /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/step == 1);
  }
};

}  // namespace

OptimizerFactory sgd(SgdOptions options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Sgd>(std::vector{Group<SgdOptions>{parameters, options}});
  };
}

}  // namespace zero::optim
