#include <functional>
#include <numeric>

#include <zero/io/safetensors_spec.hpp>

namespace zero::io {

std::int64_t SafetensorsSpec::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t SafetensorsSpec::bytes() const {
  return elements() * static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace zero::io
