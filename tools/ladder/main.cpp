// The ladder: one model, one set of batches, every stage, and what each cost in memory and on the
// wire. Runs its ranks itself on this machine, or is one rank of torchrun, mpirun or srun.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include <tools/plots/memory_timeline.hpp>
#include <zero/base/error.hpp>
#include <zero/base/json.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/distributed/fake/fake_backend.hpp>
#include <zero/distributed/launch.hpp>
#include <zero/train/registry.hpp>

#include "checkpoints.hpp"
#include "device.hpp"
#include "ladder_report.hpp"
#include "mesh_run.hpp"
#include "options.hpp"
#include "output_paths.hpp"
#include "rank_run.hpp"
#include "samples.hpp"

namespace zero::ladder {
namespace {

// The ranks that this process runs: all of them on this machine, the one that a launcher made it,
// or one of a fake process group.
class Ranks {
 public:
  explicit Ranks(Options& options) : options_(options), environment_(dist::rank_environment()) {
    launch_.connect.timeout =
        std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_seconds * 1000));
    if (environment_) options.world_size = environment_->world_size;
    if (environment_ && fake()) {
      throw Error(fmt::format(
          "--fake-process-group is one process by itself, and a launcher started this one as rank "
          "{} of {}: start it without",
          environment_->rank, environment_->world_size));
    }
    launch_.world_size = environment_ || fake() ? 1 : options.world_size;
    if (environment_) {
      options.ranks_here = environment_->local_world_size;
      launch_.first_rank = environment_->rank;
      const auto cores = static_cast<int>(std::thread::hardware_concurrency());
      launch_.threads = std::max(1, cores / environment_->local_world_size);
    }
    if (options.device == "cuda") launch_.connect.backend = "nccl";
  }

  bool fake() const { return options_.fake_process_group > 0; }
  bool reports() const { return !environment_ || environment_->rank == 0; }

  /// Runs `mode` in fresh processes; gives the results of all ranks, or none where this process
  /// does not report.
  std::vector<RankResult> run(const std::string& mode, const Options& options) {
    return collect(mode, [&](dist::Communicator& communicator) {
      const bool shows = communicator.rank() == 0 || fake();
      return to_text(run_rank(communicator, mode, options, shows ? mode : ""));
    });
  }

  /// Every rank trains by itself, all at the same time: what a step takes when nothing is sent. The
  /// slowest rank's times.
  RankRow compute_alone() {
    RankRow slowest;
    Options options = options_;
    options.trace = options.memory_timeline = options.save = "";
    options.validation = 0;
    for (const RankResult& r : collect("compute", [&](dist::Communicator& communicator) {
           const std::unique_ptr<dist::Communicator> alone = dist::connect_alone(launch_.connect);
           return to_text(run_rank(*alone, options.alone_mode, options,
                                   communicator.rank() == 0 ? "compute alone" : ""));
         })) {
      if (r.row.step_seconds > slowest.step_seconds) slowest = r.row;
    }
    return slowest;
  }

 private:
  std::vector<RankResult> collect(const std::string& what, const dist::RankFunction& function) {
    // Results meet over the store, so that it makes no difference who started the ranks.
    const auto rank_main = [&](dist::Communicator& communicator) {
      dist::verify_same(communicator, "what to run next", what);
      std::vector<std::string> all = communicator.exchange(function(communicator));
      if (fake()) all.resize(1);  // the others are twins
      return base::Json(all).dump();
    };
    const auto exits = fake()         ? run_fake_rank(rank_main)
                       : environment_ ? run_own_rank(rank_main)
                                      : dist::launch_ranks(launch_, rank_main);
    dist::check_all_well(exits, fmt::format("mode {} failed", what));
    std::vector<RankResult> results;
    if (!reports()) return results;
    for (const auto& text : base::Json::parse(exits.front().result)) {
      results.push_back(from_text(text.get<std::string>()));
    }
    return results;
  }

  std::vector<dist::RankExit> run_own_rank(const dist::RankFunction& function) {
    dist::RankEnvironment environment = *environment_;
    dist::ConnectOptions connect = launch_.connect;
    // By number, not by mode: ranks that are to run different modes must meet to find out.
    connect.prefix = fmt::format("ladder/{}", runs_);
    // Rank 0's process of an earlier mode may still be giving up its port.
    if (!environment.store_is_served) environment.master_port += runs_;
    ++runs_;
    return dist::fork_processes(launch_, [&](int) {
      try {
        return function(*dist::connect(environment, connect));
      } catch (const std::exception& error) {
        throw Error(fmt::format("(of {}) {}", environment.world_size, message_of(error)));
      }
    });
  }

  std::vector<dist::RankExit> run_fake_rank(const dist::RankFunction& function) {
    return dist::fork_processes(launch_, [&](int) {
      dist::Communicator communicator =
          dist::connect_fake(options_.fake_rank, options_.fake_process_group,
                             /*source=*/{}, options_.ranks_per_host);
      return function(communicator);
    });
  }

