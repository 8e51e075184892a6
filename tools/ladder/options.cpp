#include "options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <tools/plan/planner.hpp>
#include <zero/base/arguments.hpp>
#include <zero/base/error.hpp>
#include <zero/base/names.hpp>
#include <zero/data/dataset.hpp>
#include <zero/distributed/environment.hpp>
#include <zero/io/checkpoint_manifest.hpp>
#include <zero/train/registry.hpp>

#include "device.hpp"

namespace zero::ladder {
namespace {

// Only texts are kept for each rank of a fake process group; larger worlds serve no purpose.
constexpr int kLargestFakeProcessGroup = 4096;

void check_choice(const std::string& kind, const std::string& value,
                  const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    throw Error(base::unknown_name_message(kind, value, known));
  }
}

void check(const Options& options) {
  train::Registry registry;
  train::register_all_chapters(registry);
  for (const std::string& mode : options.modes) registry.check(mode);
  train::ownership_from(options.ownership);
  check_choice("task", options.task, {"text", "reviews"});
  check_choice("dtype", options.dtype, {"fp32", "bf16", "fp16"});
  check_choice("reduce-dtype", options.reduce_dtype, {"parameter", "fp32"});
  check_choice("device", options.device, {"cpu", "cuda"});
  check_choice("pipeline-schedule", options.pipeline_schedule, {"1f1b", "gpipe"});
  if (!options.model.empty()) check_choice("model", options.model, nn::preset_names());
  if (!options.checkpoint.empty() && options.modes.size() != 1) {
    throw Error(
        fmt::format("--checkpoint keeps one run, and there are {} modes: name one, for example "
                    "--modes {}",
                    options.modes.size(), options.modes.back()));
  }
}

// Makes "hsdp3:shard_size=4" of hsdp3 and "hddp:shard_size=4" of ddp. Other modes add the gradients
// of all ranks at once, with other bits.
void add_shard_size(Options& o) {
  if (o.shard_size.empty()) return;
  for (std::string& mode : o.modes) {
    if (mode != "ddp" && mode != "hddp" && !mode.starts_with("hsdp")) {
      throw Error(
          fmt::format("--shard-size is for ddp, hsdp1, hsdp2 and hsdp3; mode {} adds in "
                      "another order: leave it out",
                      mode));
    }
    mode = (mode == "ddp" ? "hddp" : mode) + ":shard_size=" + o.shard_size;
  }
}

void add_model_options(CLI::App& app, Options& o) {
  app.add_option("--task", o.task, "text (language model) or reviews (5-class classifier)")
      ->capture_default_str();
  auto* model = app.add_option(
      "--model", o.model,
      "tiny, llama-20m, smollm2-135m, smollm2-360m, llama-360m or llama-1.5b, with first values "
      "by seed; without it the largest that fits");
  app.add_option("--weights", o.weights,
                 "folder as transformers' save_pretrained writes it: model and first values")
      ->excludes(model);
  app.add_option(
      "--data", o.data,
      "text files or folders (read as bytes), or a token file of ./run data, which reviews need; "
      "without it this project's own");
  app.add_option("--lr", o.learning_rate, "AdamW's learning rate")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e9))
      ->check(base::refuse_nan);
  app.add_option("--seed", o.seed, "of weights and data order")
      ->capture_default_str()
      ->check(base::refuse_bad_seed);
  app.add_option("--dtype", o.dtype,
                 "fp32; bf16 or fp16 with fp32 master weights, fp16 with a loss scale as well")
      ->capture_default_str();
  app.add_option("--reduce-dtype", o.reduce_dtype,
                 "what bf16 and fp16 gradients travel in to be added up: parameter (their own), or "
                 "fp32, which is twice the bytes")
      ->capture_default_str();
  app.add_option("--device", o.device, "cpu, or cuda: a GPU for each rank, over NCCL")
      ->capture_default_str();
  app.add_flag("--activation-checkpointing", o.activation_checkpointing,
               "keep only the input of every layer for backward and compute the rest again: the "
               "same weights, less memory, more time");
}

