#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>

namespace zero::testing::emulated {

/// The device's random numbers: like CUDA's, given by a seed and an offset that each operation
/// raises.
class Generator final : public c10::GeneratorImpl {
 public:
  Generator();

  void set_current_seed(std::uint64_t seed) override;
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  /// A generator of the CPU with which the next operation draws.
  at::Generator next();

 private:
  Generator* clone_impl() const override;

  std::uint64_t seed_ = c10::default_rng_seed_val;
  std::uint64_t offset_ = 0;
};

/// The device's default generator.
const at::Generator& default_generator();

}  // namespace zero::testing::emulated
