#include "ladder_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace zero::ladder {
namespace {

template <typename Value>
Spread spread_of(const ModeRow& mode, Value value) {
  if (mode.ranks.empty()) return {};
  Spread result{.mean = 0, .max = std::numeric_limits<double>::lowest()};
  for (const RankRow& rank : mode.ranks) {
    result.mean += static_cast<double>(value(rank));
    result.max = std::max(result.max, static_cast<double>(value(rank)));
  }
  result.mean /= static_cast<double>(mode.ranks.size());
  return result;
}

double relative_difference(double measured, double predicted) {
  if (!(predicted > 0)) return std::numeric_limits<double>::quiet_NaN();
  return (measured - predicted) / predicted;
}

// Digests are compared whole and shown short.
std::string shortened(const std::string& digest) {
  return digest.empty() ? "none" : digest.substr(0, 12);
}

void check_ranks(const LadderReport& report, const ModeRow& mode,
                 std::vector<std::string>& failures) {
  const int ranks = report.fake_rank ? 1 : report.world_size;
  if (std::ssize(mode.ranks) == ranks) return;
  failures.push_back(
      fmt::format("{}: {} of {} ranks reported", mode.mode, mode.ranks.size(), ranks));
}

void check_weights(const LadderReport& report, const ModeRow& mode,
                   std::vector<std::string>& failures) {
  const RankRow* first = nullptr;
  for (const RankRow& rank : mode.ranks) {
    if (rank.digest.empty()) {
      failures.push_back(fmt::format("{}: rank {} reported no digest", mode.mode, rank.rank));
    } else if (first == nullptr) {
      first = &rank;
    } else if (rank.digest != first->digest) {
      failures.push_back(
          fmt::format("{}: rank {} has other weights than rank {} (digest {}, not {})", mode.mode,
                      rank.rank, first->rank, shortened(rank.digest), shortened(first->digest)));
    }
  }
  const ModeRow* ddp = ddp_row(report);
  const auto digest = common_digest(mode);
  if (ddp != nullptr && !mode.rounds && digest && digest != common_digest(*ddp)) {
    failures.push_back(fmt::format("{}: weights differ from ddp's (digest {}, not {})", mode.mode,
                                   shortened(*digest),
                                   shortened(common_digest(*ddp).value_or(""))));
  }
}

void check_premises(const LadderReport& report, const ModeRow& mode,
                    std::vector<std::string>& failures) {
  const auto need = [&](bool holds, const char* otherwise) {
    if (holds) return;
    failures.push_back(fmt::format("{}: {}, so equal weights prove nothing", mode.mode, otherwise));
  };
  need(mode.every_tensor_changed, "a trainable tensor still has its first value");
  if (report.world_size == 1) return;
  need(mode.batches_differed, "two ranks trained on the same batch");
  need(mode.gradients_differed, "two ranks had the same gradients before the reduction");
}

// The formula speaks of model states. What else is alive (tables of positions, say) does not grow
// with the model and has a bound of its own, so that it weighs the same for a small model and a
// large one.
void check_total(const std::string& who, double total, double other, double most_other,
                 double predicted, std::vector<std::string>& failures) {
  const double measured = total - other;
  const double difference = relative_difference(measured, predicted);
  if (other > most_other) {
    failures.push_back(
        fmt::format("{}: {:.2f} MiB are alive that are no model states (at most {} MiB)", who,
                    other, most_other));
  }
  // A rank of many may own nothing.
  if (predicted == 0 && std::abs(measured) < 1e-9) return;
  if (std::isnan(difference)) {
    failures.push_back(fmt::format("{}: no total to compare: {:.2f} MiB measured, {:.2f} predicted",
                                   who, measured, predicted));
  } else if (std::abs(difference) > kFormulaTolerance) {
    failures.push_back(fmt::format(
        "{}: model states of {:.2f} MiB are {:.3f} % off the formula's {:.2f} MiB (at most {} %)",
        who, measured, 100 * difference, predicted, 100 * kFormulaTolerance));
  }
}

}  // namespace

Spread spread(const ModeRow& mode, double RankRow::*value) {
  return spread_of(mode, [value](const RankRow& rank) { return rank.*value; });
}

Spread spread(const ModeRow& mode, std::int64_t RankRow::*value) {
  return spread_of(mode, [value](const RankRow& rank) { return rank.*value; });
}

Spread sent_bytes(const ModeRow& mode) {
  return spread_of(mode, [](const RankRow& rank) { return rank.sent_bytes(); });
}

const ModeRow* ddp_row(const LadderReport& report) {
  const auto found = std::find_if(
      report.modes.begin(), report.modes.end(),
      [](const ModeRow& mode) { return mode.mode == "ddp" || mode.mode.starts_with("hddp"); });
  return found == report.modes.end() ? nullptr : &*found;
}

std::optional<double> ratio(const LadderReport& report, const ModeRow& mode) {
  const ModeRow* ddp = ddp_row(report);
  if (ddp == nullptr) return std::nullopt;
  return spread(mode, &RankRow::total_mib).mean / spread(*ddp, &RankRow::total_mib).mean;
}

double formula_difference(const ModeRow& mode) {
  return relative_difference(spread(mode, &RankRow::total_mib).mean,
                             spread(mode, &RankRow::formula_mib).mean);
}

std::optional<std::string> common_digest(const ModeRow& mode) {
  if (mode.ranks.empty() || mode.ranks.front().digest.empty()) return std::nullopt;
  const std::string& first = mode.ranks.front().digest;
  const bool same = std::all_of(mode.ranks.begin(), mode.ranks.end(),
                                [&](const RankRow& rank) { return rank.digest == first; });
  return same ? std::optional(first) : std::nullopt;
}

std::optional<bool> identical_to_ddp(const LadderReport& report, const ModeRow& mode) {
  const ModeRow* ddp = ddp_row(report);
  if (ddp == nullptr || mode.rounds || report.fake_rank) return std::nullopt;
  const auto digest = common_digest(mode);
  return digest && digest == common_digest(*ddp);
}

std::vector<std::string> verdict(const LadderReport& report) {
  std::vector<std::string> failures;
  if (report.modes.empty()) failures.push_back("no mode ran");
  for (const ModeRow& mode : report.modes) {
    check_ranks(report, mode, failures);
    if (!report.fake_rank) check_weights(report, mode, failures);
    check_premises(report, mode, failures);
    const auto says = [&](const char* text) { return mode.mode.find(text) != std::string::npos; };
    const bool has_groups =
        report.has_mesh() || says("shard_size=") || says("group_size=") || says(":by_rank");
    const double most_other =
        kLargestOtherMib + (has_groups ? kGroupBlockMib * report.world_size : 0);
    check_total(mode.mode, spread(mode, &RankRow::total_mib).mean,
                spread(mode, &RankRow::other_mib).mean, most_other,
                spread(mode, &RankRow::formula_mib).mean, failures);
    for (const RankRow& rank : mode.ranks) {
      check_total(fmt::format("{}, rank {}", mode.mode, rank.rank), rank.total_mib, rank.other_mib,
                  most_other, rank.formula_mib, failures);
    }
    if (mode.losses.empty() || !std::all_of(mode.losses.begin(), mode.losses.end(),
                                            [](double loss) { return std::isfinite(loss); })) {
      failures.push_back(fmt::format("{}: a loss is missing or not finite", mode.mode));
    }
  }
  return failures;
}

}  // namespace zero::ladder