  const Options& options_;
  std::optional<dist::RankEnvironment> environment_;
  dist::LaunchOptions launch_;
  int runs_ = 0;
};

// Among the ranks of each data axis, of which there are `axes`.
bool all_different(const std::vector<RankResult>& results, std::string RankResult::*digest,
                   int axes) {
  std::set<std::pair<int, std::string>> seen;
  for (const RankResult& r : results) seen.emplace(r.row.rank % axes, r.*digest);
  return seen.size() == results.size();
}

bool rounds(const std::string& mode) {
  train::Registry registry;
  train::register_all_chapters(registry);
  return registry.rounds(mode);
}

ModeRow to_row(const std::string& mode, const std::vector<RankResult>& results, int axes) {
  ModeRow row;
  row.mode = mode;
  row.rounds = rounds(mode);
  row.losses = results.front().losses;
  row.every_tensor_changed = true;
  row.batches_differed = all_different(results, &RankResult::batch_digest, axes);
  row.gradients_differed = all_different(results, &RankResult::gradient_digest, axes);
  for (const RankResult& r : results) {
    row.ranks.push_back(r.row);
    row.every_tensor_changed = row.every_tensor_changed && r.every_tensor_changed;
  }
  return row;
}

// Traffic has its own formula and no tolerance.
void check_traffic(const std::string& mode, const std::vector<RankResult>& results,
                   std::vector<std::string>& failures) {
  for (const RankResult& r : results) {
    if (r.skipped_steps == static_cast<std::int64_t>(r.losses.size())) continue;
    const auto compare = [&](const char* what, std::int64_t sent, std::int64_t predicted) {
      if (sent == predicted) return;
      failures.push_back(fmt::format("{}: rank {} sent {} bytes {} in a step, the formula says {}",
                                     mode, r.row.rank, sent, what, predicted));
    };
    compare("of gradients and parameters", r.row.sent_data_bytes, r.predicted_traffic);
    compare("to other stages", r.row.sent_pipeline_bytes, r.predicted_pipeline_traffic);
  }
}

// For a run that has done `first` of its steps.
LadderReport empty_report(const Options& options, std::int64_t first) {
  LadderReport report;
  report.world_size = options.world_size;
  report.stages = options.stages;
  report.tensor_ranks = options.tensor_ranks;
  report.pipeline_schedule = options.pipeline_schedule;
  report.sequence_parallel = options.sequence_parallel;
  report.partition_activations = options.partition_activations;
  if (options.fake_process_group > 0) report.fake_rank = options.fake_rank;
  report.model = options.model_name();
  const nn::LlamaConfig config = options.config();
  report.parameters = config.parameters();
  report.parameter_bytes =
      report.parameters * static_cast<std::int64_t>(c10::elementSize(config.dtype));
  report.task = options.task;
  report.dtype = options.dtype;
  report.device = options.device;
  report.activation_checkpointing = options.activation_checkpointing;
  report.optimizer = "AdamW";
  report.steps = options.steps - first;
  report.micro_batches = options.micro_batches;
  report.batch_size = options.batch;
  report.sequence_length = options.sequence_length;
  return report;
}

// Everything that can be known to be wrong before training, so that nothing is written then. Turns
// epochs into steps, and gives the steps that the run has behind it.
std::int64_t check_before_training(Options& options, bool reports) {
  const Samples samples = read_samples(options);
  if (options.epochs > 0) options.steps = options.epochs * samples.steps_per_epoch;
  const auto saved = check_checkpoints(options, samples);
  const std::int64_t first = saved ? saved->step : 0;
  if (!reports) return first;
  base::check_writable(options.json);
  if (!options.save.empty()) base::check_writable(options.save + "/config.json");
  if (!options.trace.empty()) base::check_writable(options.trace);
  if (!options.memory_timeline.empty()) base::check_writable(options.memory_timeline);
  const LadderReport run = empty_report(options, first);
  const std::string ranks = options.fake_process_group == 0
                                ? fmt::format("on {} ranks", run.world_size)
                                : fmt::format("as rank {} of {} in a fake process group",
                                              options.fake_rank, options.fake_process_group);
  fmt::print("{} as {} {}{}, {} steps of {}\n", run.model,
             options.reviews() ? "5-class classifier" : "language model", ranks, mesh_text(run),
             run.steps, batch_text(run));
  if (saved) fmt::print("{}\n", describe(*saved, options));
  if (!options.weights.empty()) {
    fmt::print("{}\n", ask_elsewhere([&] { return describe_weights(options); },
                                     "the weights could not be looked at"));
  }
  for (const std::string& note : samples.notes) fmt::print("note: {}\n", note);
  std::fflush(stdout);
  return first;
}

