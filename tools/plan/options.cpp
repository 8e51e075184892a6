#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include <zero/base/arguments.hpp>
#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

const std::vector<std::string> kStageNames = {"ddp", "zero1", "zero2", "zero3"};

// What a request is made of once all of it is known.
struct Words {
  std::string model = "smollm2-360m";
  std::int64_t parameters = 0;
  std::string weights;
  std::string dtype = "mixed";
  std::string optimizer = "adamw";
  std::string stage;
  std::string schedule = "1f1b";
  std::string collectives = "ring";
  std::int64_t layers = 0;
  bool recompute = false;
};

// Reads an option's text into `value`; an error names the option first.
template <class T, class Parse>
CLI::Option* add_quantity(CLI::App& app, const char* option, T& value, Parse parse,
                          const char* help) {
  const auto take = [option, &value, parse](const std::string& text) {
    try {
      value = parse(text);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", option, error.what()));
    }
  };
  return app.add_option_function<std::string>(option, take, help);
}

void add_model_options(CLI::App& app, Words& w) {
  auto* model =
      app.add_option("--model", w.model,
                     "tiny, llama-20m, smollm2-135m, smollm2-360m, llama-360m or llama-1.5b")
          ->capture_default_str();
  auto* parameters = add_quantity(app, "--parameters", w.parameters, parse_count,
                                  "only their number, as in 1.5e9, 7B or 360M");
  auto* weights = app.add_option(
      "--weights", w.weights, "a folder of Hugging Face's, a config.json or a .safetensors file");
  model->excludes(parameters)->excludes(weights);
  parameters->excludes(weights);
  app.add_option("--layers", w.layers, "of a model given by --parameters; without it a guess")
      ->needs(parameters)
      ->check(CLI::Range(std::int64_t{1}, nn::kMostLayers));
  app.add_option("--dtype", w.dtype,
                 "fp32 (4 + 4 + 8 bytes a parameter) or mixed (2 + 2 + 12; also bf16, fp16)")
      ->capture_default_str();
  app.add_option("--optimizer", w.optimizer, "adamw, momentum or sgd")->capture_default_str();
}

void add_run_options(CLI::App& app, Words& w, Request& r) {
  app.add_option("--world-size,--nproc", r.world_size, "ranks")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, kLargestWorldSize));
  app.add_option("--stage", w.stage, "only this one")->check(CLI::IsMember(kStageNames));
  app.add_option("--batch", r.batch, "samples a rank")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, kLargestBatch));
  app.add_option("--sequence,--seq-len", r.sequence, "tokens of a sample")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, kLongestSequence));
  app.add_flag("--recompute", w.recompute,
               "keep only the input of each layer and compute the rest again in backward");
  add_quantity(app, "--memory", r.memory, parse_memory,
               "of one rank, as in 24GB or 80GiB: which stage fits? The exit code is 3 if none");
}

void add_mesh_options(CLI::App& app, Words& w, MeshRequest& mesh) {
  const auto add = [&](const char* option, std::optional<std::int64_t>& value, const char* help,
                       std::int64_t most = kLargestWorldSize) {
    app.add_option(option, value, help)->check(CLI::Range(std::int64_t{1}, most));
  };
  add("--tp", mesh.tensor, "tensor ranks: the ranks are a mesh, and share each layer");
  add("--pp", mesh.pipeline, "stages of a pipeline, each with some of the layers");
  add("--shard-size", mesh.shards,
      "data ranks that share the model states (HSDP); without it all of them");
  app.add_flag("--meshes", mesh.all,
               "compare all meshes of as many ranks; sizes that are given stay as they are");
  add("--micro-batches", mesh.micro_batches,
      "that a data rank cuts its samples into; without it 1, in a pipeline one for each sample",
      kLargestBatch);
  app.add_option("--pipeline-schedule", w.schedule, "of a pipeline: 1f1b or gpipe")
      ->capture_default_str()
      ->check(CLI::IsMember({"1f1b", "gpipe"}));
  app.add_flag("--sequence-parallel", mesh.sequence_parallel,
               "tensor ranks cut the residual stream along the sequence");
  app.add_flag("--partition-activations", mesh.partition_activations,
               "tensor ranks divide the inputs that --recompute keeps");
}

