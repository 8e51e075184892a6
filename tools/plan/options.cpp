#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <vector>

#include <zero/base/arguments.hpp>
#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

constexpr std::int64_t kMostRanks = kLargestWorldSize;

// The options, and the words that a model is read from.
class CommandLine {
 public:
  CommandLine() {
    app_.option_defaults()->always_capture_default();
    add_model_and_run();
    add_mesh_and_hosts();
    add_machine_and_report();
  }
  Options parse(int argc, char** argv);

 private:
  void add_model_and_run();
  void add_mesh_and_hosts();
  void add_machine_and_report();
  Model read_model() const;
  void check_json() const;

  // Reads an option's text into `value`; an error names the option first.
  template <class T, class Parse>
  CLI::Option* quantity(const char* option, T& value, Parse parse, const char* help) {
    const auto take = [option, &value, parse](const std::string& text) {
      try {
        value = parse(text);
      } catch (const Error& error) {
        throw Error(fmt::format("{}: {}", option, error.what()));
      }
    };
    return app_.add_option_function<std::string>(option, take, help);
  }
  // A whole number from 1 to `most`.
  template <class T>
  CLI::Option* count(const char* option, T& value, std::int64_t most, const char* help) {
    return app_.add_option(option, value, help)->check(CLI::Range(std::int64_t{1}, most));
  }
  // One of `names`, which are those of the values 0, 1, ... of an enum or a bool.
  template <class Enum, class T>
  void choice(const char* option, T& value, std::vector<std::string> names, const char* help) {
    const auto take = [&value, names](const std::string& text) {
      value = static_cast<Enum>(std::ranges::find(names, text) - names.begin());
    };
    app_.add_option_function<std::string>(option, take, help)->check(CLI::IsMember(names));
  }

  CLI::App app_{
      "Says what a model needs under DDP, ZeRO-1, ZeRO-2 and ZeRO-3 by formula: memory, bytes on "
      "the wire, time; and which stage to take."};
  Options o_;
  Request& r_ = o_.request;
  std::string model_ = "smollm2-360m", weights_, dtype_ = "mixed", optimizer_ = "adamw";
  std::int64_t parameters_ = 0, layers_ = 0;
};

void CommandLine::add_model_and_run() {
  auto* model = app_.add_option(
      "--model", model_, "tiny, llama-20m, smollm2-135m, smollm2-360m, llama-360m or llama-1.5b");
  auto* parameters = quantity("--parameters", parameters_, parse_count,
                              "only their number, as in 1.5e9, 7B or 360M");
  auto* weights = app_.add_option(
      "--weights", weights_, "a folder of Hugging Face's, a config.json or a .safetensors file");
  model->excludes(parameters)->excludes(weights);
  parameters->excludes(weights);
  count("--layers", layers_, nn::kMostLayers, "of --parameters; without it a guess")
      ->needs(parameters);
  app_.add_option("--dtype", dtype_,
                  "fp32 (4 + 4 + 8 bytes a parameter) or mixed (2 + 2 + 12; also bf16, fp16)");
  app_.add_option("--optimizer", optimizer_, "adamw, momentum or sgd");
  count("--world-size,--nproc", r_.world_size, kMostRanks, "ranks");
  choice<Stage>("--stage", r_.stage, {"ddp", "zero1", "zero2", "zero3"}, "only this one");
  count("--batch", r_.batch, kLargestBatch, "samples a rank");
  count("--sequence,--seq-len", r_.sequence, kLongestSequence, "tokens of a sample");
  app_.add_flag("--recompute", r_.recompute,
                "keep only the input of each layer and compute the rest again in backward");
  quantity("--memory", r_.memory, parse_memory,
           "of one rank, as in 24GB or 80GiB: which stage fits? The exit code is 3 if none");
}

