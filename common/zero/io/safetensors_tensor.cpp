// What reader and writer ask of a tensor, and how they walk through it.
#include <ATen/EmptyTensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include <zero/base/error.hpp>
#include <zero/base/names.hpp>
#include <zero/io/safetensors_format.hpp>

namespace zero::io {

std::int64_t SafetensorsSpec::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t SafetensorsSpec::bytes() const {
  return elements() * static_cast<std::int64_t>(c10::elementSize(dtype));
}

namespace safetensors {

std::string shown(std::string_view name) {
  constexpr std::size_t kLongest = 200;
  const std::string text = nlohmann::json(name.substr(0, kLongest))
                               .dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true,
                                     nlohmann::json::error_handler_t::replace);
  return name.size() > kLongest ? text + "..." : text;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool convertible(at::ScalarType from, at::ScalarType to) {
  const auto floating = [](at::ScalarType dtype) {
    return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf ||
           dtype == at::kBFloat16;
  };
  return from == to || (floating(from) && floating(to));
}

std::vector<SafetensorsSpec> specs_of(const NamedTensors& tensors, const std::string& path) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) {
      throw Error(fmt::format("{}: tensor {}: is not defined", path, shown(name)));
    }
    specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  }
  return specs;
}

void check_tensor(const at::Tensor& tensor, const SafetensorsSpec& spec, const std::string& path,
                  std::string_view what) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(fmt::format("{}: tensor {}: {} {}", path, shown(spec.name), what, reason));
  };
  if (!tensor.defined() || tensor.layout() != at::kStrided ||
      !(tensor.is_cpu() || tensor.is_cuda())) {
    refuse("must be a dense tensor with values");
  }
  if (tensor.sizes() != at::IntArrayRef(spec.shape)) {
    refuse(fmt::format("has shape {}, but the file's is {}", shape_text(tensor.sizes().vec()),
                       shape_text(spec.shape)));
  }
  if (!convertible(tensor.scalar_type(), spec.dtype)) {
    refuse(
        fmt::format("is {}, but the file's is {}: only Double, Float, Half and BFloat16 are "
                    "converted",
                    c10::toString(tensor.scalar_type()), c10::toString(spec.dtype)));
  }
  const std::size_t needed =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                       static_cast<std::size_t>(tensor.storage_offset()));
  if (tensor.numel() > 0 && tensor.storage().nbytes() < needed) {
    refuse("has no storage now; gather it first");
  }
}

std::string unknown_tensor(const std::string& name, const std::vector<std::string>& known,
                           const std::string& path) {
  std::string message =
      fmt::format("{}: there is no tensor {} among its {}", path, shown(name), known.size());
  if (const auto nearest = base::nearest_name(name, known)) {
    message += fmt::format("; did you mean {}?", shown(*nearest));
  }
  return message;
}

void for_each_piece(const at::Tensor& tensor, std::int64_t limit, std::int64_t first,
                    const std::function<void(const at::Tensor&, std::int64_t)>& use) {
  const std::int64_t total = tensor.numel();
  if (total == 0) return;
  if (tensor.is_contiguous()) {
    const at::Tensor flat = tensor.view(-1);
    for (std::int64_t i = 0; i < total; i += limit) {
      use(flat.narrow(0, i, std::min(limit, total - i)), first + i);
    }
    return;
  }
  if (total <= limit) {
    use(tensor, first);
    return;
  }
  const std::int64_t row = total / tensor.size(0);
  if (row > limit) {
    for (std::int64_t i = 0; i < tensor.size(0); ++i) {
      for_each_piece(tensor.select(0, i), limit, first + i * row, use);
    }
    return;
  }
  const std::int64_t rows = limit / row;
  for (std::int64_t i = 0; i < tensor.size(0); i += rows) {
    for_each_piece(tensor.narrow(0, i, std::min(rows, tensor.size(0) - i)), limit, first + i * row,
                   use);
  }
}

}  // namespace safetensors
}  // namespace zero::io
