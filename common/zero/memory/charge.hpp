#pragma once

#include <cstdint>

namespace zero::memory {

/// What a block of memory is for. A block keeps its category until it is freed or recharged.
enum class Category : std::uint8_t {
  kParameters,     ///< model weights
  kGradients,      ///< gradients of weights
  kOptimizer,      ///< optimizer states (AdamW: two moments)
  kCommunication,  ///< receive buffers and other scratch of collectives
  kActivations,    ///< all else that forward and backward allocate
  kOther,          ///< the rest: data, buffers of the model, tensors made outside a step
};

/// While it lives, blocks allocated on this thread are charged to its category. Scopes nest and the
/// innermost one counts; outside any scope a block is charged to kOther. Autograd runs the backward
/// of CPU tensors on the thread that called backward(), so a scope around backward() covers it.
class Charge {
 public:
  explicit Charge(Category category);
  ~Charge();
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  Category previous_;
};

}  // namespace zero::memory
