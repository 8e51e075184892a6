#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include <zero/data/batch.hpp>
#include <zero/nn/model.hpp>

#include "options.hpp"

/// Where ranks compute. Ranks on GPUs are in a program of their own, ladder_cuda, which has
/// device_cuda.cpp where ladder has device_cpu.cpp: the CUDA libraries take memory and time in
/// every process that loads them, used or not. `--device cuda` leads from one program to the other.
namespace zero::ladder {

/// Makes this process ready to fork ranks that compute on `options.device`; called once, before any
/// tensor is made. `argv` is the command line: it does not return where the other program has to
/// take over. @throws zero::Error that says why, where there is no such device.
void use_device(const Options& options, char** argv);

/// What `question` answers in a process of its own, which may use tensors or a GPU: ranks can be
/// forked only from a process that has used neither. @throws zero::Error as `question` does, and
/// with `failure` where its process did not end well.
std::string ask_elsewhere(const std::function<std::string()>& question, const char* failure);

/// Bytes that the ranks of this machine, together, find free on its GPUs; 0 where the program has
/// none. After use_device().
std::int64_t free_gpu_bytes(const Options& options);

/// Fixes the settings that all runs share, starts counting bytes on the device and returns it.
/// Called by every rank, connected, before it makes a tensor of the model.
at::Device enter_rank(const Options& options);

/// Moves the parameters of a model without storage; they have none there either.
void to_device(at::Device device, nn::Model& model);

/// The batch on the device of the model's parameters.
data::Batch to_device(const nn::Model& model, const data::Batch& batch);

}  // namespace zero::ladder
