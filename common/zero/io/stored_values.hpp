#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <zero/io/weights_fit.hpp>
#include <zero/nn/llama_config.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::io {

/// How a folder of weights may differ from the model that reads it.
struct StoredValuesOptions {
  /// nn::SeededValues draws what is missing; what is left over is not read.
  WeightsFit may;
  std::uint64_t seed = 0;  ///< of the parameters that are missing
};

/// What a folder of Llama weights may lack or have in addition, as in transformers. A classifier
/// often starts from a language model: `score` may be missing and `lm_head` left over. If the
/// embedding is also the head, `lm_head` may be left over too: some programs save it twice.
StoredValuesOptions llama_values_options(const nn::LlamaConfig& config, std::uint64_t seed);

/// First values of a model from a folder in the layout of transformers' save_pretrained:
/// safetensors in one file or several with an index, tensors in float32, float16, bfloat16 or
/// float64 under the names of the parameters. A tied parameter is there once, under its first name.
///
/// Values are converted to the parameter's dtype one by one, like at::Tensor::to: exact from a
/// narrower format to a wider one, to the nearest value otherwise. Reading takes at most
/// safetensors::kScratchBytes besides the parameter itself.
///
/// Nothing here communicates: create it on the rank that fills parameters (rank 0, see
/// nn::ParameterSource); other ranks need not see the folder. It has the whole model: if that is
/// split over a tensor or a pipeline axis, rank 0 of the data axis of every tensor rank and stage
/// creates one, a stage with the list of the whole model (nn::WholeModel).
class StoredValues final : public nn::ParameterSource {
 public:
  /// Opens the folder and compares it with `list`; reads no values yet.
  /// @throws zero::Error as safetensors::Folder, and if a parameter has no tensor, a tensor has no
  /// parameter (unless `options` allow it), or shape or dtype do not fit. The message names the
  /// tensors, at most eight of them, their files, and what they should be.
  StoredValues(const std::filesystem::path& folder, const nn::ParameterList& list,
               const StoredValuesOptions& options = {});

  void fill(const nn::Parameter& parameter, at::Tensor& out) override;

  /// Parameters that are not in the folder and are drawn from the seed.
  const std::vector<std::string>& missing() const { return fit_.missing; }

  /// What is read, converted, drawn and left over, in a sentence or two for the user:
  /// "290 tensors from DIR: bfloat16, converted to float32".
  std::string describe() const;

 private:
  safetensors::Folder folder_;
  nn::SeededValues seeded_;
  std::uint64_t seed_;
  WeightsFit fit_;
  std::set<std::string> conversions_;  // "bfloat16, converted to float32"
  std::size_t read_ = 0;               // number of tensors
};

}  // namespace zero::io
