#pragma once

#include <zero/safetensors/file.hpp>
#include <zero/safetensors/folder.hpp>
#include <zero/safetensors/writer.hpp>

/// Weights in the safetensors format (https://github.com/huggingface/safetensors, "Format"), which
/// Hugging Face's transformers reads and writes:
///
///     8 bytes      length N of the header, unsigned, little endian
///     N bytes      JSON: {"__metadata__": {text: text}, name: {"dtype": ..., "shape": [...],
///                  "data_offsets": [begin, end]}, ...}, padded with spaces
///     the rest     the tensors, row-major, little endian, one after the other without holes;
///                  begin and end count from the first byte after the header
///
/// Known dtypes: F64, F32, F16, BF16, I64, I32, I16, I8, U16, U8, BOOL.
///
/// Dtypes are converted only between F64, F32, F16 and BF16, rounded like at::Tensor::to. Nothing
/// here communicates with other ranks.
namespace zero::safetensors {}
