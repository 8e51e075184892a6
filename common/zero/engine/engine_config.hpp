#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <zero/train/loop/loss_scale.hpp>
#include <zero/train/loop/step.hpp>
#include <zero/train/overlap_options.hpp>

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
///       "offload": "none",      or "host", or a folder, for the optimizer's states
///       "offload_tile_mib": 16,
///       "accumulation_steps": 1,
///       "reduce_each_micro_batch": false,
///       "clip_norm": 0,
///       "on_nonfinite_gradient": "error",   or "skip"
///       "reduce_in_float32": false,
///       "broadcast_buffers": false,
///       "loss_scale": 0         or the first scale, for float16: 65536
///     }
///
/// Every key may be left out. A file may also have keys of other modes (train::Registry), such as
/// shard_size: the engine then is the first mode that has all of them.
struct EngineConfig {
  OverlapOptions overlap = {};
  std::string more = "{}";              ///< the keys of other modes, a JSON object
  std::int64_t accumulation_steps = 1;  ///< micro-batches in a step
  /// Average the gradients of each micro-batch by itself and add up the averages, not once a step:
  /// between micro-batches a rank then holds what it holds after the last.
  bool reduce_each_micro_batch = false;
  double clip_norm = 0;  ///< largest L2 norm of the gradient; 0: do not clip
  /// What to do with a step whose gradient is infinite or NaN, if no loss scale can be halved.
  train::OnNonfiniteGradient on_nonfinite_gradient = train::OnNonfiniteGradient::kError;
  bool reduce_in_float32 = false;  ///< send gradients of 2-byte dtypes as float32
  /// Before each forward that trains, give buffers (running means) the values of rank 0. Otherwise
  /// each rank keeps its own.
  bool broadcast_buffers = false;
  /// Paths of parameters that the engine leaves to the program on each rank: it does not send,
  /// shard, average, update or save them. `*` stands for any part of a path between dots. A tied
  /// parameter is ignored if all its names are.
  std::vector<std::string> ignored = {};
  /// Dynamic loss scaling (train::LossScale), for parameters in float16; an initial scale of 0:
  /// none.
  train::LossScaleOptions loss_scale = {.initial = 0};
};

/// Reads the text of a configuration file. Throws zero::Error for text that is not JSON, a value of
/// the wrong type or out of range, options that no mode has together, and for an unknown key,
/// listing the known ones.
EngineConfig engine_config(const std::string& json);

/// The options of the mode that the engine takes, a JSON object.
std::string mode_options(const EngineConfig& config);
/// The name of that mode. Throws zero::Error if there is none.
std::string mode_of(const EngineConfig& config);

/// A configuration for DeepSpeed, translated.
struct ReadConfig {
  EngineConfig config;
  std::vector<std::string> notes;  ///< what was ignored
};

/// See train::read_deepspeed_options().
ReadConfig engine_config_from_deepspeed(const std::string& json);

}  // namespace zero
