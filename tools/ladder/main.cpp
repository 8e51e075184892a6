// The ladder: one model, one set of batches, every stage, and what each cost in memory and on the
// wire. Runs its ranks itself on this machine, or is one rank of torchrun, mpirun or srun.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include <tools/support/fake_backend.hpp>
#include <tools/support/json.hpp>
#include <zero/base/atomic_file.hpp>
#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>

#include "checkpoints.hpp"
#include "device.hpp"
#include "ladder_report.hpp"
#include "options.hpp"
#include "rank_run.hpp"
#include "samples.hpp"

namespace zero::ladder {
namespace {

using tools::Json;

// The ranks that this process runs: all of them on this machine, the one that a launcher made it,
// or one of a fake process group.
class Ranks {
 public:
  explicit Ranks(Options& options) : options_(options), environment_(dist::rank_environment()) {
    launch_.connect.timeout =
        std::chrono::milliseconds(std::llround(options.timeout_seconds * 1000));
    if (options.device != "cpu") launch_.connect.backend = kOtherDevice.backend;
    launch_.world_size = environment_ || fake() ? 1 : options.world_size;
    if (!environment_) return;
    if (fake()) {
      throw Error("--fake-process-group is one process by itself: start it without a launcher");
    }
    options.world_size = environment_->world_size;
    options.ranks_here = environment_->local_world_size;
    launch_.first_rank = environment_->rank;
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    launch_.threads = std::max(1, cores / environment_->local_world_size);
  }

  bool reports() const { return !environment_ || environment_->rank == 0; }

  // Runs `mode` in fresh processes; gives what all ranks bring back, or nothing if this process
  // does not report.
  Json run(const std::string& mode, const Options& options) {
    return collect(mode, [&](dist::Communicator& communicator) {
      const bool shows = communicator.rank() == 0 || fake();
      return run_rank(communicator, mode, options, shows ? mode : "");
    });
  }

  // Every rank trains by itself, all at the same time: what a step takes if nothing is sent. The
  // row of the slowest rank, null if this process does not report.
  Json compute_alone() {
    Options options = options_;
    options.trace = options.save = "";
    Json slowest;
    for (const Json& result : collect("compute", [&](dist::Communicator& communicator) {
           const std::unique_ptr<dist::Communicator> alone = dist::connect_alone(launch_.connect);
           return run_rank(*alone, "ddp", options, communicator.rank() == 0 ? "compute alone" : "");
         })) {
      const Json& row = result["row"];
      if (slowest.is_null() || row["step_seconds"] > slowest["step_seconds"]) slowest = row;
    }
    return slowest;
  }

 private:
  bool fake() const { return options_.fake.size > 0; }

  Json collect(const std::string& what, const std::function<Json(dist::Communicator&)>& function) {
    // Results meet over the store, so that it makes no difference who started the ranks.
    const auto exits = start([&](dist::Communicator& communicator) {
      dist::verify_same(communicator, "what to run next", what);
      std::vector<std::string> all = communicator.exchange(function(communicator).dump());
      if (fake()) all.resize(1);  // the others are twins
      return fmt::format("[{}]", fmt::join(all, ","));
    });
    dist::check_all_well(exits, fmt::format("mode {} failed", what));
    return reports() ? Json::parse(exits.front().result) : Json::array();
  }

  std::vector<dist::RankExit> start(const dist::RankFunction& function) {
    if (!environment_ && !fake()) return dist::launch_ranks(launch_, function);
    const int run = runs_++;
    return dist::fork_processes(launch_, [&](int) {
      if (environment_) return run_own_rank(run, function);
      const FakeOptions& fake = options_.fake;
      auto rank = dist::connect_fake(fake.rank, fake.size, options_.ranks_per_host);
      return function(rank);
    });
  }

  std::string run_own_rank(int run, const dist::RankFunction& function) {
    dist::RankEnvironment environment = *environment_;
    dist::ConnectOptions connect = launch_.connect;
    // By number, not by mode: ranks that are to run different modes must meet to find out.
    connect.prefix = fmt::format("ladder/{}", run);
    // Rank 0's process of an earlier mode may still be giving up its port.
    if (!environment.store_is_served) environment.master_port += run;
    try {
      return function(*dist::connect(environment, connect));
    } catch (const std::exception& error) {
      throw Error(fmt::format("(of {}) {}", environment.world_size, message_of(error)));
    }
  }

