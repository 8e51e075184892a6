#include "options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <zero/base/arguments.hpp>
#include <zero/base/error.hpp>
#include <zero/base/names.hpp>

namespace zero::plan {
namespace {

constexpr const char* kDefaultModel = "smollm2-360m";

// The words as they were typed; what they mean is found out afterwards, so that one place says what
// is wrong with them.
struct Words {
  std::string model, parameters, weights;
  std::string dtype = "mixed";
  std::string optimizer = "adamw";
  std::string stage, memory, unit;
  std::string bandwidth = "100GB/s";
  std::string latency = "10us";
  std::string flops = "150TFLOP/s";
  std::string threshold = "100M";
  std::int64_t layers = 0;
  bool recompute = false;
};

void add_model_options(CLI::App& app, Words& w) {
  auto* model = app.add_option("--model", w.model,
                               "tiny, smollm2-135m, smollm2-360m (default) or llama-1.5b");
  auto* parameters =
      app.add_option("--parameters", w.parameters, "only their number, as in 1.5e9, 7B or 360M");
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
  app.add_option("--stage", w.stage, "only ddp, zero1, zero2 or zero3");
  app.add_option("--batch", r.batch, "samples a rank")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, kLargestBatch));
  app.add_option("--sequence,--seq-len", r.sequence, "tokens of a sample")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, kLongestSequence));
  app.add_flag("--recompute", w.recompute,
               "keep only the input of each layer and compute the rest again in backward");
  app.add_option("--memory", w.memory,
                 "of one rank, as in 24GB or 80GiB: which stage fits? The exit code is 3 if none");
  app.add_option("--unit", w.unit, "MiB, GiB or GB, for what is printed");
}

void add_machine_options(CLI::App& app, Words& w, Request& r) {
  app.add_option("--bandwidth", w.bandwidth, "that a rank sends with")->capture_default_str();
  app.add_option("--latency", w.latency, "of one collective")->capture_default_str();
  app.add_option("--flops", w.flops, "that a rank attains")->capture_default_str();
  app.add_option("--overhead", r.break_even_share,
                 "communication over compute below which a batch breaks even")
      ->capture_default_str()
      ->check(CLI::Range(1e-6, 1e6));
  app.add_option("--hybrid-threshold", w.threshold,
                 "parameters from which on a unit is large enough for ZeRO-3 in the hybrid")
      ->capture_default_str();
}

void add_output_options(CLI::App& app, Options& o) {
  app.add_option("--json", o.json,
                 "write the plan as JSON to this file (./run draws memory against communication "
                 "beside it); - prints it");
}

template <class T>
T choice(const char* kind, const std::string& wanted,
         const std::vector<std::pair<std::string, T>>& all) {
  std::vector<std::string> known;
  for (const auto& [name, value] : all) {
    if (name == wanted) return value;
    known.push_back(name);
  }
  throw Error(base::unknown_name_message(kind, wanted, known));
}

// Names the option before what is wrong with its value.
template <class Parse>
auto value_of(const char* option, const std::string& text, Parse parse) {
  try {
    return parse(text);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", option, error.what()));
  }
}

Model read_model(const Words& w) {
  if (!w.weights.empty()) return model_of_files(w.weights);
  if (!w.parameters.empty()) {
    return model_of_size(value_of("--parameters", w.parameters, parse_count), w.layers);
  }
  const std::string name = w.model.empty() ? kDefaultModel : w.model;
  return model_of(nn::preset(name), name);
}

// The plan must not take the place of what it is made from.
void check_json(const Words& w, const Options& o) {
  if (o.json.empty() || o.json == "-" || w.weights.empty()) return;
  const std::filesystem::path place = base::place_of(o.json);
  if (place == base::place_of(w.weights) || place == base::place_of(w.weights + "/config.json")) {
    throw Error(
        fmt::format("--json {} would be written over what --weights {} reads: name another "
                    "file",
                    o.json, w.weights));
  }
}

void understand(const Words& w, Options& o) {
  Request& r = o.request;
  r.policy = policy(w.dtype, w.optimizer);
  if (!w.stage.empty()) {
    r.stage = choice<Stage>("stage", w.stage,
                            {{"ddp", Stage::kDdp},
                             {"zero1", Stage::kZero1},
                             {"zero2", Stage::kZero2},
                             {"zero3", Stage::kZero3}});
  }
  if (!w.unit.empty()) {
    r.unit =
        choice<Unit>("unit", w.unit, {{"MiB", Unit::kMiB}, {"GiB", Unit::kGiB}, {"GB", Unit::kGB}});
  }
  if (!w.memory.empty()) r.memory = value_of("--memory", w.memory, parse_memory);
  r.machine.bandwidth = value_of("--bandwidth", w.bandwidth, parse_bandwidth);
  r.machine.latency = value_of("--latency", w.latency, parse_seconds);
  r.machine.flops = value_of("--flops", w.flops, parse_flops);
  r.hybrid_threshold = value_of("--hybrid-threshold", w.threshold, parse_count);
  r.recompute = w.recompute ? Recompute::kLayers : Recompute::kNone;
  r.model = read_model(w);
}

}  // namespace

Options parse(int argc, char** argv) {
  Options o;
  Words words;
  CLI::App app{
      "Says what a model needs under DDP, ZeRO-1, ZeRO-2 and ZeRO-3 by formula: memory, bytes on "
      "the "
      "wire, time; and which stage to take."};
  add_model_options(app, words);
  add_run_options(app, words, o.request);
  add_machine_options(app, words, o.request);
  add_output_options(app, o);
  base::parse_arguments(app, "plan", argc, argv);
  check_json(words, o);
  understand(words, o);
  return o;
}

}  // namespace zero::plan