void add_run_options(CLI::App& app, Options& o) {
  app.add_option("--nproc", o.world_size, "ranks")->capture_default_str()->check(CLI::Range(1, 64));
  auto* steps = app.add_option("--steps", o.steps, "optimizer steps")
                    ->capture_default_str()
                    ->check(CLI::Range(1, 1000000));
  app.add_option("--epochs", o.epochs, "passes over the data, instead of --steps")
      ->excludes(steps)
      ->check(CLI::Range(1, 1000000));
  app.add_option("--validation", o.validation,
                 "share of the samples to evaluate and not to train on: at the start, after every "
                 "epoch (or --checkpoint-every) and at the end")
      ->check(CLI::Range(0.0, 1.0))
      ->check(base::refuse_nan);
  app.add_option("--seq-len", o.sequence_length, "tokens of a sample")
      ->capture_default_str()
      ->check(CLI::Range(2, 8192));
  app.add_option("--batch", o.batch, "samples of a rank in a micro-batch")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--modes", o.modes, "modes, for example ddp,zero1:naive,zero3")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--shard-size", o.shard_size,
                 "with modes hsdp1 to hsdp3: how many ranks share the model states, or host for "
                 "those of a host; ddp becomes hddp, which adds in the same order");
  app.add_option("--ownership", o.ownership, "size, count or offset")->capture_default_str();
  app.add_option("--timeout", o.timeout_seconds, "longest wait for another rank, in seconds")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0))
      ->check(base::refuse_nan);
  app.add_flag("!--no-compute-alone", o.compute_alone,
               "leave out the run without communication (it is left out with --checkpoint, "
               "--resume, --tp and --pp)");
  app.add_option("--alone-mode", o.alone_mode,
                 "the mode of the run without communication, every rank by itself")
      ->capture_default_str();
  app.add_option("--assume-free-memory", o.assume_free_mib,
                 "MiB to fit into, instead of what is free now")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
}

void add_mesh_options(CLI::App& app, Options& o) {
  auto* tensor = app.add_option("--tp", o.tensor_ranks,
                                "tensor parallelism: ranks that share each layer; modes work on "
                                "the data axis, which has the other ranks")
                     ->capture_default_str()
                     ->check(CLI::Range(1, 64));
  auto* pipeline = app.add_option("--pp", o.stages, "stages of a pipeline, each some of the layers")
                       ->capture_default_str()
                       ->check(CLI::Range(1, 64));
  auto* sequence = app.add_flag("--sequence-parallel", o.sequence_parallel,
                                "with --tp: cut activations between layers along the sequence")
                       ->needs(tensor);
  app.add_flag("--partition-activations", o.partition_activations,
               "with --tp and --activation-checkpointing: each tensor rank keeps its part of a "
               "layer's input")
      ->needs(tensor)
      ->needs(app.get_option("--activation-checkpointing"))
      ->excludes(sequence);
  app.add_option("--micro-batches", o.micro_batches,
                 "forward and backward passes of a step (without it as many as --pp)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--pipeline-schedule", o.pipeline_schedule,
                 "1f1b, or gpipe: all forwards before all backwards")
      ->capture_default_str()
      ->needs(pipeline);
}

void add_output_options(CLI::App& app, Options& o) {
  app.add_flag("--wide", o.wide,
               "print maxima over ranks, peaks, times, losses and digests too, 140 columns wide");
  app.add_option("--json", o.json, "where the figures go; ./run draws them beside it")
      ->capture_default_str();
  app.add_option("--save", o.save,
                 "folder for the trained model, as transformers loads it; from the last mode");
  app.add_option(
      "--memory-timeline", o.memory_timeline,
      "memory timeline: what rank 0's allocator held along the last step of every mode, as "
      "JSON; ./run draws it beside the file");
  app.add_option("--trace", o.trace,
                 "Chrome trace of the last step of every mode and rank: NAME.json gives "
                 "NAME.MODE.rankR.json");
}

void add_checkpoint_options(CLI::App& app, Options& o) {
  auto* checkpoint = app.add_option(
      "--checkpoint", o.checkpoint,
      "folder for a checkpoint of the run, replaced whenever a newer one is whole; with one mode");
  app.add_option("--checkpoint-every", o.checkpoint_every,
                 "steps from one checkpoint to the next (without it only after the last step)")
      ->needs(checkpoint)
      ->check(CLI::Range(1, 1000000));
  auto* resume = app.add_option(
      "--resume", o.resume,
      "folder of a checkpoint to go on from, under any mode and on any number of ranks "
      "with as many samples a step in all; --steps and --epochs count from the start of the run");
  app.add_flag("--auto-resume", o.auto_resume,
               "--resume from the folder of --checkpoint where it holds one, else begin: for a "
               "launcher that starts ranks again")
      ->needs(checkpoint)
      ->excludes(resume);
}