  const Options& options_;
  std::optional<dist::RankEnvironment> environment_;
  dist::LaunchOptions launch_;
  int runs_ = 0;
};

// Everything that can be known to be wrong before training, so that nothing is written then. The
// report as far as it is known then.
Json check_before_training(Options& options, bool reports) {
  const Samples samples = read_samples(options);
  options.data_fingerprint = samples.dataset->fingerprint();
  const auto saved = check_checkpoints(options);
  Json report = report_head(options);
  report["steps"] = options.steps - (saved ? saved->step : 0);
  if (!reports) return report;
  fmt::print("{} as {} on {}, {} steps of {}\n", options.model_name(),
             options.reviews() ? "5-class classifier" : "language model", ranks_text(report),
             report["steps"].get<std::int64_t>(), batch_text(report));
  if (saved) {
    fmt::print("goes on after step {} of {}, saved by {} on {} rank{}\n", saved->step,
               options.checkpoint.resume, saved->mode, saved->world_size,
               saved->world_size == 1 ? "" : "s");
  }
  if (!options.weights.empty()) {
    fmt::print("{}\n", ask_elsewhere([&] { return describe_weights(options); },
                                     "the weights could not be looked at"));
  }
  for (const std::string& note : samples.notes) fmt::print("note: {}\n", note);
  std::fflush(stdout);
  return report;
}

// Whether weights come close to those of ddp only: what is sent is rounded, or the host updates for
// a GPU, whose kernels round otherwise.
bool rounds(const Options& options, const std::string& mode) {
  const bool on_gpu = options.device == kGpu.name;
  return all_modes().rounds(mode) || (on_gpu && all_modes().config(mode).offload != "none");
}

// Adds a row for each mode to `report` if this process reports.
void train_modes(const Options& options, Ranks& ranks, Json& report) {
  for (const std::string& mode : options.modes) {
    Options one = options;
    if (&mode != &options.modes.back()) one.save = "";  // the last one is saved
    const Json results = ranks.run(mode, one);
    if (!ranks.reports()) continue;
    report["modes"].push_back(mode_row(mode, rounds(options, mode), results, options.mesh.cell()));
  }
}

// Where files are.
void print_files(const Options& options) {
  fmt::print("figures: {}\n", options.json);
  if (!options.save.empty()) fmt::print("weights: {}\n", options.save);
  if (!options.checkpoint.folder.empty()) fmt::print("checkpoint: {}\n", options.checkpoint.folder);
  if (!options.trace.empty()) {
    fmt::print("traces of the last step: {} and so on; open them in https://ui.perfetto.dev\n",
               options.trace_file(options.modes.front(), /*rank=*/0));
  }
  std::fflush(stdout);
}

// Before the run, not after it.
void check_writable(const Options& o) {
  for (const std::string& file : {o.json, o.trace}) {
    if (!file.empty()) base::check_writable(file);
  }
  for (const std::string& folder : {o.save, o.checkpoint.folder}) {
    if (!folder.empty()) base::check_writable(folder + "/config.json");
  }
}

int run(int argc, char** argv) {
  Options options = parse(argc, argv);
  if (options.device == "cpu") {
    memory::install();
  } else {
    use_gpus(argv);
  }
  Ranks ranks(options);
  if (ranks.reports()) check_writable(options);
  choose_model(options);
  check_mesh(options);
  const Json metadata = tools::run_metadata(argc, argv);
  Json report = check_before_training(options, ranks.reports());
  if (options.compute_alone) {
    report["compute_alone"] = ranks.compute_alone();
    report["compute_seconds"] = report["compute_alone"]["step_seconds"];
  }
  train_modes(options, ranks, report);
  if (!ranks.reports()) return 0;
  derive(report);
  fmt::print("\n{}\n", to_text(report, options.wide));
  std::fflush(stdout);
  report["run"] = metadata;
  tools::write_json(options.json, report);
  print_files(options);
  const std::vector<std::string> failures = verdict(report);
  for (const std::string& failure : failures) log_error("FAILED " + failure);
  return failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace zero::ladder

int main(int argc, char** argv) {
  return zero::run_program("ladder", [&] { return zero::ladder::run(argc, argv); });
}
