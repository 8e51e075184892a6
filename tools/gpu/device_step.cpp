// Steps of a language model with random weights on one device: a plain loop, or the engine as one
// rank that calls NCCL as several do. The last line is JSON: what torch_step.py says of PyTorch.

#include <ATen/ops/randint.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include <tools/models/presets.hpp>
#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/nccl/nccl.hpp>
#include <zero/engine.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/cuda_memory.hpp>
#include <zero/nn/llama.hpp>
#include <zero/optim/adamw.hpp>
#include <zero/optim/master_weights.hpp>

namespace zero::gpu {
namespace {

constexpr int kWarmUp = 3;

struct Settings {
  std::string mode = "plain";
  std::string model = "smollm2-360m";
  std::string device = "cuda";
  std::int64_t batch = 8;
  std::int64_t length = 1024;
  int steps = 20;
  std::string trace;
};

// Kernels that `work` starts on the GPU. `trace`, if it is not empty, is a file for what it did.
std::int64_t launches_of(const std::function<void()>& work, const std::string& trace) {
  namespace profiler = torch::autograd::profiler;
  using libkineto::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<torch::profiler::impl::ActivityType> activities = {
      torch::profiler::impl::ActivityType::CPU, torch::profiler::impl::ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  work();
  const auto result = profiler::disableProfiler();
  if (!trace.empty()) result->save(trace);
  return std::ranges::count_if(result->events(), [](const auto& event) {
    return event.activityType() == static_cast<std::uint8_t>(ActivityType::CONCURRENT_KERNEL);
  });
}

// The model in bfloat16 with float32 master weights, and how it trains.
class Training {
 public:
  Training(const Settings& settings, at::Device device)
      : device_(device), communicator_(connect(device)), model_(make_model(settings.model)) {
    nn::SeededValues values(/*seed=*/1);
    nn::initialize_parameters(*model_, values);
    model_->to(device);
    const std::int64_t vocabulary = model_->config().vocabulary;
    at::manual_seed(1);
    const at::Tensor ids =
        at::randint(vocabulary, {settings.batch, settings.length + 1}, at::kLong).to(device);
    inputs_ = ids.narrow(1, 0, settings.length).contiguous();
    targets_ = ids.narrow(1, 1, settings.length).contiguous();
    const auto optimizer = optim::with_master_weights(optim::adamw({.learning_rate = 1e-4}));
    if (settings.mode == "plain") {
      plain_ = optimizer(model_->parameters());
      return;
    }
    const int stage = settings.mode.back() - '0';
    engine_.emplace(*model_, *communicator_, optimizer, EngineConfig{.stage = stage});
  }

  void step() {
    if (engine_) {
      loss_ = engine_->forward([this] { return loss_of_batch(); }, targets_.numel());
      engine_->backward(loss_);
      engine_->step();
      return;
    }
    model_->zero_grad();
    loss_ = loss_of_batch();
    loss_.backward();
    plain_->step();
  }

  float loss() const { return loss_.detach().item<float>(); }

  // Until the device has done all.
  void finish() const {
    if (device_.is_cuda()) c10::cuda::device_synchronize();
  }

 private:
  at::Tensor loss_of_batch() { return model_->loss(inputs_, targets_, targets_.numel()); }

  static std::unique_ptr<dist::Communicator> connect(at::Device device) {
    dist::ConnectOptions options;
    if (device.is_cuda()) {
      dist::enable_nccl({.device = {}, .works_alone = true});
      options.backend = "nccl";
    }
    return dist::connect_alone(options);
  }

  static std::shared_ptr<nn::Llama> make_model(const std::string& name) {
    nn::LlamaConfig config = tools::preset(name);
    config.dtype = at::kBFloat16;
    return std::make_shared<nn::Llama>(config);
  }

  at::Device device_;
  std::unique_ptr<dist::Communicator> communicator_;
  std::shared_ptr<nn::Llama> model_;
  at::Tensor inputs_, targets_;
  std::unique_ptr<optim::Optimizer> plain_;
  std::optional<Engine> engine_;
  at::Tensor loss_;
};

int run(int argc, char** argv) {
  Settings s;
  CLI::App app{"Steps of a language model with random weights on one device."};
  const std::vector<std::string> modes = {"plain", "engine0", "engine1", "engine2", "engine3"};
  app.add_option("--mode", s.mode)->capture_default_str()->check(CLI::IsMember(modes));
  app.add_option("--model", s.model)
      ->capture_default_str()
      ->check(CLI::IsMember(tools::preset_names()));
  app.add_option("--device", s.device)
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--batch", s.batch)->capture_default_str()->check(CLI::Range(1, 4096));
  app.add_option("--seq-len", s.length)->capture_default_str()->check(CLI::Range(2, 8192));
  app.add_option("--steps", s.steps)->capture_default_str()->check(CLI::Range(1, 10000));
  app.add_option("--trace", s.trace, "a Chrome trace of one step more");
  CLI11_PARSE(app, argc, argv);
  if (s.device == "cpu") {
    memory::install();
  } else {
    memory::count_cuda_blocks();
  }
  Training training(s, s.device == "cpu" ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0));
  for (int i = 0; i < kWarmUp; ++i) training.step();
  training.finish();
  memory::reset_peaks();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < s.steps; ++i) training.step();
  training.finish();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const double peak = static_cast<double>(memory::snapshot().total_peak) / (1 << 20);
  const auto step = [&] {
    training.step();
    training.finish();
  };
  const std::int64_t launches = launches_of(step, s.trace);
  const nlohmann::ordered_json said = {
      {"tokens/s", static_cast<double>(s.steps * s.batch * s.length) / took.count()},
      {"peak MiB", peak},
      {"launches", launches},
      {"loss", training.loss()}};
  fmt::print("{}\n", said.dump());
  return 0;
}

}  // namespace
}  // namespace zero::gpu

int main(int argc, char** argv) {
  return zero::run_program("device_step", [&] { return zero::gpu::run(argc, argv); });
}