// Refused with: a checkpoint or a saved model, which need the other ranks' shards; a validation
// loss, which needs a model that all ranks trained; a memory timeline, which is rank 0's.
void add_fake_process_group_options(CLI::App& app, Options& o) {
  auto* fake = app.add_option("--fake-process-group", o.fake_process_group,
                              "run one rank of a world of this many, alone: nothing is sent, and "
                              "what the others would send is made from the first values")
                   ->check(CLI::Range(1, kLargestFakeProcessGroup));
  for (const char* other : {"--nproc", "--save", "--memory-timeline", "--checkpoint", "--resume",
                            "--epochs", "--validation"}) {
    fake->excludes(app.get_option(other));
  }
  app.add_option("--rank", o.fake_rank, "which rank of the fake process group")
      ->needs(fake)
      ->check(CLI::Range(0, kLargestFakeProcessGroup - 1));
  app.add_option("--ranks-per-host", o.ranks_per_host,
                 "ranks on each host of the fake process group, for --shard-size host; without it "
                 "all ranks are on one host")
      ->needs(fake)
      ->check(CLI::Range(1, kLargestFakeProcessGroup));
}

void check_fake_process_group(const CLI::App& app, Options& o) {
  if (o.fake_process_group == 0) return;
  if (o.fake_rank >= o.fake_process_group) {
    throw Error(fmt::format("--rank {}: a world of {} has the ranks 0 to {}", o.fake_rank,
                            o.fake_process_group, o.fake_process_group - 1));
  }
  if (o.ranks_per_host > 0 && o.fake_process_group % o.ranks_per_host != 0) {
    throw Error(fmt::format("--ranks-per-host {} does not divide --fake-process-group {}",
                            o.ranks_per_host, o.fake_process_group));
  }
  if (o.device != "cpu") {
    throw Error(fmt::format("--fake-process-group runs on cpu only, not on {}", o.device));
  }
  if (o.tensor_ranks > 1 && o.dtype == "fp16") {
    throw Error(
        "--fake-process-group with --tp makes up what other tensor ranks compute, and such values "
        "overflow --dtype fp16: take bf16");
  }
  o.world_size = o.fake_process_group;
  o.compute_alone = false;
  // Not over the figures of real ranks.
  if (app.count("--json") == 0) o.json = "out/fake_process_group.json";
}

// What a rank has in memory beside its tensors, in bytes, about.
constexpr double kProgramBytes = 300 << 20;

// The logits, their gradient and the rest, about. A part of each layer's is cut over the tensor
// axis (Korthikanti et al. 2022).
double activation_bytes(const Options& options) {
  const nn::LlamaConfig config = options.config();
  const std::int64_t kept =  // of a layer
      options.activation_checkpointing ? 1 : 10 + 30 / options.tensor_ranks;
  const std::int64_t layers = (config.layers + options.stages - 1) / options.stages;
  const std::int64_t a_token =
      3 * config.vocabulary / options.tensor_ranks + config.hidden * (40 + kept * layers);
  // Micro-batches whose backward a stage waits for.
  const std::int64_t in_flight =
      options.stages == 1 ? 1
      : options.pipeline_schedule == "gpipe"
          ? options.micro_batches
          : std::min<std::int64_t>(options.micro_batches, options.stages);
  return 4 * static_cast<double>(a_token) * static_cast<double>(in_flight) *
         static_cast<double>(options.batch * options.sequence_length);
}

// "tensor_zero3:whole" is stage 3.
plan::Stage stage_of(const std::string& mode) {
  const std::string name = mode.substr(0, mode.find(':'));
  const char digit = name.back();
  return digit >= '1' && digit <= '3' ? plan::kStages[digit - '0'] : plan::Stage::kDdp;
}

// The ranks of a fake process group that share the model states of `mode`: the whole data axis, or
// a group of hsdp1 to hsdp3.
std::int64_t sharing_ranks(const Options& options, const std::string& mode) {
  const std::int64_t all = std::max(1, options.data_ranks());
  if (!mode.starts_with("hsdp")) return all;
  train::Registry registry;
  train::register_all_chapters(registry);
  const auto shard_size = nlohmann::json::parse(registry.options(mode)).at("shard_size");
  if (shard_size.is_number()) return shard_size.get<std::int64_t>();  // else "host"
  if (options.ranks_per_host == 0) return all;
  // The other axes are inside a host first.
  return std::max(1, options.ranks_per_host / (options.tensor_ranks * options.stages));
}

