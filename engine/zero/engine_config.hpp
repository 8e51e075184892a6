#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <05_prefetch_overlap/sharding_options.hpp>
#include <07_zero_plus_plus/zero_plus_plus.hpp>
#include <10_offload/offload_options.hpp>
#include <zero/base/keys.hpp>
#include <zero/train/loop/loss_scale.hpp>
#include <zero/train/loop/step.hpp>

namespace zero {

/// How an Engine trains. In a file:
///
///     {
///       "stage": 3,
///       "bucket_mib": 25,
///       "in_flight_mib": 50,
///       "lookahead": 1,
///       "whole_below": 0,
///       "keep_buffers": true,
///       "keep_gradients": true,
///       "defer_parameter_gather": false,
///       "offload": "none",      or "host", or a folder, for the optimizer's states
///       "offload_tile_mib": 16,
///       "offload_parameters": "none",   or a folder for parameters, at stage 3
///       "shard_size": 0,        or a number of ranks, or "host"
///       "group_size": "host",   or a number of ranks
///       "secondary_shards": false,
///       "quantize_parameters": false,
///       "quantize_gradients": false,
///       "gradient_bits": 4,     or 8
///       "quantization_block": 2048,
///       "gradient_block": 256,
///       "accumulation_steps": 1,
///       "reduce_each_micro_batch": false,
///       "clip_norm": 0,
///       "on_nonfinite_gradient": "error",   or "skip"
///       "reduce_in_float32": false,
///       "broadcast_buffers": false,
///       "loss_scale": 0         or the first scale, for float16: 65536
///     }
///
/// Every key may be left out.
struct EngineConfig {
  // What is sharded, and when things are sent: ShardingOptions (chapter 05) says what each means.
  std::int64_t stage = 3;
  std::int64_t bucket_bytes = ShardingOptions{}.bucket_bytes;
  std::int64_t in_flight_bytes = ShardingOptions{}.in_flight_bytes;
  std::int64_t lookahead = ShardingOptions{}.lookahead;
  std::int64_t whole_below = ShardingOptions{}.whole_below;
  bool keep_buffers = ShardingOptions{}.keep_buffers;
  bool keep_gradients = ShardingOptions{}.keep_gradients;
  bool defer_parameter_gather = ShardingOptions{}.defer_parameter_gather;

  /// Where optimizer states are (optim::with_offload(), chapter 10); the same on all ranks. "none":
  /// with the parameters. "host": in the host's memory; without a device that is the same.
  /// Otherwise a folder on a disk.
  std::string offload = "none";
  /// Bytes of these states that are read, updated and written together.
  std::int64_t offload_tile_bytes = optim::OffloadOptions{}.tile_bytes;
  /// A folder on a disk where the shards of parameters lie at stage 3 (make_parameters_in_file(),
  /// chapter 10); the same on all ranks. "none": they are in memory.
  std::string offload_parameters = "none";

  /// HSDP (chapter 06), at stages 1 to 3: the model states are sharded inside groups of this many
  /// ranks, which hold copies of each other. 0: over all ranks. dist::Mesh::kRanksOfHost: by host.
  std::int64_t shard_size = 0;

  // Parts of ZeRO++, at stage 3: ZeroPlusPlusOptions (chapter 07) says what each means.
  std::int64_t group_size = ZeroPlusPlusOptions{}.group_size;
  bool secondary_shards = false;
  bool quantize_parameters = false;
  bool quantize_gradients = false;
  std::int64_t gradient_bits = ZeroPlusPlusOptions{}.gradient_bits;
  std::int64_t quantization_block = ZeroPlusPlusOptions{}.quantization_block;
  std::int64_t gradient_block = ZeroPlusPlusOptions{}.gradient_block;

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

/// All keys of a file.
void declare(base::Keys& keys, EngineConfig& config);
/// Those that say which strategy trains: all but those of a step, such as clip_norm.
void declare_strategy(base::Keys& keys, EngineConfig& config);

/// Reads the text of a configuration file. Throws zero::Error for text that is not JSON, a value of
/// the wrong type or out of range, options that cannot be together, and for an unknown key, listing
/// the known ones.
EngineConfig engine_config(const std::string& json);

/// What chapters 05 and 07 take of it.
ShardingOptions sharding_options(const EngineConfig& config);
ZeroPlusPlusOptions zero_plus_plus_options(const EngineConfig& config);

/// The name of the strategy, as the ladder has it: "engine0" to "engine3", "hsdp1" to "hsdp3", or
/// "hpz", "qwz" or "qgz", or "zeropp" for several parts.
std::string mode_of(const EngineConfig& config);

/// That strategy. Called by all ranks; blocks. Throws zero::Error on all of them for options out of
/// range, that cannot be together or differ between ranks, and as the strategy does.
std::unique_ptr<train::Strategy> make_strategy(train::StrategyArguments arguments,
                                               const EngineConfig& config);

/// A configuration for DeepSpeed, translated.
struct ReadConfig {
  EngineConfig config;
  std::vector<std::string> notes;  ///< what was ignored
};

/// Reads the file of a configuration for DeepSpeed:
///
///     zero_optimization
///       stage                          stage; 0 if there is none
///       reduce_bucket_size             bucket_bytes, and twice as much in_flight_bytes; in
///                                      elements, of 2 bytes if fp16 or bf16 is enabled, else of 4
///       stage3_prefetch_bucket_size    0: lookahead 0
///       offload_optimizer              offload: "host" if its device is "cpu", its nvme_path if it
///                                      is "nvme"
///     gradient_accumulation_steps      accumulation_steps
///     gradient_clipping                clip_norm
///     bf16, fp16: enabled              for the size of an element
///
/// Every other key is ignored, and so is one whose value is "auto": one note names them all. Throws
/// zero::Error for a value of the wrong type or out of range.
ReadConfig engine_config_from_deepspeed(const std::string& json);

}  // namespace zero
