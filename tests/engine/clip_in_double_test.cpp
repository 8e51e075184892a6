// A model with parameters of double is clipped in double.

#include <cmath>

#include <tests/support/batch_model.hpp>
#include <tests/support/modes.hpp>
#include <tests/support/same_bits.hpp>
#include <tests/support/tensors.hpp>
#include <tests/support/whole_weights.hpp>
#include <zero/engine.hpp>
#include <zero/optim/sgd.hpp>
#include <zero/optim/wide_sum.hpp>

namespace zero::testing {
namespace {

// y = x first second, in two types.
struct TwoTypes : BatchModel {
  TwoTypes(at::ScalarType one, at::ScalarType two)
      : first(register_parameter("first", random({5, 7}, 1, false, one))),
        second(register_parameter("second", random({7, 3}, 2, false, two))) {}
  at::Tensor predict(const data::Batch& batch) {
    return run([&] {
      const at::Tensor inner = batch.inputs.to(first.scalar_type()).matmul(first);
      return inner.to(second.scalar_type()).matmul(second);
    });
  }
  at::Tensor loss(const data::Batch& batch) override {
    return predict(batch).to(at::kDouble).square().mean();
  }
  static data::Batch batch(int rank, int step) {
    return {.inputs = random({4, 5}, static_cast<std::uint64_t>(10 * step + rank + 5))};
  }
  at::Tensor first, second;
};

constexpr double kClipNorm = 0.01;

// The plain module with the batches of all ranks: torch.nn.utils.clip_grad_norm_(), written out.
std::vector<at::Tensor> plainly_clipped(int ranks, at::ScalarType one, at::ScalarType two) {
  TwoTypes net(one, two);
  const std::vector<at::Tensor> parameters = parameters_of(net);
  const auto optimizer = optim::sgd({.learning_rate = 0.5})(parameters);
  for (int s = 0; s < 3; ++s) {
    std::vector<at::Tensor> sums(parameters.size());
    for (int r = 0; r < ranks; ++r) {
      for (const at::Tensor& p : parameters) p.mutable_grad().reset();
      net.loss(TwoTypes::batch(r, s)).backward();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        sums[i] = r == 0 ? parameters[i].grad() : sums[i] + parameters[i].grad();
      }
    }
    for (at::Tensor& sum : sums) sum = sum / ranks;
    optim::WideSum squares;
    for (const auto& of_one : optim::wide_squared_norms(sums)) squares.add(of_one);
    const double factor = kClipNorm / (std::sqrt(squares.rounded()) + 1e-6);
    EXPECT_LT(factor, 1);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = sums[i] * factor;
    }
    optimizer->step();
  }
  return parameters;
}

ZERO_TESTS_ON_RANKS(ClippingInDouble, 2, 3);

TEST_P(ClippingInDouble, IsThatOfThePlainModule) {
  on_all_stages(GetParam(), [](dist::Communicator& communicator, int stage) {
    for (const auto& [one, two] : {std::pair{at::kDouble, at::kDouble},
                                   {at::kDouble, at::kFloat},
                                   {at::kFloat, at::kDouble}}) {
      TwoTypes net(one, two);
      Engine engine(net, communicator, optim::sgd({.learning_rate = 0.5}),
                    {.stage = stage, .clip_norm = kClipNorm});
      for (int s = 0; s < 3; ++s) {
        engine.backward(forward_batch(engine, TwoTypes::batch(communicator.rank(), s)));
        EXPECT_TRUE(engine.step());
      }
      const auto weights = whole_weights(engine.strategy());
      const auto expected = plainly_clipped(communicator.size(), one, two);
      EXPECT_TRUE(same_bits(weights, expected)) << c10::toString(one) << " " << c10::toString(two);
    }
  });
}

}  // namespace
}  // namespace zero::testing
