#include "generator.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/hash.h>

#include "accelerator.hpp"

namespace zero::testing::emulated {

Generator::Generator()
    : GeneratorImpl(kDevice, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void Generator::set_current_seed(std::uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

std::uint64_t Generator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void Generator::set_state(const c10::TensorImpl& state) {
  const auto* const words = static_cast<const std::uint64_t*>(state.data());
  seed_ = words[0];
  offset_ = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  const at::Tensor state = at::detail::empty_cpu({2 * sizeof seed_}, at::kByte);
  auto* const words = static_cast<std::uint64_t*>(state.mutable_data_ptr());
  words[0] = seed_;
  words[1] = offset_;
  return state.getIntrusivePtr();
}

at::Generator Generator::next() {
  return at::detail::createCPUGenerator(c10::hash_combine(seed_, ++offset_));
}

Generator* Generator::clone_impl() const {
  auto* const copy = new Generator;
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator() {
  static const at::Generator generator = at::make_generator<Generator>();
  return generator;
}

}  // namespace zero::testing::emulated
