#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>

#include <tools/models/presets.hpp>
#include <tools/plan/planner.hpp>
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

// "tensor_zero3:whole" is stage 3.
plan::Stage stage_of(const std::string& mode) {
  const char digit = mode.substr(0, mode.find(':')).back();
  return digit >= '1' && digit <= '3' ? plan::kStages[digit - '0'] : plan::Stage::kDdp;
}

// Model states of the largest mode on one rank by itself, and parameters and gradients of the root
// and of a layer, one of each on its way.
double states_of_fake_rank(const Options& options) {
  const MeshOptions& mesh = options.mesh;
  const auto [part, frozen] = plan::part_of(plan::model_of(options.config(), options.model_name()),
                                            {.tensor = mesh.tensor_ranks, .pipeline = mesh.stages},
                                            options.fake.rank / mesh.tensor_ranks % mesh.stages);
  const plan::Policy policy = options.mixed() ? plan::mixed() : plan::fp32();
  std::int64_t states = 0;
  for (const std::string& mode : options.modes) {
    const std::int64_t group = mode.starts_with("hsdp") ? all_modes().config(mode).shard_size : 0;
    const std::int64_t sharing = group > 0 ? group : std::max(1, options.data_ranks());
    states = std::max(states,
                      plan::model_states(part.parameters, policy, stage_of(mode), sharing).total());
  }
  const std::int64_t transient = 4 * (2 * part.root + 4 * part.largest_unit());
  return static_cast<double>(states + frozen * policy.parameter + transient);
}

// What all ranks here together need at the peak of ddp, about; of a fake process group the one rank
// that runs, at that of the largest mode.
double needed_bytes(const Options& options) {
  const double besides = activation_bytes(options) + kProgramBytes;
  if (options.fake.size > 0) return states_of_fake_rank(options) + besides;
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
  const bool fake = options.fake.size > 0;
  return fmt::format("{} {} {} needs about {:.1f} GiB and {:.1f} GiB are free",
                     options.model_name(), fake ? "as rank" : "on",
                     fake ? fmt::format("{} of {}", options.fake.rank, options.fake.size)
                          : fmt::format("{} ranks", options.world_size),
                     needed_bytes(options) / kGib, available / kGib);
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
      "{}; take {}, a smaller --model ({}), a smaller --batch or a shorter --seq-len",
      need_text(options, available),
      options.fake.size > 0 ? "more ranks (of a group: --shard-size), --modes that shard more"
                            : "fewer ranks",
      fmt::join(tools::preset_names(), ", ")));
}

}  // namespace zero::ladder
