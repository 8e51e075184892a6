#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tools/support/json.hpp>
#include <zero/nn/llama_config.hpp>

#include "registry.hpp"

namespace zero::ladder {

/// The ranks as a mesh, data x pipeline x tensor; the last varies fastest. Modes work on the data
/// axis.
struct MeshOptions {
  int tensor_ranks = 1;                ///< that share each layer
  int stages = 1;                      ///< of the pipeline
  bool sequence_parallel = false;      ///< activations between layers are cut along the sequence
  bool partition_activations = false;  ///< a checkpoint keeps 1 / tensor_ranks of its input
  /// Ranks of one place on the data axis; they have the same samples.
  int cell() const { return tensor_ranks * stages; }
};

/// A fake process group.
struct FakeOptions {
  int size = 0;  ///< ranks in it, of which one runs; 0: real ranks
  int rank = 0;  ///< which one
};

/// Checkpoints of the run.
struct CheckpointOptions {
  std::string folder;      ///< empty: none
  std::int64_t every = 0;  ///< steps from one to the next; 0: after the last step only
  std::string resume;      ///< folder of the one to go on from; empty: from the start
};

/// What the ladder's command line asks for.
struct Options {
  std::string task = "text";
  std::string model;    ///< a preset; empty: the largest of the usual ones that fits this machine
  std::string weights;  ///< folder with config.json and safetensors; empty: weights by seed
  std::string weights_config;  ///< the text of that config.json
  std::vector<std::string> data;
  std::string data_fingerprint;  ///< Dataset::fingerprint() before the first mode
  int world_size = 2;
  int ranks_here = 0;      ///< of them on this machine, if a launcher started them; 0: all
  int ranks_per_host = 0;  ///< that stand for a host; 0: not given
  std::string link;        ///< rate of a link between these hosts; empty: not limited
  std::int64_t steps = 4;
  std::int64_t sequence_length = 128;
  std::int64_t batch = 1;          ///< samples of a rank in a micro-batch
  std::int64_t micro_batches = 0;  ///< of a step
  std::vector<std::string> modes = {"ddp", "zero1", "zero2", "zero3"};
  std::string optimizer = "adamw";  ///< or muon, for hidden matrices
  std::string dtype = "fp32";       ///< or bf16, which keeps fp32 masters
  std::string device = "cpu";
  bool activation_checkpointing = false;
  bool activations_on_host = false;  ///< what a checkpoint keeps
  double learning_rate = 5e-5;
  double timeout_seconds = 300;
  std::uint64_t seed = 42;
  bool wide = false;  ///< print everything, not only the eight columns
  std::string json = "out/ladder.json";
  std::string save;   ///< folder for the trained model; empty: it is not kept
  std::string trace;  ///< file whose name traces of the last step are made from; empty: none
  bool compute_alone = true;  ///< also measure the step without communication
  MeshOptions mesh;
  FakeOptions fake;
  CheckpointOptions checkpoint;

  bool reviews() const { return task == "reviews"; }
  /// Parameters of 2 bytes, with fp32 master weights in the optimizer.
  bool mixed() const { return dtype != "fp32"; }
  int local_ranks() const { return ranks_here > 0 ? ranks_here : world_size; }
  int data_ranks() const { return world_size / mesh.cell(); }
  /// Samples of a step over all ranks.
  std::int64_t step_samples() const { return batch * micro_batches * data_ranks(); }
  /// The shape of the model: a classifier if reviews are the task.
  nn::LlamaConfig config() const;
  /// What the model is called in tables: the preset, or the folder of the weights.
  std::string model_name() const;
  /// Where the trace of one rank in one mode goes: "out/trace.json" gives
  /// "out/trace.zero1-naive.rank0.json".
  std::string trace_file(const std::string& mode, int rank) const;
};

/// Every mode.
const tools::Registry& all_modes();

/// Reads the command line. If help was asked for or an option is wrong by itself, prints help, or
/// what is wrong and what would be right, and ends the program.
Options parse(int argc, char** argv);

/// Fills in the model if neither model nor weights were named, and says so if it is not the usual
/// one; zero::Error if what was named does not fit into the memory that is free on this machine, or
/// nothing does. In model_choice.cpp.
void choose_model(Options& options);

/// Throws zero::Error for a mesh or a link that does not fit the number of ranks. What does not fit
/// the model or a mode, the ranks say.
void check_mesh(const Options& options);

/// What the report says of a run (ladder_report.hpp) before it. The model must have been chosen.
tools::Json report_head(const Options& options);

}  // namespace zero::ladder
