#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include <tools/support/arguments.hpp>
#include <zero/base/error.hpp>

namespace zero::plan {
namespace {

// The options, and the words that a model is read from.
class CommandLine {
 public:
  CommandLine() {
    app_.option_defaults()->always_capture_default();
    add_model_and_run();
    add_mesh_and_hosts();
    add_machine();
  }

  Request read(int argc, const char* const* argv) {
    tools::parse_arguments(app_, "plan", argc, argv);
    r_.policy = policy(dtype_, optimizer_);
    r_.model = !weights_.empty() ? model_of_files(weights_)
               : parameters_ > 0 ? model_of_size(parameters_, layers_)
                                 : model_of(nn::preset(model_), model_);
    return r_;
  }

 private:
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

  void add_model_and_run() {
    auto* model = app_.add_option("--model", model_, "a preset: smollm2-135m, llama-1.5b, ...");
    auto* parameters = quantity("--parameters", parameters_, parse_count, "only their number, 7B");
    auto* weights = app_.add_option("--weights", weights_, "a folder of Hugging Face's, or a file");
    model->excludes(parameters)->excludes(weights);
    parameters->excludes(weights);
    count("--layers", layers_, nn::kMostLayers, "of --parameters")->needs(parameters);
    app_.add_option("--dtype", dtype_, "fp32 (4 + 4 + 8 bytes a parameter) or mixed (2 + 2 + 12)");
    app_.add_option("--optimizer", optimizer_, "adamw, momentum or sgd");
    count("--world-size,--nproc", r_.world_size, kMostRanks, "ranks");
    choice<Stage>("--stage", r_.stage, {"ddp", "zero1", "zero2", "zero3"}, "only this one");
    count("--batch", r_.batch, kLargestBatch, "samples a rank");
    count("--sequence,--seq-len", r_.sequence, kLongestSequence, "tokens of a sample");
    auto* recompute = app_.add_flag("--recompute", r_.recompute,
                                    "keep only the input of each layer for backward");
    app_.add_flag("--activations-on-host", r_.activations_on_host, "these inputs leave the device")
        ->needs(recompute);
    quantity("--memory", r_.memory, parse_memory, "of a rank, as in 24GB; exit code 3: none fits");
  }

  void add_mesh_and_hosts() {
    MeshRequest& mesh = r_.mesh;
    count("--tp", mesh.tensor, kMostRanks, "tensor ranks of a mesh, which share each layer");
    count("--pp", mesh.pipeline, kMostRanks, "stages of a pipeline, each with some of the layers");
    count("--shard-size", mesh.shards, kMostRanks, "data ranks that share model states (HSDP)");
    count("--micro-batches", mesh.micro_batches, kLargestBatch, "of a data rank's samples");
    choice<bool>("--pipeline-schedule", mesh.gpipe, {"1f1b", "gpipe"}, "1f1b unless named");
    auto* cut = app_.add_flag("--sequence-parallel", mesh.sequence_parallel, "by tensor ranks");
    app_.add_flag("--partition-activations", mesh.partition_activations, "that --recompute keeps")
        ->needs(app_.get_option("--recompute"))
        ->excludes(cut);
    HostRequest& hosts = r_.hosts;
    count("--ranks-per-host", hosts.ranks_per_host, kMostRanks, "compare HSDP and parts of ZeRO++");
    quantity("--host-bandwidth", hosts.bandwidth, parse_bandwidth, "to other hosts (10GB/s)");
    quantity("--quantize-bandwidth", hosts.quantize_bandwidth, parse_bandwidth,
             "bytes of values that a rank quantizes or dequantizes in a second (1000GB/s)");
  }

  void add_machine() {
    Machine& machine = r_.machine;
    quantity("--bandwidth", machine.bandwidth, parse_bandwidth, "a rank sends with (100GB/s)");
    quantity("--latency", machine.latency, parse_seconds, "of one collective (10us)");
    quantity("--flops", machine.flops, parse_flops, "that a rank attains (150TFLOP/s)");
    app_.add_option("--overhead", r_.break_even_share, "of compute, for the break-even batch")
        ->check(CLI::Range(1e-6, 1e6))
        ->check(tools::refuse_nan);
    auto* hosts = app_.get_option("--ranks-per-host");
    for (const char* other : {"--memory", "--stage", "--tp", "--pp", "--shard-size",
                              "--micro-batches", "--pipeline-schedule", "--sequence-parallel",
                              "--partition-activations", "--activations-on-host"}) {
      hosts->excludes(app_.get_option(other));
    }
    auto* on_host = app_.get_option("--activations-on-host");
    for (const char* mesh : {"--pp", "--pipeline-schedule"}) on_host->excludes(mesh);
  }

  CLI::App app_{"Says what a model needs under each stage, by formula, and which stage to take."};
  Request r_;
  std::string model_ = "smollm2-360m", weights_, dtype_ = "mixed", optimizer_ = "adamw";
  std::int64_t parameters_ = 0, layers_ = 0;
};

}  // namespace

Request read_options(int argc, const char* const* argv) { return CommandLine().read(argc, argv); }

}  // namespace zero::plan
