#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include <zero/base/error.hpp>
#include <zero/data/reviews.hpp>

#include "planner.hpp"
#include "shards.hpp"

namespace zero::plan {
namespace {

constexpr double kTrafficTolerance = 1e-6;

// How a mode of the ladder is planned, and what it holds at the peak that its stage need not:
// whole copies of gradients or parameters, and padded copies of the largest gradient.
struct KnownMode {
  Scheme scheme;
  Stage stage;
  bool whole_gradients = false;
  bool whole_parameters = false;
  bool flat_copy = false;
  bool placeholders = false;
  std::optional<Grouping> split = std::nullopt;  // every tensor over every rank, in these buffers
  bool by_leaf = false;  // gathers every layer that holds parameters by itself
};

KnownMode split(Scheme scheme, Stage stage, Grouping grouping = Grouping::kUnit) {
  return {.scheme = scheme,
          .stage = stage,
          .whole_parameters = scheme == Scheme::kZero3Kept,
          .split = grouping};
}

KnownMode split_by_leaf() {
  KnownMode mode = split(Scheme::kZero3, Stage::kZero3, Grouping::kTensor);
  mode.by_leaf = true;
  return mode;
}

using KnownModes = std::map<std::string, KnownMode, std::less<>>;

// Every stage of the engine in buckets; its variants differ in when they send and not in what.
KnownModes with_engine(KnownModes modes) {
  const std::pair<const char*, KnownMode> stages[] = {
      {"engine0", split(Scheme::kDdp, Stage::kDdp, Grouping::kBucket)},
      {"engine1", split(Scheme::kZero1, Stage::kZero1, Grouping::kBucket)},
      {"engine2", split(Scheme::kZero2, Stage::kZero2, Grouping::kBucket)},
      {"engine3", split(Scheme::kZero3, Stage::kZero3, Grouping::kBucket)},
  };
  for (const auto& [name, mode] : stages) {
    for (const char* variant : {"", ":overlap", ":on_demand", ":auto"}) {
      modes.emplace(fmt::format("{}{}", name, variant), mode);
    }
  }
  return modes;
}

const KnownModes& known_modes() {
  static const KnownModes modes = with_engine({
      {"ddp", {Scheme::kDdp, Stage::kDdp}},
      {"ddp:per_parameter", {Scheme::kDdp, Stage::kDdp}},
      {"ddp:flat", {.scheme = Scheme::kDdp, .stage = Stage::kDdp, .flat_copy = true}},
      {"zero1", {Scheme::kZero1, Stage::kZero1}},
      {"zero1:owner", {Scheme::kZero1, Stage::kZero1}},
      {"zero1:naive", {Scheme::kZero1Naive, Stage::kZero1}},
      {"zero2", {Scheme::kZero2, Stage::kZero2}},
      {"zero2:during", {Scheme::kZero2, Stage::kZero2}},
      {"zero2:after", {.scheme = Scheme::kZero2, .stage = Stage::kZero2, .whole_gradients = true}},
      {"zero2:placeholder",
       {.scheme = Scheme::kZero2Placeholder, .stage = Stage::kZero2, .placeholders = true}},
      {"zero3", {Scheme::kZero3, Stage::kZero3}},
      {"zero3:unit", {Scheme::kZero3, Stage::kZero3}},
      {"zero3:whole",
       {.scheme = Scheme::kZero3Kept, .stage = Stage::kZero3, .whole_parameters = true}},
      {"tensor_zero1", split(Scheme::kZero1, Stage::kZero1)},
      {"tensor_zero1:flat", split(Scheme::kZero1, Stage::kZero1)},
      {"tensor_zero1:per_parameter", split(Scheme::kZero1, Stage::kZero1, Grouping::kTensor)},
      {"tensor_zero1:naive", split(Scheme::kZero1Naive, Stage::kZero1)},
      {"tensor_zero2", split(Scheme::kZero2, Stage::kZero2)},
      {"tensor_zero2:flat", split(Scheme::kZero2, Stage::kZero2)},
      {"tensor_zero2:per_parameter", split(Scheme::kZero2, Stage::kZero2, Grouping::kTensor)},
      {"tensor_zero3", split(Scheme::kZero3, Stage::kZero3)},
      {"tensor_zero3:flat", split(Scheme::kZero3, Stage::kZero3)},
      {"tensor_zero3:per_parameter", split(Scheme::kZero3, Stage::kZero3, Grouping::kTensor)},
      {"tensor_zero3:leaf", split_by_leaf()},
      {"tensor_zero3:whole", split(Scheme::kZero3Kept, Stage::kZero3)},
  });
  return modes;
}

Model model_of_report(const ladder::LadderReport& report, const std::optional<Model>& given) {
  const std::vector<std::string>& presets = nn::preset_names();
  Model model;
  if (given) {
    model = *given;
  } else if (std::find(presets.begin(), presets.end(), report.model) != presets.end()) {
    nn::LlamaConfig config = nn::preset(report.model);
    if (report.task == "reviews") config.classes = data::kReviewClasses;
    model = model_of(config, report.model);
  } else {
    model = model_of_size(report.parameters);
  }
  if (model.parameters != report.parameters) {
    throw Error(
        fmt::format("the ladder trained {} parameters, but {} has {}: name the model that was "
                    "trained with --model or --weights",
                    report.parameters, model.name, model.parameters));
  }
  return model;
}

Request request_of(const ladder::LadderReport& report, Model model) {
  Request request;
  request.model = std::move(model);
  request.policy = fp32();
  request.world_size = report.world_size;
  request.batch = std::max<std::int64_t>(1, report.batch_size);
  request.sequence = std::max<std::int64_t>(1, report.sequence_length);
  return request;
}

double peak_bound(const KnownMode& mode, const Request& request) {
  const StagePlan plan =
      plan_stage(request, mode.stage, /*offloaded=*/false, request.world_size, 0);
  const std::int64_t copy = request.model.parameters * request.policy.parameter;
  std::int64_t bound = plan.total();
  if (mode.whole_gradients) bound += copy - plan.states.gradients;
  if (mode.whole_parameters) bound += copy - plan.states.parameters;
  if (mode.flat_copy) bound += copy;
  // While a buffer is whole, this rank's shard of it is there a second time.
  if (mode.split) bound += plan.states.parameters + plan.states.gradients;
  if (!mode.placeholders) return static_cast<double>(bound);
  std::int64_t largest = request.model.root + request.model.largest_unit();
  for (const TensorSize& tensor : request.model.tensors) {
    largest = &tensor == &request.model.tensors.front() ? tensor.elements
                                                        : std::max(largest, tensor.elements);
  }
  // One for every rank may be more than 63 bits count.
  return static_cast<double>(bound) + static_cast<double>(largest * request.policy.gradient) *
                                          static_cast<double>(request.world_size);
}

double share_of_ranks(std::int64_t elements, std::int64_t world_size) {
  return static_cast<double>(elements) / static_cast<double>(world_size);
}

// Bytes of model states, mean over ranks.
double state_bytes(const KnownMode& mode, const Request& request) {
  const std::int64_t n = request.world_size;
  const Policy& policy = request.policy;
  if (!mode.split) {
    return bytes_per_parameter(policy, mode.stage, n) *
           static_cast<double>(request.model.parameters);
  }
  const SplitSizes sizes = split_sizes(request.model, static_cast<int>(n), *mode.split);
  const bool shards_states = mode.stage != Stage::kDdp;
  const bool shards_gradients = shards_states && mode.stage != Stage::kZero1;
  const bool shards_parameters = mode.stage == Stage::kZero3;
  const auto bytes = [](std::int64_t size) { return static_cast<double>(size); };
  return bytes(policy.parameter) * share_of_ranks(sizes.total, shards_parameters ? n : 1) +
         bytes(policy.gradient) * (shards_gradients ? share_of_ranks(sizes.gradients, n)
                                                    : static_cast<double>(sizes.total)) +
         bytes(policy.optimizer) * share_of_ranks(request.model.parameters, shards_states ? n : 1);
}

// Bytes of gradients and parameters that a rank sends in a step, mean over ranks.
double sent_bytes(const KnownMode& mode, const Request& request) {
  const std::int64_t n = request.world_size;
  if (!mode.split) {
    const double kept =
        static_cast<double>(request.model.root) / static_cast<double>(request.model.parameters);
    return sent(mode.scheme, copies(request.model.parameters, request.policy), n, kept).total();
  }
  const SplitSizes sizes = split_sizes(request.model, static_cast<int>(n), *mode.split);
  // Leaves of the root are gathered like all others.
  const double kept =
      mode.by_leaf ? 0 : static_cast<double>(sizes.root) / static_cast<double>(sizes.total);
  const double again = static_cast<double>(mode.by_leaf ? 2 * sizes.used_twice : 0);
  return sent(mode.scheme, copies(sizes.total, request.policy), n, kept).total() +
         again * static_cast<double>(request.policy.parameter) * redundant_share(n);
}

double mean(const ladder::ModeRow& row, double ladder::RankRow::*value) {
  return ladder::spread(row, value).mean;
}

double mean_sent(const ladder::ModeRow& row) {
  return ladder::spread(row, &ladder::RankRow::sent_gradient_bytes).mean +
         ladder::spread(row, &ladder::RankRow::sent_parameter_bytes).mean;
}

double calculating_seconds(const ladder::ModeRow& row) {
  return mean(row, &ladder::RankRow::forward_seconds) +
         mean(row, &ladder::RankRow::backward_seconds);
}

void calibrate(const ladder::LadderReport& report, const Request& request, Check& check) {
  const ladder::ModeRow* ddp = ladder::ddp_row(report);
  if (ddp == nullptr) {
    check.notes.push_back(
        "step times are not predicted: the ladder ran without mode ddp, which they "
        "are calibrated with");
    return;
  }
  const double compute = calculating_seconds(*ddp);
  const double optimizer = mean(*ddp, &ladder::RankRow::optimizer_seconds);
  const double waiting = mean(*ddp, &ladder::RankRow::communication_seconds);
  const double bytes = mean_sent(*ddp);
  if (!(compute > 0) || !(optimizer > 0) || (bytes > 0 && !(waiting > 0))) {
    check.notes.push_back("step times are not predicted: mode ddp has no times");
    return;
  }
  Machine machine;
  machine.flops = 1;
  machine.flops = compute_seconds(request.model.parameters, request.tokens(), machine) / compute;
  machine.bandwidth = bytes > 0 ? bytes / waiting : machine.bandwidth;
  machine.latency = 0;
  check.machine = machine;
  check.optimizer_elements_per_second = static_cast<double>(request.model.parameters) / optimizer;
}

double step_seconds(const Check& check, const Request& request, const KnownMode& mode,
                    double bytes) {
  const Machine& machine = *check.machine;
  const std::int64_t ranks = mode.stage == Stage::kDdp ? 1 : request.world_size;
  const double elements =
      static_cast<double>(request.model.parameters) / static_cast<double>(ranks);
  return compute_seconds(request.model.parameters, request.tokens(), machine) +
         elements / check.optimizer_elements_per_second + communication_seconds(bytes, 0, machine);
}

ModeCheck check_mode(const ladder::ModeRow& row, const KnownMode& mode, const Request& request,
                     const Check& check) {
  ModeCheck result;
  result.mode = row.mode;
  result.states = {state_bytes(mode, request) / static_cast<double>(kMiB),
                   mean(row, &ladder::RankRow::parameter_mib) +
                       mean(row, &ladder::RankRow::gradient_mib) +
                       mean(row, &ladder::RankRow::optimizer_mib)};
  result.peak = {peak_bound(mode, request) / static_cast<double>(kMiB),
                 mean(row, &ladder::RankRow::peak_mib)};
  if (mode.scheme != Scheme::kZero3 || !request.model.tensors.empty()) {
    result.sent = {sent_bytes(mode, request), mean_sent(row)};
  }
  if (check.machine && result.sent) {
    result.step = {step_seconds(check, request, mode, result.sent->predicted),
                   mean(row, &ladder::RankRow::step_seconds)};
    result.calibrates = row.mode == "ddp";
  }
  return result;
}

void judge(const ModeCheck& mode, std::vector<std::string>& failures) {
  if (!(std::abs(mode.states.error()) <= ladder::kFormulaTolerance)) {
    failures.push_back(fmt::format("{}: {:.2f} MiB of model states predicted, {:.2f} measured",
                                   mode.mode, mode.states.predicted, mode.states.measured));
  }
  if (!(mode.peak.measured <= mode.peak.predicted)) {
    failures.push_back(fmt::format("{}: a peak of {:.2f} MiB is above its bound, {:.2f} MiB",
                                   mode.mode, mode.peak.measured, mode.peak.predicted));
  }
  if (mode.sent && !(std::abs(mode.sent->error()) <= kTrafficTolerance)) {
    failures.push_back(fmt::format("{}: {:.0f} bytes sent predicted, {:.0f} measured", mode.mode,
                                   mode.sent->predicted, mode.sent->measured));
  }
}

}  // namespace

double Compared::error() const {
  if (predicted == measured) return 0;
  return (predicted - measured) / measured;
}

Check check_against(const ladder::LadderReport& report, const std::optional<Model>& given) {
  if (report.modes.empty()) throw Error("the ladder's report has no mode to compare with");
  if (report.dtype != "fp32" || report.optimizer != "AdamW") {
    throw Error(fmt::format("the ladder trained {} with {}; only fp32 with AdamW is compared",
                            report.dtype, report.optimizer));
  }
  const Request request = request_of(report, model_of_report(report, given));
  check_request(request);
  Check check;
  check.title = fmt::format("{}: {} parameters, {} ranks, {} x {} tokens a rank, fp32, AdamW",
                            report.model, base::with_thousands(report.parameters),
                            report.world_size, request.batch, request.sequence);
  calibrate(report, request, check);
  for (const ladder::ModeRow& row : report.modes) {
    const auto known = known_modes().find(row.mode);
    if (known == known_modes().end()) {
      check.notes.push_back(fmt::format("mode {} is not one that the planner knows", row.mode));
      continue;
    }
    if (known->second.split && request.model.tensors.empty()) {
      check.notes.push_back(
          fmt::format("mode {} is not compared: its padding is not known without the sizes of all "
                      "tensors (--model or --weights)",
                      row.mode));
      continue;
    }
    check.modes.push_back(check_mode(row, known->second, request, check));
    judge(check.modes.back(), check.failures);
  }
  return check;
}

}  // namespace zero::plan
