#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <zero/nn/llama_config.hpp>

/// What the planner knows of a model: sizes only, no values.
namespace zero::plan {

/// One parameter tensor.
struct TensorSize {
  std::string name;
  std::int64_t elements = 0;
  std::int64_t rows = 1;  ///< first dimension; 1 for a scalar
};

/// Sizes that activations depend on; in elements of one token.
struct Shape {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t attention = 0;  ///< heads x head size: width of queries, and of keys once repeated
  std::int64_t mlp = 0;        ///< intermediate size
  /// Tensors of the MLP's width that backward needs: input and output of the activation (2), or
  /// gate, up and their product (3).
  std::int64_t mlp_tensors = 2;
  std::int64_t vocabulary = 0;  ///< 0: not known, or no logits over it (a classifier)
};

struct Model {
  std::string name;
  std::int64_t parameters = 0;
  /// Elements of what is gathered together: a layer each, in order of forward.
  std::vector<std::int64_t> units;
  /// Elements of the root unit: embedding, final norm and head. 0 where nothing is known of it.
  std::int64_t root = 0;
  Shape shape;
  /// Every parameter in registration order; empty where only a number is known.
  std::vector<TensorSize> tensors;
  /// What the user should know: guesses above all.
  std::vector<std::string> notes;

  std::int64_t largest_unit() const;
};

/// What layers of one kind begin with, and which of them: {"model.layers.", 17}.
using LayerName = std::pair<std::string, std::int64_t>;
/// The layer that a tensor belongs to, by the first number in its name: that of
/// "model.layers.17.mlp.up_proj.weight". Nothing for "lm_head.weight": it is the root's.
std::optional<LayerName> layer_of(const std::string& tensor);

/// The tensors of nn::Llama in registration order, tied ones once.
std::vector<TensorSize> llama_tensors(const nn::LlamaConfig& config);

/// A Llama of this shape.
Model model_of(const nn::LlamaConfig& config, std::string name);

/// A model of which only the number of parameters is known. All of it is taken to lie in `layers`
/// equal layers of 12 hidden^2 parameters (4 hidden^2 in attention, 8 in the MLP: Kaplan et al.,
/// "Scaling Laws for Neural Language Models", arXiv:2001.08361, table 1), so there is no root unit
/// and no logits. `layers` 0: as many as make hidden = 128 x layers, the proportion of 7 B and 13 B
/// Llamas; a note says that this is a guess. Throws zero::Error unless there are 1 to
/// nn::kMostParameters parameters, and no more layers than parameters or nn::kMostLayers.
Model model_of_size(std::int64_t parameters, std::int64_t layers = 0);

/// A model as Hugging Face saves it. `path` is a folder with config.json, safetensors or both, or
/// one such file. Sizes come from the headers of the safetensors where there are some (any
/// architecture; layers are told by the first number in a tensor's name), else from config.json (a
/// Llama). Throws zero::Error, naming the file, where neither can be read, where a size in
/// config.json is no integer within the bounds of nn::check(), and for more layers or parameters in
/// safetensors than those bounds allow.
Model model_of_files(const std::filesystem::path& path);

}  // namespace zero::plan
