#include "options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <zero/data/reviews.hpp>
#include <zero/error.hpp>
#include <zero/report/ladder_report.hpp>
#include <zero/report/names.hpp>
#include <zero/train/registry.hpp>

namespace zero::ladder {
namespace {

void check_choice(const std::string& kind, const std::string& value,
                  const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) == known.end()) {
    throw Error(report::unknown_name_message(kind, value, known));
  }
}

void check(const Options& options) {
  train::Registry registry;
  train::register_all_chapters(registry);
  for (const std::string& mode : options.modes) registry.check(mode);
  train::ownership_from(options.ownership);
  check_choice("task", options.task, {"text", "reviews"});
  check_choice("dtype", options.dtype, {"fp32"});
  check_choice("device", options.device, {"cpu"});
  if (!options.model.empty()) check_choice("model", options.model, nn::preset_names());
  for (const std::string& path : options.data) {
    if (!std::filesystem::exists(path))
      throw Error(fmt::format("--data {}: no such file or folder", path));
  }
}

std::int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    file.ignore(1000, '\n');
  }
  return 0;
}

}  // namespace

nn::LlamaConfig Options::config() const {
  nn::LlamaConfig config = nn::preset(model);
  if (reviews()) config.classes = data::kReviewClasses;
  return config;
}

Options parse(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Trains one model under DDP, ZeRO-1, ZeRO-2 and ZeRO-3, checks that all end with the same "
      "bits, "
      "and prints what each rank held and sent."};
  app.add_option("--task", o.task, "text (language model) or reviews (5-class classifier)")
      ->capture_default_str();
  app.add_option("--model", o.model,
                 "tiny, smollm2-135m or smollm2-360m; without it the largest that fits");
  app.add_option("--data", o.data,
                 "text files or folders, or a CSV of reviews (label, text); without "
                 "it this project's own");
  app.add_option("--nproc", o.world_size, "ranks")->capture_default_str()->check(CLI::Range(1, 64));
  app.add_option("--steps", o.steps, "optimizer steps")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--seq-len", o.sequence_length, "tokens of a sample")
      ->capture_default_str()
      ->check(CLI::Range(2, 8192));
  app.add_option("--batch", o.batch, "samples a rank and step")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--modes", o.modes, "modes, for example ddp,zero1:naive,zero3")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--ownership", o.ownership, "size, count or offset")->capture_default_str();
  app.add_option("--dtype", o.dtype, "fp32")->capture_default_str();
  app.add_option("--device", o.device, "cpu")->capture_default_str();
  app.add_option("--lr", o.learning_rate, "AdamW's learning rate")->capture_default_str();
  app.add_option("--timeout", o.timeout_seconds, "longest wait for another rank, in seconds")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  app.add_option("--seed", o.seed, "of weights and data order")->capture_default_str();
  app.add_option("--json", o.json, "where the figures go")->capture_default_str();
  app.add_flag("!--no-compute-alone", o.compute_alone, "leave out the run without communication");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  check(o);
  return o;
}

std::int64_t needed_bytes(const Options& options) {
  const nn::LlamaConfig config = options.config();
  const std::int64_t model_states = 16 * config.parameters();
  // Logits, their gradient and the rest of the activations.
  const std::int64_t activations = options.batch * options.sequence_length *
                                   (3 * config.vocabulary + 40 * config.hidden * config.layers) * 4;
  const std::int64_t program = std::int64_t{300} << 20;
  return options.world_size * (model_states + activations + program);
}

void choose_model(Options& options) {
  const std::int64_t available = available_bytes();
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  if (!options.model.empty()) {
    if (needed_bytes(options) <= available) return;
    throw Error(
        fmt::format("{} on {} ranks needs about {:.1f} GiB under ddp and {:.1f} GiB are free; "
                    "take a smaller --model ({}), fewer ranks or a smaller batch",
                    options.model, options.world_size, gib(needed_bytes(options)), gib(available),
                    fmt::join(nn::preset_names(), ", ")));
  }
  for (const char* model : {"smollm2-360m", "smollm2-135m", "tiny"}) {
    options.model = model;
    if (needed_bytes(options) <= available) return;
    fmt::print(
        "{} needs about {:.1f} GiB and {:.1f} GiB are free: trying the next smaller model.\n",
        model, gib(needed_bytes(options)), gib(available));
  }
  throw Error(fmt::format("not even the model 'tiny' fits: {:.1f} GiB are free", gib(available)));
}

}  // namespace zero::ladder