// Model states of the largest mode on one rank by itself, and parameters and gradients of the root
// and of a layer, one of each on its way.
double needed_by_fake_rank(const Options& options) {
  const plan::Mesh mesh{.tensor = options.tensor_ranks, .pipeline = options.stages};
  const auto [part, frozen] =
      plan::part_of(plan::model_of(options.config(), options.model_name()), mesh,
                    options.fake_rank / options.tensor_ranks % options.stages);
  const plan::Policy policy = plan::policy(options.dtype, "adamw");
  std::int64_t states = 0;
  for (const std::string& mode : options.modes) {
    states = std::max(states, plan::model_states(part.parameters, policy, stage_of(mode),
                                                 sharing_ranks(options, mode))
                                  .total());
  }
  const std::int64_t transient = 4 * (2 * part.root + 4 * part.largest_unit());
  return static_cast<double>(states + frozen * policy.parameter + transient);
}

double available_bytes(const Options& options) {
  if (options.assume_free_mib > 0) return static_cast<double>(options.assume_free_mib << 20);
  if (options.device == "cuda") return static_cast<double>(free_gpu_bytes(options));
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return static_cast<double>(kib * 1024);
    file.ignore(1000, '\n');
  }
  return 0;
}

// Groups of ranks that share model states are cut out of the data axis. Without a mesh the ranks
// find out.
void check_groups(const Options& o) {
  std::int64_t size = 0;
  const auto [end, problem] =
      std::from_chars(o.shard_size.data(), o.shard_size.data() + o.shard_size.size(), size);
  if (!o.has_mesh() || problem != std::errc() || o.data_ranks() % size == 0) return;
  throw Error(
      fmt::format("--shard-size {} does not divide the data axis: of {} ranks with --tp {} and "
                  "--pp {} it has {}",
                  size, o.world_size, o.tensor_ranks, o.stages, o.data_ranks()));
}

// Stages 0 to 2: ddp, zero1, tensor_zero2:flat, engine0 and so on.
bool keeps_parameters_whole(const std::string& mode) {
  const std::string name = mode.substr(0, mode.find(':'));
  return name == "ddp" || name == "hddp" || (name.back() >= '0' && name.back() <= '2');
}

void check_pipeline(const Options& o, const nn::LlamaConfig& config) {
  const auto refuse = [&o](const std::string& why) {
    throw Error(fmt::format("--pp {}: {}", o.stages, why));
  };
  if (o.reviews()) refuse("a pipeline trains language models: leave out --task reviews or --pp");
  if (o.stages > config.layers) {
    refuse(
        fmt::format("{} has {} layers, and every stage needs at least one: take at most {} stages",
                    o.model_name(), config.layers, config.layers));
  }
  for (const std::string& mode : o.modes) {
    if (!config.tied || keeps_parameters_whole(mode)) continue;
    refuse(fmt::format(
        "mode {} does not keep parameters whole, and the first and the last stage share the "
        "embedding: take modes of stages 0 to 2 (--modes ddp,zero1,zero2), or --weights with "
        "tie_word_embeddings false",
        mode));
  }
}

double gib(double bytes) { return bytes / (1 << 30); }

[[noreturn]] void refuse_size(const Options& options, double available) {
  const bool fake = options.fake_process_group > 0;
  throw Error(fmt::format(
      "{}{} needs about {:.1f} GiB under {} and {:.1f} GiB are free; take {}, a smaller --model "
      "({}) or a smaller batch",
      options.model_name(),
      fake ? fmt::format(": rank {} of {}", options.fake_rank, options.fake_process_group)
           : fmt::format(" on {} ranks", options.world_size),
      gib(needed_bytes(options)), fake ? "the largest of the modes" : "ddp", gib(available),
      fake ? "more ranks (of a group: --shard-size), --modes that shard more" : "fewer ranks",
      fmt::join(nn::preset_names(), ", ")));
}

}  // namespace

nn::LlamaConfig Options::config() const {
  nn::LlamaConfig config =
      weights.empty() ? nn::preset(model) : nn::llama_config_from_json(weights_config);
  if (reviews()) config.classes = data::kReviewClasses;
  if (mixed()) config.dtype = dtype == "bf16" ? at::kBFloat16 : at::kHalf;
  return config;
}

