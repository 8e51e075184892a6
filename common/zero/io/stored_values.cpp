#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <zero/base/error.hpp>
#include <zero/io/stored_values.hpp>
#include <zero/safetensors/format.hpp>

namespace zero::io {
namespace {

using safetensors::shape_text;
using safetensors::shown;

bool is_in(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::count(names, name) > 0;
}

std::string dtype_text(at::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

// Why the tensor `entry` cannot become `parameter`; empty if it can.
std::string misfit(const safetensors::Entry& entry, const nn::Parameter& parameter) {
  const std::vector<std::int64_t> shape = parameter.whole_sizes();
  if (entry.shape != shape) {
    return fmt::format("has the shape {}, the model's is {}", shape_text(entry.shape),
                       shape_text(shape));
  }
  if (!safetensors::convertible(entry.dtype, parameter.tensor.scalar_type())) {
    return fmt::format("is {}, which is not converted to {}", dtype_text(entry.dtype),
                       dtype_text(parameter.tensor.scalar_type()));
  }
  return {};
}

[[noreturn]] void refuse(const std::filesystem::path& folder,
                         const std::vector<std::string>& problems) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(problems.size(), kShown); ++i) text += "\n  " + problems[i];
  if (problems.size() > kShown) text += fmt::format("\n  and {} more", problems.size() - kShown);
  throw Error(
      fmt::format("the weights in {} are not those of this model:{}", folder.string(), text));
}

}  // namespace

StoredValuesOptions llama_values_options(const nn::LlamaConfig& config, std::uint64_t seed) {
  StoredValuesOptions options;
  options.seed = seed;
  if (config.classes > 0) options.may_be_missing = {"score.weight"};
  if (config.classes > 0 || config.tied) options.may_be_left_over = {"lm_head.weight"};
  return options;
}

StoredValues::StoredValues(const std::filesystem::path& folder, const nn::ParameterList& list,
                           StoredValuesOptions options)
    : folder_(folder), seeded_(options.seed), seed_(options.seed) {
  std::vector<std::string> problems;
  std::vector<std::string> used;
  for (const nn::Parameter& parameter : list.parameters) {
    if (!folder_.contains(parameter.name)) {
      if (is_in(options.may_be_missing, parameter.name)) {
        missing_.push_back(parameter.name);
      } else {
        problems.push_back(fmt::format("tensor {} is missing; the model has it with the shape {}",
                                       shown(parameter.name), shape_text(parameter.whole_sizes())));
      }
      continue;
    }
    const safetensors::Entry& entry = folder_.info(parameter.name);
    const std::string problem = misfit(entry, parameter);
    if (!problem.empty()) {
      problems.push_back(fmt::format("tensor {} in {} {}", shown(parameter.name),
                                     folder_.file_of(parameter.name).string(), problem));
    }
    const std::string from = dtype_text(entry.dtype);
    const std::string to = dtype_text(parameter.tensor.scalar_type());
    const std::string conversion = from == to ? from : from + ", converted to " + to;
    if (!is_in(conversions_, conversion)) conversions_.push_back(conversion);
    used.push_back(parameter.name);
  }
  read_ = used.size();
  std::sort(used.begin(), used.end());
  for (const std::string& name : folder_.names()) {
    if (std::binary_search(used.begin(), used.end(), name)) continue;
    if (is_in(options.may_be_left_over, name)) {
      left_over_.push_back(name);
    } else {
      problems.push_back(fmt::format("tensor {} in {} is none of the model's", shown(name),
                                     folder_.file_of(name).string()));
    }
  }
  if (!problems.empty()) refuse(folder, problems);
}

void StoredValues::fill(const nn::Parameter& parameter, at::Tensor& out) {
  if (is_in(missing_, parameter.name)) {
    seeded_.fill(parameter, out);
  } else {
    folder_.read_into(parameter.name, out);
  }
}

std::string StoredValues::describe() const {
  std::string text = fmt::format("{} tensors from {}: {}", read_, folder_.path().string(),
                                 fmt::join(conversions_, "; "));
  if (!missing_.empty()) {
    text += fmt::format("; not in it, and drawn by seed {}: {}", seed_, fmt::join(missing_, ", "));
  }
  if (!left_over_.empty()) {
    text += fmt::format("; in it, and not read: {}", fmt::join(left_over_, ", "));
  }
  return text;
}

}  // namespace zero::io
