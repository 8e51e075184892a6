#pragma once

#include <torch/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace zero::nn {

/// Upper bounds, far above published models. They keep every number that follows from a shape that
/// check() accepts (elements, bytes of model states) within 63 bits.
inline constexpr std::int64_t kLargestSize = std::int64_t{1} << 24;  ///< of every size but layers
inline constexpr std::int64_t kMostLayers = 10'000;
inline constexpr std::int64_t kMostParameters = 1'000'000'000'000'000;

/// The shape of a Llama model. Comments give Hugging Face's name of each field (config.json).
struct LlamaConfig {
  std::int64_t vocabulary = 256;    ///< vocab_size
  std::int64_t hidden = 64;         ///< hidden_size
  std::int64_t layers = 2;          ///< num_hidden_layers
  std::int64_t heads = 4;           ///< num_attention_heads
  std::int64_t kv_heads = 2;        ///< num_key_value_heads; divides heads
  std::int64_t head_size = 16;      ///< head_dim; even
  std::int64_t mlp = 176;           ///< intermediate_size
  double rope_theta = 100000.0;     ///< rope_theta
  double norm_eps = 1e-5;           ///< rms_norm_eps
  bool tied = true;                 ///< tie_word_embeddings: the output head is the embedding
  double initializer_range = 0.02;  ///< initializer_range: standard deviation of first values
  /// 0 for a language model; else the number of classes of a sequence classifier, whose head
  /// `score` [classes, hidden] replaces the language model's.
  std::int64_t classes = 0;
  at::ScalarType dtype = at::kFloat;  ///< of parameters and activations; dtype (torch_dtype)

  bool operator==(const LlamaConfig&) const = default;

  /// Number of elements of all parameters, tied ones once. Only for a shape that check() accepts.
  std::int64_t parameters() const;
};

/// Throws zero::Error if the numbers are no valid model: a size below 1 or above kLargestSize, more
/// than kMostLayers or kMostParameters, kv_heads that do not divide heads, an odd head_size, a
/// dtype that is not a floating one. The message has Hugging Face's name of the field.
void check(const LlamaConfig& config);

/// Throws zero::Error unless a tensor axis of `ranks` ranks can share the model evenly: it must
/// divide the heads, the key/value heads, the MLP size and the vocabulary. The message has the
/// number that it does not divide.
void check_tensor_parallel(const LlamaConfig& config, int ranks);

/// Reads the text of a Hugging Face config.json of model_type "llama", both the older form
/// (rope_theta) and the newer (rope_parameters). The result is a language model in fp32, whatever
/// dtype and architecture the file names: set `dtype` and `classes` yourself. Throws zero::Error
/// for text that is no JSON object, another model type, a missing or invalid field, a hidden_size
/// that is no multiple of the heads in a file without head_dim, what check() refuses, or an
/// unsupported feature (biases, scaled rotary positions, another activation than silu). Other
/// fields are ignored. The message names key and value, not the file.
LlamaConfig llama_config_from_json(std::string_view text);

/// The config.json with which transformers loads this model. Fields of `original`, the config.json
/// that the model came from, are kept (special tokens, the longest sequence), except those that
/// LlamaConfig holds.
nlohmann::json to_hugging_face_json(const LlamaConfig& config, std::string_view original = "{}");

}  // namespace zero::nn