std::string Options::model_name() const {
  if (weights.empty()) return model;
  const std::filesystem::path path = std::filesystem::absolute(weights).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

std::string Options::trace_file(const std::string& mode, int rank) const {
  std::string name = mode;
  for (const char c : {':', '/', '='}) std::replace(name.begin(), name.end(), c, '-');
  std::filesystem::path path = trace;
  path.replace_filename(fmt::format("{}.{}.rank{}.json", path.stem().string(), name, rank));
  return path.string();
}

Options parse(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Trains one model under DDP, ZeRO-1, ZeRO-2 and ZeRO-3, checks that all end with the same "
      "bits, and prints what each rank held and sent."};
  add_model_options(app, o);
  add_run_options(app, o);
  add_mesh_options(app, o);
  add_output_options(app, o);
  add_checkpoint_options(app, o);
  add_fake_process_group_options(app, o);
  base::parse_arguments(app, "ladder", argc, argv);
  add_shard_size(o);
  check(o);
  check_fake_process_group(app, o);
  if (app.count("--nproc") > 0) dist::validate_world_size(o.world_size);
  std::error_code ignored;
  if (o.auto_resume &&
      std::filesystem::exists(std::filesystem::path(o.checkpoint) / io::checkpoint::kManifestFile,
                              ignored)) {
    o.resume = o.checkpoint;
  }
  if (app.count("--micro-batches") == 0) o.micro_batches = o.stages;
  // What is kept is trained for its weights; the figures of a run without communication would take
  // as long again. A rank of a mesh by itself would have another model.
  if (!o.checkpoint.empty() || !o.resume.empty() || o.has_mesh()) o.compute_alone = false;
  if (!o.weights.empty()) {
    o.weights_config = nn::read_config_text(o.weights);
    try {
      nn::llama_config_from_json(o.weights_config);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", o.weights, error.what()));
    }
  }
  return o;
}

double needed_bytes(const Options& options) {
  const double besides = activation_bytes(options) + kProgramBytes;
  if (options.fake_process_group > 0) return needed_by_fake_rank(options) + besides;
  const nn::LlamaConfig config = options.config();
  // The first stage has a copy of the weight that the last one trains.
  const bool copies = options.stages > 1 && config.tied;
  const std::int64_t model_states =
      16 * config.parameters() + (copies ? 4 * config.vocabulary * config.hidden : 0);
  const int parts = options.tensor_ranks * options.stages;
  return options.local_ranks() * (static_cast<double>(model_states) / parts + besides);
}

void check_mesh(const Options& o) {
  const nn::LlamaConfig config = o.config();
  const int cell = o.tensor_ranks * o.stages;
  if (o.world_size % cell != 0) {
    throw Error(
        fmt::format("--tp {} and --pp {} need a multiple of {} ranks, and there are {}: take {} {}",
                    o.tensor_ranks, o.stages, cell, o.world_size,
                    o.fake_process_group > 0 ? "--fake-process-group" : "--nproc",
                    (o.world_size / cell + 1) * cell));
  }
  check_groups(o);
  try {
    nn::check_tensor_parallel(config, o.tensor_ranks);
  } catch (const Error& error) {
    throw Error(fmt::format("--tp {}: {}; take a --tp that divides that number", o.tensor_ranks,
                            error.what()));
  }
  if (o.tensor_ranks == 1 && (o.sequence_parallel || o.partition_activations)) {
    throw Error(
        fmt::format("{}: one tensor rank has nothing to cut: take --tp 2 or more, or leave it out",
                    o.sequence_parallel ? "--sequence-parallel" : "--partition-activations"));
  }
  if (o.sequence_parallel && (o.reviews() || o.sequence_length % o.tensor_ranks != 0)) {
    throw Error(fmt::format(
        "--sequence-parallel cuts every sequence into {} equal parts: {}", o.tensor_ranks,
        o.reviews() ? "those of --task reviews have different lengths, leave it out"
                    : fmt::format("take a --seq-len that is a multiple of {}, and not {}",
                                  o.tensor_ranks, o.sequence_length)));
  }
  if (o.stages > 1) check_pipeline(o, config);
}

void choose_model(Options& options) {
  const double available = available_bytes(options);
  if (!options.model.empty() || !options.weights.empty()) {
    if (needed_bytes(options) > available) refuse_size(options, available);
    return;
  }
  // SmolLM2's heads cannot be shared evenly.
  const auto models = options.tensor_ranks > 1
                          ? std::vector<const char*>{"llama-360m", "tiny"}
                          : std::vector<const char*>{"smollm2-360m", "smollm2-135m", "tiny"};
  for (const char* model : models) {
    options.model = model;
    if (needed_bytes(options) <= available) return;
    fmt::print("{} needs about {:.1f} GiB and {:.1f} GiB are free: {}.\n", model,
               gib(needed_bytes(options)), gib(available),
               options.model == "tiny" ? "not even that fits" : "trying the next smaller model");
  }
  throw Error(fmt::format(
      "no model fits: {:.1f} GiB are free; take fewer ranks (--nproc), a smaller --batch or a "
      "shorter --seq-len",
      gib(available)));
}

}  // namespace zero::ladder