// What no column of the tables has: how fp16 got through its steps.
void add_loss_scales(const Options& options, const std::vector<RankResult>& first_ranks,
                     base::Json& json) {
  json["reduce_dtype"] = options.reduce_dtype;
  if (options.dtype != "fp16") return;
  for (std::size_t m = 0; m < first_ranks.size(); ++m) {
    const RankResult& r = first_ranks[m];
    json["modes"][m]["loss_scale"] = r.loss_scale;
    json["modes"][m]["skipped_steps"] = r.skipped_steps;
    fmt::print("{}: loss scale {} in the last step, {} of {} steps left out\n", options.modes[m],
               r.loss_scale, r.skipped_steps, r.losses.size());
  }
  std::fflush(stdout);
}

// What was held out has the same loss under every mode that does not round, to the last bit.
void add_validation(const Options& options, const std::vector<RankResult>& first_ranks,
                    base::Json& json, std::vector<std::string>& failures) {
  if (options.validation == 0) return;
  const base::Json& losses = first_ranks.front().validation;
  const base::Json* expected = nullptr;
  for (std::size_t m = 0; m < first_ranks.size(); ++m) {
    const base::Json& found = first_ranks[m].validation;
    json["modes"][m]["validation"] = found;
    if (rounds(options.modes[m])) continue;
    if (expected == nullptr) expected = &found;
    if (found == *expected) continue;
    failures.push_back(options.modes[m] + ": validation losses differ from the first mode's");
  }
  fmt::print("validation loss: {:.4f} at the start, {:.4f} at the end\n",
             losses.front().at("loss").get<double>(), losses.back().at("loss").get<double>());
}

void name_files(const Options& options) {
  fmt::print("figures: {}\n", options.json);
  if (!options.save.empty()) fmt::print("weights: {}\n", options.save);
  if (!options.checkpoint.empty()) fmt::print("checkpoint: {}\n", options.checkpoint);
  if (!options.trace.empty()) {
    fmt::print("traces of the last step: {} and so on; open them in https://ui.perfetto.dev\n",
               options.trace_file(options.modes.front(), /*rank=*/0));
  }
  std::cout.flush();
}

// What training leaves beside the rows of the report.
struct Trained {
  RankRow alone;
  std::vector<RankResult> first_ranks;  // of each mode
  base::Json memory_timelines = base::Json::array();
  std::vector<std::string> failures;
};

// Adds a row for each mode to `report`, on the rank that reports.
Trained train_modes(const Options& options, Ranks& ranks, LadderReport& report) {
  Trained trained;
  if (options.compute_alone) {
    trained.alone = ranks.compute_alone();
    report.compute_seconds = trained.alone.step_seconds;
  }
  for (std::size_t m = 0; m < options.modes.size(); ++m) {
    const std::string& mode = options.modes[m];
    Options one = options;
    if (m + 1 < options.modes.size()) one.save = "";  // the last one is saved
    const std::vector<RankResult> results = ranks.run(mode, one);
    if (!ranks.reports()) continue;
    report.modes.push_back(to_row(mode, results, options.stages * options.tensor_ranks));
    trained.memory_timelines.push_back(results.front().memory_timeline);
    check_traffic(mode, results, trained.failures);
    trained.first_ranks.push_back(results.front());
  }
  return trained;
}

int run(int argc, char** argv) {
  Options options = parse(argc, argv);
  use_device(options, argv);
  Ranks ranks(options);
  check_output_paths(options);
  choose_model(options);
  check_mesh(options);
  base::Json metadata = base::run_metadata(argc, argv);
  const std::int64_t first = check_before_training(options, ranks.reports());
  LadderReport report = empty_report(options, first);
  if (report.steps == 0) return 0;  // with --auto-resume, and said
  Trained trained = train_modes(options, ranks, report);
  if (!ranks.reports()) return 0;
  std::cout << "\n" << to_text(report, options.wide) << "\n";
  base::Json json = to_json(report);
  add_loss_scales(options, trained.first_ranks, json);
  add_validation(options, trained.first_ranks, json, trained.failures);
  if (options.compute_alone) {
    json["compute_alone"] = {{"mode", options.alone_mode},
                             {"forward_seconds", trained.alone.forward_seconds},
                             {"backward_seconds", trained.alone.backward_seconds},
                             {"optimizer_seconds", trained.alone.optimizer_seconds}};
  }
  json["run"] = metadata;
  base::write_json(options.json, json);
  name_files(options);
  if (!options.memory_timeline.empty()) {
    const plots::TimelineSubject subject{report.model, report.world_size, report.parameter_bytes};
    base::write_json(
        options.memory_timeline,
        plots::memory_timeline(subject, std::move(trained.memory_timelines), std::move(metadata)));
  }
  for (std::string& failure : verdict(report)) trained.failures.push_back(std::move(failure));
  for (const std::string& failure : trained.failures) log_error("FAILED " + failure);
  return trained.failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace zero::ladder

int main(int argc, char** argv) {
  return zero::run_program("ladder", [&] { return zero::ladder::run(argc, argv); });
}
