#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include <zero/engine/overlap_options.hpp>
#include <zero/train/loss_scale.hpp>
#include <zero/train/step.hpp>

namespace zero {

/// How an Engine trains. In a file:
///
///     {
///       "stage": 3,
///       "bucket_mib": 25,
///       "in_flight_mib": 50,
///       "lookahead": 1,         or "auto"
///       "ahead_mib": 512,
///       "whole_below": 0,       or "hybrid": 100 million
///       "keep_buffers": true,
///       "keep_gradients": true,
///       "defer_parameter_gather": false,
///       "shard_size": 4,        ranks that share the model states, or "host": those of a host;
///                               left out: all ranks
///       "secondary_shards": false,      hpZ of ZeRO++: another copy, shared by each group
///       "quantize_parameters": false,   qwZ: parameters are gathered as int8
///       "quantize_gradients": false,    qgZ: gradients are averaged in two quantised hops
///       "group_size": "host",   of ZeRO++: ranks of a group, or "host": those of a host
///       "gradient_bits": 4,     or 8
///       "quantization_block": 2048,     parameters that share a scale
///       "gradient_block": 256,          elements of a gradient that share one
///       "accumulation_steps": 1,
///       "reduce_each_micro_batch": false,
///       "clip_norm": 0,
///       "on_nonfinite_gradient": "error",   or "skip"
///       "reduce_in_float32": false,
///       "loss_scale": 0         or the first scale, for float16: 65536
///     }
///
/// Every key may be left out.
struct EngineConfig {
  OverlapOptions overlap = {};
  std::int64_t accumulation_steps = 1;  ///< micro-batches in a step
  /// Average the gradients of each micro-batch by itself and add up the averages, not once a step:
  /// between micro-batches a rank then holds what it holds after the last.
  bool reduce_each_micro_batch = false;
  double clip_norm = 0;  ///< largest L2 norm of the gradient; 0: do not clip
  /// What to do with a step whose gradient is infinite or NaN, if no loss scale can be halved.
  train::OnNonfiniteGradient on_nonfinite_gradient = train::OnNonfiniteGradient::kError;
  bool reduce_in_float32 = false;  ///< send gradients of 2-byte dtypes as float32
  /// Dynamic loss scaling (train::LossScale), for parameters in float16; an initial scale of 0:
  /// none.
  train::LossScaleOptions loss_scale = {.initial = 0};
};

/// Reads the text of a configuration file. Throws zero::Error for text that is not JSON, a value of
/// the wrong type or out of range, and for an unknown key, listing the known ones.
EngineConfig engine_config(const std::string& json);

/// The same on a command line, after the name of a mode: keys of the file above and their values,
/// joined by colons, "lookahead=2:bucket_mib=5". If "config=FILE" comes first, the rest overrides
/// what is in that file. "deepspeed=FILE", alone, reads a configuration for DeepSpeed. `stage`
/// comes from the mode's name; `has_groups`: whether the mode has a shard_size (kRanksOfHost if
/// none is set; refused otherwise). Throws zero::Error if the file has another one, and for keys
/// that a mode does not use: accumulation_steps, clip_norm, on_nonfinite_gradient,
/// reduce_in_float32, loss_scale. `notes`, if given, gets the notes of
/// engine_config_from_deepspeed().
OverlapOptions overlap_options(int stage, const std::string& text,
                               std::vector<std::string>* notes = nullptr, bool has_groups = false);

/// The same for a mode of ZeRO++, whose name stands for `defaults`. `text` may be empty.
OverlapOptions zero_plus_plus_options(const OverlapOptions& defaults, const std::string& text);

/// A configuration for DeepSpeed, translated.
struct ReadConfig {
  EngineConfig config;
  std::vector<std::string> notes;  ///< one sentence for each thing that was ignored
};

/// Reads the block "zero_optimization" of a DeepSpeed configuration (the whole file, or the block
/// alone), and from the whole file "gradient_accumulation_steps", "gradient_clipping" and "enabled"
/// of "fp16" and "bf16":
///
///     stage                               stage
///     overlap_comm                        false: one bucket in flight at most, lookahead 0
///     reduce_bucket_size                  bucket_mib (elements: of 2 bytes where fp16 or bf16 is
///                                         enabled, else of 4)
///     stage3_prefetch_bucket_size         0: lookahead 0
///     stage3_param_persistence_threshold  whole_below (there of parameters, here of whole units)
///     zero_hpz_partition_size             group_size, with secondary_shards (0 and 1: without)
///     zero_quantized_weights              quantize_parameters
///     zero_quantized_gradients            quantize_gradients (4 bits; groups as above, or hosts)
///     mics_shard_size                     shard_size, at stage 3 (0 and -1: all ranks)
///     contiguous_gradients                always so here
///
/// "auto" is read as a key that is left out. Throws zero::Error for offload_optimizer and
/// offload_param, which do not exist here, for mics_shard_size beside a key of ZeRO++, and for
/// unknown keys of the block. All else is ignored, and the notes say so.
ReadConfig engine_config_from_deepspeed(const std::string& json);

}  // namespace zero
