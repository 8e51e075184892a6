#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include <tools/models/presets.hpp>
#include <tools/support/arguments.hpp>
#include <zero/base/error.hpp>

#include "program.hpp"

namespace zero::plan {
namespace {

// An option whose text `parse` reads into `value`; an error names the option first.
template <class T, class Parse>
CLI::Option* quantity(CLI::App& app, const char* option, T& value, Parse parse, const char* help) {
  const auto take = [option, &value, parse](const std::string& text) {
    try {
      value = parse(text);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", option, error.what()));
    }
  };
  return app.add_option_function<std::string>(option, take, help);
}

// A whole number from 1 to `most`.
template <class T>
CLI::Option* count(CLI::App& app, const char* option, T& value, std::int64_t most,
                   const char* help) {
  return app.add_option(option, value, help)->check(CLI::Range(std::int64_t{1}, most));
}

// The words that a model is read from.
struct ModelWords {
  std::string preset = "smollm2-360m", dtype = "mixed";
  std::int64_t parameters = 0, layers = 0;
};

void add_model_and_run(CLI::App& app, Request& r, ModelWords& words) {
  auto* model = app.add_option("--model", words.preset, "a preset: smollm2-135m, llama-1.5b, ...");
  auto* parameters =
      quantity(app, "--parameters", words.parameters, parse_count, "only their number, 7B")
          ->excludes(model);
  count(app, "--layers", words.layers, nn::kMostLayers, "of --parameters")->needs(parameters);
  app.add_option("--dtype", words.dtype, "fp32 (4 + 4 + 8 bytes a parameter) or mixed (2 + 2 + 12)")
      ->check(CLI::IsMember({"fp32", "mixed"}));
  count(app, "--world-size,--nproc", r.world_size, kMostRanks, "ranks");
  count(app, "--batch", r.batch, kLargestBatch, "samples a rank");
  count(app, "--sequence,--seq-len", r.sequence, kLongestSequence, "tokens of a sample");
  auto* recompute =
      app.add_flag("--recompute", r.recompute, "keep only the input of each layer for backward");
  app.add_flag("--activations-on-host", r.activations_on_host, "these inputs leave the device")
      ->needs(recompute);
  quantity(app, "--memory", r.memory, parse_memory,
           "of a rank, as in 24GB; exit code 3: none fits");
}

void add_mesh_and_hosts(CLI::App& app, Request& r) {
  count(app, "--tp", r.mesh.tensor, kMostRanks, "tensor ranks of a mesh, which share each layer");
  count(app, "--pp", r.mesh.pipeline, kMostRanks, "stages of a pipeline, each some of the layers")
      ->excludes("--activations-on-host");
  count(app, "--shard-size", r.mesh.shards, kMostRanks,
        "data ranks that share model states (HSDP)");
  count(app, "--micro-batches", r.mesh.micro_batches, kLargestBatch, "of a data rank's samples");
  auto* hosts = count(app, "--ranks-per-host", r.hosts.ranks_per_host, kMostRanks,
                      "compare HSDP and parts of ZeRO++");
  for (const char* other :
       {"--memory", "--tp", "--pp", "--shard-size", "--micro-batches", "--activations-on-host"}) {
    hosts->excludes(app.get_option(other));
  }
  quantity(app, "--host-bandwidth", r.hosts.bandwidth, parse_bandwidth, "to other hosts (10GB/s)");
  quantity(app, "--quantize-bandwidth", r.hosts.quantize_bandwidth, parse_bandwidth,
           "bytes of values that a rank quantizes or dequantizes in a second (1000GB/s)");
}

void add_machine(CLI::App& app, Request& r) {
  quantity(app, "--bandwidth", r.machine.bandwidth, parse_bandwidth, "a rank sends with (100GB/s)");
  quantity(app, "--latency", r.machine.latency, parse_seconds, "of one collective (10us)");
  quantity(app, "--flops", r.machine.flops, parse_flops, "that a rank attains (150TFLOP/s)");
}

}  // namespace

Request read_options(int argc, const char* const* argv) {
  Request request;
  ModelWords words;
  CLI::App app{"Says what a model needs under each stage, by formula, and which stage to take."};
  app.option_defaults()->always_capture_default();
  add_model_and_run(app, request, words);
  add_mesh_and_hosts(app, request);
  add_machine(app, request);
  tools::parse_arguments(app, "plan", argc, argv);
  request.policy = words.dtype == "fp32" ? fp32() : mixed();
  request.model = words.parameters > 0 ? model_of_size(words.parameters, words.layers)
                                       : model_of(tools::preset(words.preset), words.preset);
  return request;
}

}  // namespace zero::plan