void add_host_options(CLI::App& app, Words& w, HostRequest& hosts) {
  app.add_option("--ranks-per-host", hosts.ranks_per_host,
                 "compare ZeRO-3, HSDP and the parts of ZeRO++ on hosts of so many ranks")
      ->check(CLI::Range(std::int64_t{1}, kLargestWorldSize));
  add_quantity(app, "--host-bandwidth", hosts.bandwidth, parse_bandwidth,
               "that a rank sends to other hosts with; --bandwidth is inside a host then")
      ->default_str("10GB/s");
  add_quantity(app, "--quantize-bandwidth", hosts.quantize_bandwidth, parse_bandwidth,
               "bytes of values that a rank quantises or dequantises in a second")
      ->default_str("1000GB/s");
  app.add_option("--collectives", w.collectives,
                 "between hosts: ring (as NCCL), or direct, to each other rank (as this library)")
      ->capture_default_str()
      ->check(CLI::IsMember({"ring", "direct"}));
}

void add_machine_options(CLI::App& app, Request& r) {
  Machine& machine = r.machine;
  add_quantity(app, "--bandwidth", machine.bandwidth, parse_bandwidth, "that a rank sends with")
      ->default_str("100GB/s");
  add_quantity(app, "--latency", machine.latency, parse_seconds, "of one collective")
      ->default_str("10us");
  add_quantity(app, "--flops", machine.flops, parse_flops, "that a rank attains")
      ->default_str("150TFLOP/s");
  app.add_option("--overhead", r.break_even_share,
                 "communication over compute below which a batch breaks even")
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1e6))
      ->check(base::refuse_nan);
  add_quantity(app, "--hybrid-threshold", r.hybrid_threshold, parse_count,
               "parameters from which on a unit is large enough for ZeRO-3 in the hybrid")
      ->default_str("100M");
  auto* hybrid =
      app.add_flag("--hybrid", r.hybrid_report,
                   "print the hybrid module by module and unit by unit: stage and bytes");
  for (const char* other :
       {"--memory", "--stage", "--meshes", "--tp", "--pp", "--shard-size", "--ranks-per-host"}) {
    hybrid->excludes(app.get_option(other));
  }
}

void add_output_options(CLI::App& app, Options& o) {
  auto* scenarios = app.add_flag("--scenarios", o.scenarios,
                                 "a table: models, ranks, memories and links, and what to take");
  app.add_option("--json", o.json,
                 "write the plan as JSON to this file (./run draws memory against communication "
                 "beside it); - prints it");
  for (const char* option : {"--model", "--parameters", "--weights", "--world-size", "--stage",
                             "--memory", "--bandwidth", "--batch", "--tp", "--pp", "--shard-size",
                             "--meshes", "--ranks-per-host", "--hybrid", "--json"}) {
    scenarios->excludes(app.get_option(option));
  }
}

Model read_model(const Words& w) {
  if (!w.weights.empty()) return model_of_files(w.weights);
  if (w.parameters > 0) return model_of_size(w.parameters, w.layers);
  return model_of(nn::preset(w.model), w.model);
}

// The plan must not take the place of what it is made from.
void check_json(const Words& w, const Options& o) {
  if (o.json.empty() || o.json == "-" || w.weights.empty()) return;
  const std::filesystem::path place = base::place_of(o.json);
  if (place == base::place_of(w.weights) || place == base::place_of(w.weights + "/config.json")) {
    throw Error(
        fmt::format("--json {} would be written over what --weights {} reads: name another file",
                    o.json, w.weights));
  }
}

void understand(const Words& w, Options& o) {
  Request& r = o.request;
  r.policy = policy(w.dtype, w.optimizer);
  for (const Stage stage : kStages) {
    if (w.stage == kStageNames[static_cast<std::size_t>(stage)]) r.stage = stage;
  }
  r.hosts.sending = w.collectives == "ring" ? Sending::kRing : Sending::kDirect;
  r.mesh.gpipe = w.schedule == "gpipe";
  r.recompute = w.recompute ? Recompute::kLayers : Recompute::kNone;
  r.model = read_model(w);
}

}  // namespace

Options parse(int argc, char** argv) {
  Options o;
  Words words;
  CLI::App app{
      "Says what a model needs under DDP, ZeRO-1, ZeRO-2 and ZeRO-3 by formula: memory, bytes on "
      "the wire, time; and which stage to take."};
  add_model_options(app, words);
  add_run_options(app, words, o.request);
  add_mesh_options(app, words, o.request.mesh);
  add_host_options(app, words, o.request.hosts);
  add_machine_options(app, o.request);
  add_output_options(app, o);
  base::parse_arguments(app, "plan", argc, argv);
  check_json(words, o);
  understand(words, o);
  return o;
}

}  // namespace zero::plan
