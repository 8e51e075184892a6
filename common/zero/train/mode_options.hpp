#pragma once

#include <string>
#include <vector>

namespace zero::train {

/// Options as a JSON object, and sentences about what was ignored.
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

/// Reads the file of a configuration for DeepSpeed:
///
///     zero_optimization
///       stage                          stage; 0 if there is none
///       reduce_bucket_size             bucket_mib, and twice as much in_flight_mib (elements: of 2
///                                      bytes if fp16 or bf16 is enabled, else of 4)
///       stage3_prefetch_bucket_size    0: lookahead 0
///       offload_optimizer              offload: "host" if its device is "cpu", its nvme_path if it
///                                      is "nvme"
///     gradient_accumulation_steps      accumulation_steps
///     gradient_clipping                clip_norm
///     bf16, fp16: enabled              for the size of an element
///
/// Every other key is ignored, and so is one whose value is "auto": one note names them all. Throws
/// zero::Error for a value of the wrong type or out of range.
ReadOptions read_deepspeed_options(const std::string& json);

}  // namespace zero::train
