#pragma once

#include <string>
#include <vector>
#include <zero/nn/llama_config.hpp>
#include <zero/train/ownership.hpp>

namespace zero::ladder {

/// What the ladder's command line asks for.
struct Options {
  std::string task = "text";
  std::string model;  ///< a preset; empty: the largest of the usual ones that fits this machine
  std::vector<std::string> data;
  int world_size = 2;
  std::int64_t steps = 4;
  std::int64_t sequence_length = 128;
  std::int64_t batch = 1;  ///< samples a rank and step
  std::vector<std::string> modes = {"ddp", "zero1", "zero2", "zero3"};
  std::string ownership = "size";
  std::string dtype = "fp32";
  std::string device = "cpu";
  double learning_rate = 5e-5;
  double timeout_seconds = 300;
  std::uint64_t seed = 42;
  std::string json = "out/ladder.json";
  bool compute_alone = true;  ///< also measure the step without communication

  bool reviews() const { return task == "reviews"; }
  nn::LlamaConfig config() const;
};

/// Reads the command line. Prints help, or what is wrong and what would be right, and ends the
/// program where that is all there is to do.
Options parse(int argc, char** argv);

/// Fills in the model where none was named; zero::Error if the one that was named does not fit into
/// the memory that is free on this machine.
void choose_model(Options& options);

/// Bytes that all ranks together need at the peak of the largest mode, about.
std::int64_t needed_bytes(const Options& options);

}  // namespace zero::ladder
