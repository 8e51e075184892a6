#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <tools/ladder/data/dataset.hpp>
#include <tools/models/presets.hpp>
#include <tools/support/arguments.hpp>
#include <tools/support/fake_backend.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/environment.hpp>

#include "device.hpp"

namespace zero::ladder {
namespace {

namespace fs = std::filesystem;

// Only texts are kept for each rank of a fake process group; larger worlds serve no purpose.
constexpr int kLargestFakeProcessGroup = 4096;

// An empty text, from a shell variable that is not set, must not be ignored silently.
std::string refuse_empty(const std::string& text) {
  return text.empty() ? "needs a name or a value" : "";
}

CLI::Option* text(CLI::App& app, const char* name, std::string& value, const char* help) {
  return app.add_option(name, value, help)->capture_default_str()->check(refuse_empty);
}

CLI::Option* choice(CLI::App& app, const char* name, std::string& value,
                    const std::vector<std::string>& known, const char* help) {
  return text(app, name, value, help)->check(CLI::IsMember(known));
}

std::string refuse_fp16(const std::string& type) {
  if (type != "fp16") return "";
  return "fp16 was removed: bf16 needs no loss scale, and an engine's configuration has one";
}

// From `least` to `most`. A value of 0 stands for no value.
template <typename Number>
CLI::Option* number(CLI::App& app, const char* name, Number& value,
                    std::type_identity_t<Number> least, std::type_identity_t<Number> most,
                    const char* help) {
  CLI::Option* option = app.add_option(name, value, help)->check(CLI::Range(least, most));
  if constexpr (std::is_floating_point_v<Number>) option->check(tools::refuse_nan);
  return value == 0 ? option : option->capture_default_str();
}

void add_model_options(CLI::App& app, Options& o) {
  choice(app, "--task", o.task, {"text", "reviews"}, "language model or 5-class classifier");
  choice(app, "--model", o.model, tools::preset_names(), "without it the largest that fits");
  text(app, "--weights", o.weights, "folder of save_pretrained: model and first values")
      ->excludes("--model");
  app.add_option("--data", o.data,
                 "texts, or a token file of ./run data; without it this project's own")
      ->check(refuse_empty);
  number(app, "--lr", o.learning_rate, 0, 1e9, "learning rate");
  choice(app, "--optimizer", o.optimizer, {"adamw", "muon"},
         "muon: of hidden matrices, under modes that leave them whole (ddp, zero1 to zero3)");
  app.add_option("--seed", o.seed, "of weights and data order")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  text(app, "--dtype", o.dtype, "bf16 with fp32 master weights")
      ->check(refuse_fp16)
      ->check(CLI::IsMember({"fp32", "bf16"}));
  choice(app, "--device", o.device, {"cpu", kOtherDevice.name}, kOtherDevice.help);
  app.add_flag("--activation-checkpointing", o.activation_checkpointing,
               "keep only the input of every layer for backward, and compute the rest again");
  app.add_flag("--activations-on-host", o.activations_on_host,
               "keep it in the host's memory; on the CPU that is where it is")
      ->needs("--activation-checkpointing");
}

void add_run_options(CLI::App& app, Options& o) {
  number(app, "--nproc", o.world_size, 1, 64, "ranks");
  number(app, "--ranks-per-host", o.ranks_per_host, 1, kLargestFakeProcessGroup,
         "ranks with consecutive numbers that count as a host, as groups of hsdp1 to hsdp3");
  text(app, "--link", o.link,
       "100mbit, 1gbit or 30MB/s: what leaves or enters a host goes no faster")
      ->needs("--ranks-per-host");
  number(app, "--steps", o.steps, 1, 1000000, "optimizer steps");
  number(app, "--seq-len", o.sequence_length, 2, 8192, "tokens of a sample");
  number(app, "--batch", o.batch, 1, 4096, "samples of a rank in a micro-batch");
  number(app, "--micro-batches", o.micro_batches, 1, 4096, "of a step; without it as many as --pp");
  app.add_option("--modes", o.modes, "modes, for example ddp,zero1:naive,zero3")
      ->delimiter(',')
      ->capture_default_str();
  number(app, "--timeout", o.timeout_seconds, 0.1, 86400, "longest wait for a rank, in seconds");
  app.add_flag(
      "!--no-compute-alone", o.compute_alone,
      "leave out the run without communication, as --checkpoint, --resume, --tp and --pp do");
}

void add_mesh_options(CLI::App& app, MeshOptions& o) {
  number(app, "--tp", o.tensor_ranks, 1, 64, "tensor parallelism: ranks that share each layer");
  number(app, "--pp", o.stages, 1, 64, "stages of a pipeline, each some of the layers");
  app.add_flag("--sequence-parallel", o.sequence_parallel,
               "with --tp: cut activations between layers along the sequence")
      ->needs("--tp");
  app.add_flag("--partition-activations", o.partition_activations,
               "each tensor rank keeps its part of a layer's input")
      ->needs("--tp")
      ->needs("--activation-checkpointing")
      ->excludes("--sequence-parallel");
}

void add_output_options(CLI::App& app, Options& o) {
  app.add_flag("--wide", o.wide, "print maxima, peaks, times, losses and digests too, 140 columns");
  text(app, "--json", o.json, "where the figures go; ./run draws them beside it");
  text(app, "--save", o.save, "folder for the model of the last mode, as transformers loads it");
  text(app, "--trace", o.trace,
       "Chrome traces of the last step: NAME.json gives NAME.MODE.rankR.json");
}

void add_checkpoint_options(CLI::App& app, CheckpointOptions& o) {
  text(app, "--checkpoint", o.folder,
       "with one mode: folder for a checkpoint, replaced whenever a newer one is whole");
  number(app, "--checkpoint-every", o.every, 1, 1000000,
         "steps from one to the next (without it only after the last step)")
      ->needs("--checkpoint");
  text(app, "--resume", o.resume,
       "folder of a checkpoint to go on from; --steps counts from the start of the run");
}

// Refused with a checkpoint or a saved model, which need the other ranks' shards.
void add_fake_options(CLI::App& app, FakeOptions& o) {
  CLI::Option* fake = number(app, "--fake-process-group", o.size, 1, kLargestFakeProcessGroup,
                             "run one rank of a world of this many alone; nothing is sent");
  for (const char* other : {"--nproc", "--link", "--save", "--checkpoint", "--resume"}) {
    fake->excludes(other);
  }
  number(app, "--rank", o.rank, 0, kLargestFakeProcessGroup - 1, "which rank of it")->needs(fake);
}

// The ranks find their hosts in the environment, those that a launcher started too.
void set_hosts(const Options& o) {
  if (o.ranks_per_host == 0 || o.fake.size > 0) return;
  ::setenv("ZERO_RANKS_PER_HOST", std::to_string(o.ranks_per_host).c_str(), /*overwrite=*/1);
  if (o.link.empty()) return;
  if (o.device != "cpu") throw Error("--link is for --device cpu, whose ranks send over TCP");
  ::setenv("ZERO_LINK", o.link.c_str(), /*overwrite=*/1);
  dist::link_rate();  // throws for what is no rate
}

void check_fake(const Options& o) {
  dist::connect_fake(o.fake.rank, o.fake.size, o.ranks_per_host);
  if (o.device != "cpu") throw Error("--fake-process-group runs on --device cpu only");
}

}  // namespace

nn::LlamaConfig Options::config() const {
  nn::LlamaConfig config =
      weights.empty() ? tools::preset(model) : nn::llama_config_from_json(weights_config);
  if (reviews()) config.classes = data::kReviewClasses;
  if (mixed()) config.dtype = at::kBFloat16;
  return config;
}

std::string Options::model_name() const {
  if (weights.empty()) return model;
  const fs::path path = fs::absolute(weights).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

std::string Options::trace_file(const std::string& mode, int rank) const {
  std::string name = mode;
  for (const char c : {':', '/', '='}) std::ranges::replace(name, c, '-');
  fs::path path = trace;
  path.replace_filename(fmt::format("{}.{}.rank{}.json", path.stem().string(), name, rank));
  return path.string();
}

const tools::Registry& all_modes() {
  static tools::Registry registry;
  if (registry.entries().empty()) tools::register_all_chapters(registry);
  return registry;
}

Options parse(int argc, char** argv) {
  Options o;
  CLI::App app{"Trains one model under several modes: what each held and sent, and the same bits."};
  add_model_options(app, o);
  add_run_options(app, o);
  add_mesh_options(app, o.mesh);
  add_output_options(app, o);
  add_checkpoint_options(app, o.checkpoint);
  add_fake_options(app, o.fake);
  tools::parse_arguments(app, "ladder", argc, argv);
  if (o.reviews() && !o.data.empty()) {
    throw Error("--task reviews has reviews of its own: leave out --data");
  }
  for (const std::string& mode : o.modes) all_modes().check(mode);
  if (!o.checkpoint.folder.empty() && o.modes.size() != 1) {
    throw Error("--checkpoint keeps one run: take one mode, --modes " + o.modes.back());
  }
  if (o.fake.size > 0) {
    check_fake(o);
    o.world_size = o.fake.size;
    // Not over the figures of real ranks.
    if (app.count("--json") == 0) o.json = "out/fake_process_group.json";
  }
  set_hosts(o);
  if (o.micro_batches == 0) o.micro_batches = o.mesh.stages;
  // What is kept is trained for its weights; the figures of a run without communication would take
  // as long again. A rank of a mesh by itself would have another model.
  if (!o.checkpoint.folder.empty() || !o.checkpoint.resume.empty() || o.mesh.cell() > 1 ||
      o.fake.size > 0) {
    o.compute_alone = false;
  }
  if (!o.weights.empty()) o.weights_config = tools::read_config_text(o.weights);
  if (!o.weights.empty()) nn::llama_config_from_json(o.weights_config);  // refuses other models
  return o;
}

void check_mesh(const Options& o) {
  if (!o.link.empty() && o.world_size <= o.ranks_per_host) {
    throw Error(fmt::format(
        "--link is between hosts, and --ranks-per-host {} puts all {} ranks on one: take fewer",
        o.ranks_per_host, o.world_size));
  }
  const int cell = o.mesh.cell();
  if (o.world_size % cell == 0) return;
  throw Error(fmt::format(
      "--tp {} and --pp {}: there are {} ranks, which is no multiple of {}: take {} {}",
      o.mesh.tensor_ranks, o.mesh.stages, o.world_size, cell,
      o.fake.size > 0 ? "--fake-process-group" : "--nproc", (o.world_size / cell + 1) * cell));
}

tools::Json report_head(const Options& o) {
  const nn::LlamaConfig config = o.config();
  const auto element = static_cast<std::int64_t>(c10::elementSize(config.dtype));
  tools::Json report = {
      {"world_size", o.world_size},
      {"mesh",
       {{"data", o.data_ranks()}, {"pipeline", o.mesh.stages}, {"tensor", o.mesh.tensor_ranks}}},
      {"ranks_per_host", o.ranks_per_host},
      {"link", o.link},
      {"sequence_parallel", o.mesh.sequence_parallel},
      {"partition_activations", o.mesh.partition_activations},
      {"model", o.model_name()},
      {"parameters", config.parameters()},
      {"parameter_bytes", config.parameters() * element},
      {"task", o.task},
      {"dtype", o.dtype},
      {"device", o.device},
      {"optimizer", o.optimizer == "muon" ? "Muon" : "AdamW"},
      {"activation_checkpointing", o.activation_checkpointing},
      {"activations_on_host", o.activations_on_host},
      {"steps", o.steps},
      {"micro_batches", o.micro_batches},
      {"batch_size", o.batch},
      {"sequence_length", o.sequence_length},
      {"compute_seconds", nullptr},
      {"modes", tools::Json::array()},
  };
  if (o.fake.size > 0)
    report["fake_process_group"] = {{"size", o.fake.size}, {"rank", o.fake.rank}};
  return report;
}

}  // namespace zero::ladder
