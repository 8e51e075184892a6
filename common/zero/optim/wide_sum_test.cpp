#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include <zero/optim/norm.hpp>

namespace zero::optim {
namespace {

constexpr std::int64_t kNumbers = 3000;

std::vector<double> numbers() {
  at::Generator generator = at::detail::createCPUGenerator(3);
  const at::Tensor all = at::randn({kNumbers}, generator, at::kDouble).exp();
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + kNumbers};
}

// In any order and in any parts; a sum in double does show them.
TEST(WideSum, IsRoundedAlikeInEveryOrder) {
  const std::vector<double> all = numbers();
  WideSum expected;
  for (const double x : all) expected.add(x);
  const double in_order = std::accumulate(all.begin(), all.end(), 0.0);
  int differ = 0;
  std::mt19937 random;
  for (std::size_t round = 0; round < 20; ++round) {
    std::vector<double> shuffled = all;
    std::ranges::shuffle(shuffled, random);
    std::vector<WideSum> parts(1 + round % 3);
    for (std::size_t k = 0; k < shuffled.size(); ++k) parts[k % parts.size()].add(shuffled[k]);
    const double plain = std::accumulate(shuffled.begin(), shuffled.end(), 0.0);
    WideSum sum;
    for (const WideSum& part : parts) sum.add(part);
    EXPECT_EQ(sum.rounded(), expected.rounded());
    differ += plain == in_order ? 0 : 1;
  }
  EXPECT_GT(differ, 10);
}

TEST(WideSum, KeepsWhatIsRoundedOff) {
  WideSum sum;
  for (const double x : {1.0, 1e-17, 1e-17, -1.0}) sum.add(x);
  EXPECT_EQ(sum.rounded(), 2e-17);
}

TEST(WideSquaredNorms, AreSumsOfSquares) {
  const at::Tensor x = at::tensor({3.0, -4.0}, at::kDouble), y = at::tensor({-0.5}, at::kFloat);
  const std::vector<WideSum> squares = wide_squared_norms({x, y});
  EXPECT_EQ(squares[0].rounded(), 25.0);
  EXPECT_EQ(squares[1].rounded(), 0.25);
  // The square of a float is one of doubles.
  const float large = 1e25F;
  EXPECT_EQ(wide_squared_norms({at::tensor({large}, at::kFloat)}).front().rounded(),
            static_cast<double>(large) * static_cast<double>(large));
}

}  // namespace
}  // namespace zero::optim