void CommandLine::add_mesh_and_hosts() {
  MeshRequest& mesh = r_.mesh;
  count("--tp", mesh.tensor, kMostRanks, "tensor ranks, which share each layer, of a mesh");
  count("--pp", mesh.pipeline, kMostRanks, "stages of a pipeline, each with some of the layers");
  count("--shard-size", mesh.shards, kMostRanks, "data ranks that share model states (HSDP)");
  count("--micro-batches", mesh.micro_batches, kLargestBatch,
        "of a data rank's samples; without it 1, in a pipeline one for each sample");
  choice<bool>("--pipeline-schedule", mesh.gpipe, {"1f1b", "gpipe"}, "1f1b, unless gpipe is named");
  app_.add_flag("--sequence-parallel", mesh.sequence_parallel, "tensor ranks cut the sequence");
  app_.add_flag("--partition-activations", mesh.partition_activations,
                "tensor ranks divide the inputs that --recompute keeps");
  HostRequest& hosts = r_.hosts;
  count("--ranks-per-host", hosts.ranks_per_host, kMostRanks,
        "compare ZeRO-3, HSDP and the parts of ZeRO++ on hosts of so many ranks");
  quantity("--host-bandwidth", hosts.bandwidth, parse_bandwidth,
           "that a rank sends to other hosts with (10GB/s); --bandwidth is inside a host then");
  quantity("--quantize-bandwidth", hosts.quantize_bandwidth, parse_bandwidth,
           "bytes of values that a rank quantises or dequantises in a second (1000GB/s)");
  choice<Sending>("--collectives", hosts.sending, {"ring", "direct"},
                  "between hosts: ring (as NCCL), unless direct, to each other rank, is named");
}

void CommandLine::add_machine_and_report() {
  Machine& machine = r_.machine;
  quantity("--bandwidth", machine.bandwidth, parse_bandwidth, "that a rank sends with (100GB/s)");
  quantity("--latency", machine.latency, parse_seconds, "of one collective (10us)");
  quantity("--flops", machine.flops, parse_flops, "that a rank attains (150TFLOP/s)");
  app_.add_option("--overhead", r_.break_even_share, "of compute, for the break-even batch")
      ->check(CLI::Range(1e-6, 1e6))
      ->check(base::refuse_nan);
  quantity("--hybrid-threshold", r_.hybrid_threshold, parse_count,
           "parameters from which on a unit is under ZeRO-3 in the hybrid (100M)");
  auto* hybrid = app_.add_flag("--hybrid", r_.hybrid_report, "large units under ZeRO-3");
  app_.add_option("--json", o_.json, "write the plan to this file; - prints it");
  auto* scenarios = app_.add_flag("--scenarios", o_.scenarios,
                                  "a table: models, ranks, memories and links, and what to take");
  for (const char* other :
       {"--memory", "--stage", "--tp", "--pp", "--shard-size", "--ranks-per-host"}) {
    hybrid->excludes(app_.get_option(other));
    scenarios->excludes(app_.get_option(other));
  }
  for (const char* other : {"--model", "--parameters", "--weights", "--world-size", "--bandwidth",
                            "--batch", "--hybrid", "--json"}) {
    scenarios->excludes(app_.get_option(other));
  }
}

Model CommandLine::read_model() const {
  if (!weights_.empty()) return model_of_files(weights_);
  if (parameters_ > 0) return model_of_size(parameters_, layers_);
  return model_of(nn::preset(model_), model_);
}

// The plan must not be written over a file that it is made from.
void CommandLine::check_json() const {
  if (o_.json.empty() || o_.json == "-" || weights_.empty()) return;
  const std::filesystem::path place = base::place_of(o_.json);
  if (place == base::place_of(weights_) || place == base::place_of(weights_ + "/config.json")) {
    throw Error(
        fmt::format("--json {} would be written over what --weights {} reads: name another file",
                    o_.json, weights_));
  }
}

Options CommandLine::parse(int argc, char** argv) {
  base::parse_arguments(app_, "plan", argc, argv);
  check_json();
  r_.policy = policy(dtype_, optimizer_);
  r_.model = read_model();
  return o_;
}

}  // namespace

Options parse(int argc, char** argv) { return CommandLine().parse(argc, argv); }

}  // namespace zero::plan
