#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <zero/io/stored_values.hpp>

namespace zero::io {

StoredValuesOptions llama_values_options(const nn::LlamaConfig& config, std::uint64_t seed) {
  StoredValuesOptions options;
  options.seed = seed;
  if (config.classes > 0) options.may.missing = {"score.weight"};
  if (config.classes > 0 || config.tied) options.may.left_over = {"lm_head.weight"};
  return options;
}

StoredValues::StoredValues(const std::filesystem::path& folder, const nn::ParameterList& list,
                           const StoredValuesOptions& options)
    : folder_(folder), seeded_(options.seed), seed_(options.seed) {
  std::vector<safetensors::Spec> stored;
  for (const std::string& name : folder_.names()) stored.push_back(folder_.info(name));
  fit_ =
      fit_weights("the weights in " + folder.string(), stored, specs_of(list), options.may,
                  [&](const std::string& name) { return " in " + folder_.file_of(name).string(); });
  for (const nn::Parameter& parameter : list.parameters) {
    if (!folder_.contains(parameter.name)) continue;
    ++read_;
    const std::string from(c10::getDtypeNames(folder_.info(parameter.name).dtype).first);
    const std::string to(c10::getDtypeNames(parameter.tensor.scalar_type()).first);
    conversions_.insert(from == to ? from : from + ", converted to " + to);
  }
}

void StoredValues::fill(const nn::Parameter& parameter, at::Tensor& out) {
  if (folder_.contains(parameter.name)) {
    folder_.read_into(parameter.name, out);
  } else {
    seeded_.fill(parameter, out);
  }
}

std::string StoredValues::describe() const {
  std::string text = fmt::format("{} tensors from {}: {}", read_, folder_.path().string(),
                                 fmt::join(conversions_, "; "));
  if (!fit_.missing.empty()) {
    text +=
        fmt::format("; not in it, and drawn by seed {}: {}", seed_, fmt::join(fit_.missing, ", "));
  }
  if (!fit_.left_over.empty()) {
    text += fmt::format("; in it, and not read: {}", fmt::join(fit_.left_over, ", "));
  }
  return text;
}

}  // namespace zero::io
