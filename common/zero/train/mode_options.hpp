#pragma once

#include <string>
#include <vector>

namespace zero::train {

/// Options as a JSON object, and a sentence for each thing that was ignored.
struct ReadOptions {
  std::string text;
  std::vector<std::string> notes;
};

/// The options after the name of a mode on a command line: keys and their values, joined by colons,
/// "lookahead=2:bucket_mib=5". If "config=FILE" comes first, the rest overrides what is in that
/// file of JSON. "deepspeed=FILE", alone, reads a configuration for DeepSpeed. Does not know which
/// keys there are. Throws zero::Error for a text of another form, and for a file that cannot be
/// read.
ReadOptions read_mode_options(const std::string& text);

/// The keys of both. A key that both have gets the value of `second`.
std::string merged(const std::string& first, const std::string& second);

/// Reads the block "zero_optimization" of a DeepSpeed configuration (the whole file, or the block
/// alone), and from the whole file "gradient_accumulation_steps", "gradient_clipping" and "enabled"
/// of "fp16" and "bf16". The options are
///
///     stage                               stage
///     overlap_comm                        false: one bucket in flight at most, lookahead 0
///     reduce_bucket_size                  bucket_mib (elements: of 2 bytes if fp16 or bf16 is
///                                         enabled, else of 4)
///     stage3_prefetch_bucket_size         0: lookahead 0
///     stage3_param_persistence_threshold  whole_below (there of parameters, here of whole units)
///     zero_hpz_partition_size             group_size, with secondary_shards (0 and 1: without)
///     zero_quantized_weights              quantize_parameters
///     zero_quantized_gradients            quantize_gradients (4 bits; groups as above, or hosts)
///     mics_shard_size                     shard_size, at stage 3 (0 and -1: all ranks)
///     contiguous_gradients                always so here
///     offload_optimizer                   offload: "host" if its device is "cpu", its nvme_path if
///                                         it is "nvme"
///
/// "auto" is read as a key that is left out. Throws zero::Error for mics_shard_size beside a key of
/// ZeRO++, and for unknown keys of the block. All else is ignored, and the notes say so.
ReadOptions read_deepspeed_options(const std::string& json);

}  // namespace zero::train
