#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>

#include <tools/models/presets.hpp>
#include <zero/base/error.hpp>

#include "device.hpp"
#include "options.hpp"

// Sizes are doubles: a config.json and the command line can ask for more than 63 bits count.
namespace zero::ladder {
namespace {

// What a rank has in memory beside its tensors, in bytes, about.
constexpr double kProgramBytes = 300 << 20;

// The logits, their gradient and the rest, about. A part of each layer's is cut over the tensor
// axis (Korthikanti et al. 2022).
double activation_bytes(const Options& options) {
  const nn::LlamaConfig config = options.config();
  const int stages = options.mesh.stages, tensor_ranks = options.mesh.tensor_ranks;
  const std::int64_t kept =  // of a layer
      options.activation_checkpointing ? 1 : 10 + 30 / tensor_ranks;
  const std::int64_t layers = (config.layers + stages - 1) / stages;
  const std::int64_t a_token =
      3 * config.vocabulary / tensor_ranks + config.hidden * (40 + kept * layers);
  // Micro-batches whose backward a stage waits for.
  const std::int64_t in_flight = std::min<std::int64_t>(options.micro_batches, stages);
  return 4 * static_cast<double>(a_token) * static_cast<double>(in_flight) *
         static_cast<double>(options.batch * options.sequence_length);
}

// What all ranks here together need at the peak of ddp, about. A rank of a fake process group needs
// far less, and is not asked.
double needed_bytes(const Options& options) {
  if (options.fake.size > 0) return 0;
  const double besides = activation_bytes(options) + kProgramBytes;
  const nn::LlamaConfig config = options.config();
  // The first stage has a copy of the weight that the last one trains.
  const bool copies = options.mesh.stages > 1 && config.tied;
  const std::int64_t model_states =
      16 * config.parameters() + (copies ? 4 * config.vocabulary * config.hidden : 0);
  return options.local_ranks() *
         (static_cast<double>(model_states) / options.mesh.cell() + besides);
}

double available_bytes(const Options& options) {
  if (options.device != "cpu") return static_cast<double>(free_gpu_bytes(options.local_ranks()));
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return static_cast<double>(kib * 1024);
    file.ignore(1000, '\n');
  }
  return 0;
}

// "tiny on 2 ranks needs about 0.6 GiB and 0.5 GiB are free"
std::string need_text(const Options& options, double available) {
  constexpr double kGib = 1 << 30;
  return fmt::format("{} on {} ranks needs about {:.1f} GiB and {:.1f} GiB are free",
                     options.model_name(), options.world_size, needed_bytes(options) / kGib,
                     available / kGib);
}

}  // namespace

void choose_model(Options& options) {
  const double available = available_bytes(options);
  std::vector<std::string> models = {options.model};
  if (options.model.empty() && options.weights.empty()) {
    // SmolLM2's heads cannot be shared evenly.
    models = options.mesh.tensor_ranks > 1
                 ? std::vector<std::string>{"llama-360m", "tiny"}
                 : std::vector<std::string>{"smollm2-360m", "smollm2-135m", "tiny"};
  }
  for (const std::string& model : models) {
    options.model = model;
    if (needed_bytes(options) <= available) return;
    if (model == models.back()) break;
    fmt::print("{}: trying the next smaller model\n", need_text(options, available));
  }
  throw Error(fmt::format(
      "{}; take fewer ranks, a smaller --model ({}), a smaller --batch or a shorter --seq-len",
      need_text(options, available), fmt::join(tools::preset_names(), ", ")));
}

}  // namespace zero::ladder
