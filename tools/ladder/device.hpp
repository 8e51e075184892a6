#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include <tools/ladder/data/batch.hpp>

/// Where ranks compute. Ranks on GPUs are in a program of their own, ladder_cuda, which has
/// device_cuda.cpp in the place of device_cpu.cpp: the CUDA libraries take memory and time in
/// every process that loads them, used or not. `--device cuda` leads from one program to the other.
namespace zero::ladder {

/// What --device may name besides "cpu".
struct OtherDevice {
  const char* name;
  const char* help;
  const char* backend;  ///< of its ranks
};
extern const OtherDevice kOtherDevice;
inline constexpr OtherDevice kGpu = {"cuda", "cuda: a GPU for each rank, over NCCL", "nccl"};

/// Makes this process ready to fork ranks on GPUs; called once, before any tensor is made. `argv`
/// is the command line: in ladder it does not return, and ladder_cuda takes over. @throws
/// zero::Error that says why, if there is no usable GPU.
void use_gpus(char** argv);

/// What `question` answers in a process of its own, which may use tensors or a GPU: ranks can be
/// forked only from a process that has used neither. @throws zero::Error as `question` does, and
/// with `failure` if its process did not end well.
std::string ask_elsewhere(const std::function<std::string()>& question, const char* failure);

/// Bytes that so many ranks, together, find free on the GPUs of this machine. After use_gpus().
std::int64_t free_gpu_bytes(int ranks);

/// Fixes the settings that all runs share, starts counting bytes on this rank's GPU and returns it.
/// Called by every rank, connected, before it makes a tensor of the model. After use_gpus().
at::Device enter_gpu();

/// Moves the parameters of a model without storage; they have none there either.
void to_device(at::Device device, torch::nn::Module& model);

data::Batch to_device(at::Device device, data::Batch batch);

}  // namespace zero::ladder
