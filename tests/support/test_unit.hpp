#pragma once

#include <memory>
#include <string>

#include <zero/nn/unit.hpp>

/// A helper of the tests of zero/nn.
namespace zero::testing {

/// A unit that is put together from outside.
class TestUnit : public nn::Unit {
 public:
  at::Tensor add(const std::string& name, at::IntArrayRef sizes,
                 nn::Initializer initializer = nn::Initializer::normal(1.0),
                 at::ScalarType dtype = at::kDouble) {
    return add_parameter(name, sizes, initializer, dtype);
  }
  std::shared_ptr<TestUnit> add_unit(const std::string& name) {
    return register_module(name, std::make_shared<TestUnit>());
  }
};

}  // namespace zero::testing
