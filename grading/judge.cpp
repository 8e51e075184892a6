#include "judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <tuple>

#include <zero/base/names.hpp>

#include "small_formulas.hpp"

namespace zero::exercise {
namespace {

using memory::Category;
using std::optional;
using std::string;

constexpr auto kGradient = static_cast<std::size_t>(dist::Purpose::kGradient);
constexpr auto kParameter = static_cast<std::size_t>(dist::Purpose::kParameter);

// "layer 0", "layers 0 and 2", "layers 0, 1 and 3".
string layers(const std::vector<int>& which) {
  string text = which.size() == 1 ? "layer " : "layers ";
  for (std::size_t i = 0; i < which.size(); ++i) {
    if (i > 0) text += i + 1 == which.size() ? " and " : ", ";
    text += std::to_string(which[i]);
  }
  return text;
}

// The smallest set of layers among `candidates` whose `bytes` add up to `wanted`, or nothing.
optional<std::vector<int>> layers_that_sum_to(std::int64_t wanted, const LayerBytes& bytes,
                                              const std::vector<int>& candidates) {
  optional<std::vector<int>> best;
  for (unsigned set = 1; set < 1U << candidates.size(); ++set) {
    std::vector<int> chosen;
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if ((set >> i & 1U) == 0) continue;
      chosen.push_back(candidates[i]);
      sum += bytes[static_cast<std::size_t>(candidates[i])];
    }
    if (sum == wanted && (!best || chosen.size() < best->size())) best = chosen;
  }
  return best;
}

// A rank, and what it should hold and send.
struct Rank {
  int chapter, ranks, rank;
  Expected expected;

  int sharing() const { return sharing_ranks(chapter, ranks); }
};

// The first mistake that `judge` finds in a step of a rank.
template <typename Judge>
optional<string> judge_steps(int chapter, const Run& run, const Judge& judge) {
  const auto ranks = static_cast<int>(run.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const Rank here{chapter, ranks, rank, expected(chapter, ranks, rank)};
    for (const StepBytes& step : run[static_cast<std::size_t>(rank)].steps) {
      if (auto text = judge(here, step)) return text;
    }
  }
  return std::nullopt;
}

// ---- the end of a program ----

// Where the text of the rank's error begins in its output; npos if it ended without one.
std::size_t error_begin(const dist::RankExit& exit) {
  if (exit.ok()) return string::npos;
  const string begin = fmt::format("rank {}: ", exit.rank);
  const std::size_t line = ("\n" + exit.output).rfind("\n" + begin);
  return line == string::npos ? exit.output.rfind(begin) : line;
}

// The first line of the rank's error.
string error_of(const dist::RankExit& exit) {
  const std::size_t begin = error_begin(exit);
  string text =
      begin == string::npos ? "" : exit.output.substr(exit.output.find(' ', begin + 5) + 1);
  text.resize(std::min({text.find('\n'), text.find("; start all ranks"),
                        text.find("; all ranks must"), text.size()}));
  return text;
}

// What only a pipeline does: messages and micro-batches.
optional<string> describe_exit_of_stage(const dist::RankExit& exit, const string& error) {
  if (exit.output.find("never waited on") != string::npos) {
    return fmt::format("rank {} starts a send that it never waits for", exit.rank);
  }
  if (error.find("ndefined") != string::npos) {
    return fmt::format("rank {} uses a tensor that it does not hold ({})", exit.rank, error);
  }
  if (error.find("_M_range_check") != string::npos) {
    return fmt::format("rank {} runs a micro-batch that does not exist ({})", exit.rank, error);
  }
  if (error.find("nothing from rank") == string::npos) return std::nullopt;
  return fmt::format(
      "rank {} waits forever {}", exit.rank,
      error.rfind("send", 0) == 0
          ? "until what it has sent is received: does the other rank wait for a send of its own "
            "(start a send, and wait for it later), or is a backward missing there?"
          : "for a message that the other rank does not send before it has received one: look at "
            "the order of both");
}

string describe_exit(const dist::RankExit& exit, int chapter) {
  const string error = error_of(exit);
  if (chapter == 9) {
    if (auto text = describe_exit_of_stage(exit, error)) return *text;
  }
  if (exit.output.find("never waited on") != string::npos) {
    return fmt::format("rank {} starts a collective that it never waits for", exit.rank);
  }
  const bool not_held = error.find("ndefined") != string::npos ||
                        error.find("have storage") != string::npos ||
                        error.find("for storage of size 0") != string::npos;
  if (not_held) {
    return fmt::format("rank {} uses a tensor that it does not hold ({}){}", exit.rank, error,
                       chapter < 3 ? ""
                                   : ": a weight is read in forward, in backward and by the "
                                     "digest; gather before each");
  }
  if (exit.killed) {
    return fmt::format("rank {} does not end: does it wait for a rank that has ended?", exit.rank);
  }
  if (exit.signal != 0)
    return fmt::format("rank {} was ended by signal {}", exit.rank, exit.signal);
  if (error.empty())
    return fmt::format("rank {} ends with exit code {}", exit.rank, exit.exit_code);
  if (error.find("nothing from rank") != string::npos) {
    return fmt::format("rank {} waits in a collective in which not all ranks take part", exit.rank);
  }
  if (std::smatch calls; std::regex_search(error, calls, std::regex(R"(rank \d+ is in .*)"))) {
    return fmt::format("ranks are in different collectives: {}", calls.str());
  }
  return error.rfind("ranks disagree", 0) == 0
             ? error
             : fmt::format("rank {} ends with an error: {}", exit.rank, error);
}

// ---- all ranks compute with the same weights ----

optional<string> judge_batches(const Run& run) {
  for (std::size_t rank = 1; rank < run.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      if (forward_of(run[rank], 1, 0)->input != forward_of(run[other], 1, 0)->input) continue;
      return fmt::format("ranks {} and {} have the same batch: seed it by the rank among all ranks",
                         other, rank);
    }
  }
  return std::nullopt;
}

bool sends(const RankLog& log, int step, const string& operation, std::int64_t bytes) {
  return std::any_of(log.events.begin(), log.events.end(), [&](const Event& e) {
    return e.kind == Event::Kind::kStart && e.step == step && e.operation == operation &&
           e.bytes == bytes;
  });
}

// Why the weight of `layer`, as step `step` left it, differs between ranks.
string cause_of_difference(int chapter, const Run& run, int step, int layer) {
  const std::int64_t bytes = layer_bytes()[static_cast<std::size_t>(layer)];
  const StepBytes& first = run[0].steps[static_cast<std::size_t>(step) - 1];
  if (chapter == 0 && sends(run[0], step, "reduce gradient", bytes)) {
    return "a reduce hands the average to one rank only";
  }
  if (chapter == 0 && first.sent[kGradient] == 0 && first.sent[kParameter] == 0) {
    return "nothing is sent, so each rank trains by itself";
  }
  if (chapter == 0 && !sends(run[0], step, "all_reduce gradient", bytes)) {
    return fmt::format("the gradient of layer {} is not averaged", layer);
  }
  if ((chapter == 1 || chapter == 2) && !sends(run[0], step, "broadcast parameter", bytes)) {
    return fmt::format("after the update of layer {} its owner does not broadcast it", layer);
  }
  const int sharing = sharing_ranks(chapter, static_cast<int>(run.size()));
  if (chapter == 6 && !sends(run[0], step, "all_reduce gradient",
                             shard_bytes(sharing)[static_cast<std::size_t>(layer)])) {
    return "the groups' gradients are not averaged: between ranks with the same shard an "
           "all-reduce of it is missing";
  }
  return "ranks update it differently, or the new weight does not reach all of them";
}

optional<string> judge_agreement(int chapter, const Run& run) {
  for (std::size_t rank = 1; rank < run.size(); ++rank) {
    for (int step = 1; step <= kSteps; ++step) {
      for (int layer = 0; layer < kLayers; ++layer) {
        const Event* const one = forward_of(run[0], step, layer);
        const Event* const other = forward_of(run[rank], step, layer);
        if (one->digest == other->digest) continue;
        if (step == 1) {
          return fmt::format("ranks 0 and {} begin with different weights of layer {}", rank,
                             layer);
        }
        return fmt::format("in step {} ranks 0 and {} compute layer {} with different weights: {}",
                           step, rank, layer, cause_of_difference(chapter, run, step - 1, layer));
      }
    }
    if (run[rank].digest != run[0].digest) {
      return fmt::format(
          "ranks 0 and {} end with different weights: the last update does not reach all", rank);
    }
  }
  return std::nullopt;
}

// ---- bytes at rest ----

struct Kind {
  Category category;
  std::int64_t Expected::*held;
  const char* tensors;  // "the moments"
  const char* states;   // "optimizer states"
};

constexpr Kind kKinds[] = {
    {Category::kParameters, &Expected::parameters, "the weight", "parameters"},
    {Category::kGradients, &Expected::gradients, "the gradient", "gradients"},
    {Category::kOptimizer, &Expected::optimizer, "the moments", "optimizer states"}};

std::vector<int> layers_where(int ranks, int rank, bool owned) {
  std::vector<int> which;
  for (int layer = 0; layer < kLayers; ++layer) {
    if ((layer % ranks == rank) == owned) which.push_back(layer);
  }
  return which;
}

const std::vector<int> kAllLayers = {0, 1, 2, 3};

LayerBytes times(LayerBytes bytes, std::int64_t factor) {
  for (std::int64_t& b : bytes) b *= factor;
  return bytes;
}

// What `difference` bytes too many, or too few, of a category are where each layer has an owner.
optional<string> explain_whole_layers(int ranks, int rank, const Kind& kind,
                                      const LayerBytes& whole, std::int64_t difference) {
  const bool too_much = difference > 0;
  const auto candidates = layers_where(ranks, rank, /*owned=*/!too_much);
  const auto which = layers_that_sum_to(std::abs(difference), whole, candidates);
  if (!which) return std::nullopt;
  return fmt::format("rank {} {} {} of {}: {}{}", rank, too_much ? "still holds" : "does not hold",
                     kind.tensors, layers(*which), too_many(difference),
                     too_much && kind.category == Category::kGradients
                         ? " (zeros, and a view of a tensor, take as much room as the tensor)"
                         : "");
}

// The same where each rank has a shard of each layer.
optional<string> explain_shards(int ranks, int rank, const Kind& kind, const LayerBytes& whole,
                                const LayerBytes& shard, std::int64_t difference) {
  std::int64_t owned = 0;  // as in chapter 03
  LayerBytes rest{}, rest_padded{};
  for (std::size_t i = 0; i < kLayers; ++i) {
    if (static_cast<int>(i) % ranks == rank) owned += whole[i];
    rest[i] = whole[i] - shard[i];
    rest_padded[i] = (ranks - 1) * shard[i];
  }
  if (ranks > 1 && owned == sum_of(shard) + difference) {
    return fmt::format("rank {} holds {} of whole layers, not a shard of each layer: {}", rank,
                       kind.tensors, too_many(difference));
  }
  for (const LayerBytes& bytes : {rest, rest_padded}) {
    const auto which = layers_that_sum_to(difference, bytes, kAllLayers);
    if (!which) continue;
    return fmt::format("rank {} holds {} of {} whole, not a shard only: {}", rank, kind.tensors,
                       layers(*which), too_many(difference));
  }
  return std::nullopt;
}

string explain_rest(const Rank& at, const Kind& kind, std::int64_t difference) {
  const std::int64_t copies = kind.category == Category::kOptimizer ? 2 : 1;
  const LayerBytes whole = times(layer_bytes(), copies);
  const int sharing = at.sharing();
  const LayerBytes shard = times(shard_bytes(sharing), copies);
  if (at.chapter == 6 && sum_of(shard) + difference == copies * sum_of(shard_bytes(at.ranks))) {
    return fmt::format("rank {} holds {} cut over all {} ranks, not over the {} of its group: {}",
                       at.rank, kind.tensors, at.ranks, sharing, too_many(difference));
  }
  const auto text =
      at.chapter <= 3 ? explain_whole_layers(at.ranks, at.rank, kind, whole, difference)
                      : explain_shards(sharing, at.rank % sharing, kind, whole, shard, difference);
  return text.value_or(fmt::format("rank {} holds {} at the end of a step", at.rank,
                                   too_many(difference, kind.states)));
}

optional<string> judge_rest(int chapter, const Run& run, const References& references) {
  for (const Kind& kind : kKinds) {
    auto text =
        judge_steps(chapter, run, [&](const Rank& at, const StepBytes& step) -> optional<string> {
          const std::int64_t difference = step.held_as(kind.category) - at.expected.*kind.held;
          if (difference == 0) return std::nullopt;
          return explain_rest(at, kind, difference);
        });
    if (text) return text;
  }
  // A tensor that is not counted as one of these. Activations are the same in all programs.
  constexpr std::int64_t kSmall = 256;
  for (std::size_t rank = 0; rank < run.size(); ++rank) {
    for (std::size_t s = 0; s < kSteps; ++s) {
      const std::int64_t more = run[rank].steps[s].held_as(Category::kOther) -
                                references.ddp[rank].steps[s].held_as(Category::kOther);
      if (more <= kSmall) continue;
      return fmt::format(
          "rank {} holds {} bytes more than DDP does in tensors that are not counted(): is "
          "something kept that should be dropped?",
          rank, base::with_thousands(more));
    }
  }
  return std::nullopt;
}

// ---- bytes at the peak ----

string explain_parameters_peak(const Rank& at, const StepBytes& step) {
  const std::int64_t enough = at.expected.parameters_peak - at.expected.parameters;
  const std::int64_t gathered = step.peak_as(Category::kParameters) - at.expected.parameters;
  if (gathered < enough) {
    return fmt::format(
        "rank {} never holds as many bytes of parameters as it computes with ({} fewer): is a "
        "gathered weight not counted(…, kParameters)?",
        at.rank, base::with_thousands(enough - gathered));
  }
  const bool cut = at.chapter >= 4;
  const auto which = layers_that_sum_to(
      gathered, cut ? times(shard_bytes(at.sharing()), at.sharing()) : layer_bytes(),
      cut ? kAllLayers : layers_where(at.ranks, at.rank, /*owned=*/false));
  const string held =
      which ? fmt::format("the whole weights of {} at once", layers(*which))
            : fmt::format("{} bytes of gathered weights where {} are enough",
                          base::with_thousands(gathered), base::with_thousands(enough));
  const bool gathers_once =
      step.sent[kParameter] * 2 == at.expected.parameters_sent && at.ranks > 1;
  const char* const cause =
      gathers_once ? "each is gathered once and kept until backward; drop it after forward and "
                     "gather it again"
      : at.chapter == 6 && gathered * at.sharing() == enough * at.ranks
          ? "the other groups have the same shards; gather inside the group"
      : at.chapter == 5
          ? "start a gather one layer ahead, not more, and drop each weight after its layer"
          : "drop each weight as soon as its layer has computed";
  return fmt::format("at the peak rank {} holds {}: {}", at.rank, held, cause);
}

optional<string> judge_peak(const Rank& at, const StepBytes& step) {
  if (step.peak_as(Category::kParameters) != at.expected.parameters_peak) {
    return explain_parameters_peak(at, step);
  }
  const std::int64_t gradients = step.peak_as(Category::kGradients) - at.expected.gradients_peak;
  if (gradients > 0) {
    return fmt::format(
        "at the peak rank {} holds {}: {}", at.rank, too_many(gradients, "gradients"),
        at.chapter == 5 ? "only each layer's whole gradient and its shard are needed, and of one "
                          "layer the gradient as it was made"
        : at.chapter == 4 || at.chapter == 6
            ? "one layer's whole gradient at a time is enough, as it was made and with "
              "its zeros; drop both when it is reduced"
            : "drop each gradient as soon as it is reduced, not after backward");
  }
  const std::int64_t optimizer = step.peak_as(Category::kOptimizer) - at.expected.optimizer;
  if (optimizer == 0) return std::nullopt;
  return fmt::format("at the peak rank {} holds {}", at.rank,
                     too_many(optimizer, "optimizer states"));
}

// Of a program whose backward autograd runs.
optional<string> judge_joint_peak(const Rank& at, const StepBytes& step) {
  const std::int64_t difference = step.states_peak - at.expected.states_peak;
  if (difference == 0) return std::nullopt;
  return fmt::format(
      "at the peak rank {} holds {}: {}", at.rank,
      too_many(difference, "weights, gradients and optimizer states together"),
      difference < 0 ? "a gradient is made while its weight is there; count it before you drop the "
                       "weight"
                     : "of the layers of other ranks, one weight and its gradient are enough");
}

// ---- bytes sent ----

// Which of chapter 06's two reductions is wrong, if `sent` bytes of gradients say so.
string explain_groups(const Rank& at, const std::vector<Event>& events, std::int64_t sent) {
  const LayerBytes shard = shard_bytes(at.sharing());
  const std::int64_t inside = at.expected.gradients_sent - at.expected.gradients_sent_between;
  std::int64_t over_all_ranks = 0;
  for (const std::int64_t bytes : shard) {
    over_all_ranks += all_reduce_bytes(bytes / 4, at.ranks, at.rank);
  }
  const bool whole = std::any_of(events.begin(), events.end(), [&](const Event& event) {
    return event.operation == "all_reduce gradient" && event.bytes > std::ranges::max(shard);
  });
  if (whole) {
    return ": a whole gradient is all-reduced; reduce-scatter it inside the group first, then only "
           "a shard travels between groups";
  }
  if (sent == inside + over_all_ranks) {
    return ": an all-reduce over all ranks adds up different shards; it belongs between the ranks "
           "with the same shard";
  }
  if (sent == at.expected.gradients_sent_between) {
    return ": inside a group nothing is reduced, and its ranks have different batches too";
  }
  return "";
}

string explain_gradients_sent(const Rank& at, const Run& run, std::int64_t sent) {
  const string begin = fmt::format("rank {} sends {} in a step", at.rank,
                                   too_many(sent - at.expected.gradients_sent, "gradients"));
  const std::vector<Event>& events = run[static_cast<std::size_t>(at.rank)].events;
  if (at.chapter == 6) return begin + explain_groups(at, events, sent);
  const bool all_reduces = std::any_of(events.begin(), events.end(), [](const Event& event) {
    return event.operation == "all_reduce gradient";
  });
  if (at.chapter >= 1 && all_reduces) {
    return begin + ": an all-reduce hands the average to all ranks, and only " +
           (at.chapter >= 4 ? "one shard of it is needed on each" : "the owner needs it");
  }
  const bool sends_weights = std::any_of(events.begin(), events.end(), [](const Event& event) {
    return event.operation == "broadcast gradient" || event.operation == "all_gather gradient";
  });
  if (at.chapter >= 1 && sends_weights) {
    return begin + ": a weight travels as Purpose::kParameter, not as kGradient";
  }
  if (at.chapter == 0 && sent == 0) {
    return begin +
           ": gradients must be averaged before the update; averaging weights is not the same";
  }
  if (at.chapter == 0 && !all_reduces) {
    return begin + ": use all_reduce, in which all ranks send the same";
  }
  return begin;
}

string explain_parameters_sent(const Rank& at, std::int64_t sent) {
  const string begin = fmt::format("rank {} sends {} in a step", at.rank,
                                   too_many(sent - at.expected.parameters_sent, "parameters"));
  if (at.chapter == 0) return begin + ": DDP averages gradients and sends no weights";
  const std::int64_t times_all = (at.ranks - 1) * sum_of(layer_bytes());
  if (at.chapter <= 2 && at.rank == 0 && sent == times_all) {
    return begin + ": it broadcasts all layers, not only those that it owns";
  }
  if (at.chapter >= 3 && sent * 2 == 3 * at.expected.parameters_sent) {
    return begin + ": the next gather brings the new weight, so nothing is sent after the update";
  }
  return begin;
}

optional<string> judge_traffic(const Rank& at, const Run& run, const StepBytes& step) {
  if (step.sent[kGradient] != at.expected.gradients_sent) {
    return explain_gradients_sent(at, run, step.sent[kGradient]);
  }
  if (step.sent[kParameter] != at.expected.parameters_sent) {
    return explain_parameters_sent(at, step.sent[kParameter]);
  }
  const std::int64_t other =
      step.sent_as(dist::Purpose::kControl) + step.sent_as(dist::Purpose::kSetup);
  if (other == 0) return std::nullopt;
  return fmt::format("rank {} sends {} bytes that are neither gradients nor parameters", at.rank,
                     base::with_thousands(other));
}

// ---- the weights are those of DDP ----

// The layers whose weight in step `step` differs from that of `other`.
std::vector<int> differing(const RankLog& log, const RankLog& other, int step) {
  std::vector<int> which;
  for (int layer = 0; layer < kLayers; ++layer) {
    if (forward_of(log, step, layer)->digest != forward_of(other, step, layer)->digest) {
      which.push_back(layer);
    }
  }
  return which;
}

// True if the first update comes before the first all-reduce.
bool averages_after_update(const RankLog& log) {
  for (const Event& event : log.events) {
    if (event.kind == Event::Kind::kUpdate) return true;
    if (event.operation == "all_reduce gradient") return false;
  }
  return false;
}

optional<string> judge_weights(int chapter, const Run& run, const References& references) {
  const auto ranks = static_cast<int>(run.size());
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<int> wrong = differing(run[0], references.ddp[0], step);
    if (wrong.empty()) continue;
    const string begin =
        step == 1 ? fmt::format("the first weights of {} are not DDP's", layers(wrong))
                  : fmt::format("in step {} the weights of {} are not DDP's", step, layers(wrong));
    const int sharing = sharing_ranks(chapter, ranks);
    const bool only_padded = std::all_of(wrong.begin(), wrong.end(),
                                         [&](int layer) { return is_padded(layer, sharing); });
    if (chapter >= 4 && only_padded && wrong.size() < kLayers) {
      return fmt::format(
          "{}: only where the size is not a multiple of {}, so an offset is wrong where "
          "padding is",
          begin, sharing);
    }
    if (step > 1 && differing(run[0], references.ddp_with_sums()[0], step).empty()) {
      return begin + ": the gradients are summed, not averaged";
    }
    if (chapter == 0 && averages_after_update(run[0])) {
      return begin + ": weights are averaged after the update, not gradients before it";
    }
    if (chapter == 6 && step > 1) {
      return begin +
             ": the bytes are right, so look at the order of additions (neighbours first, "
             "then groups) and at the divisor (the number of all ranks, once)";
    }
    return begin;
  }
  if (run[0].digest != references.ddp[0].digest) {
    return "after the last step the weights are not DDP's";
  }
  return std::nullopt;
}

}  // namespace

string too_many(std::int64_t difference, const string& of_what) {
  return fmt::format("{} bytes{} too {}", base::with_thousands(std::abs(difference)),
                     of_what.empty() ? "" : " of " + of_what, difference > 0 ? "many" : "few");
}

const Event* forward_of(const RankLog& log, int step, int layer) {
  for (const Event& e : log.events) {
    if (e.kind == Event::Kind::kForward && e.step == step && e.layer == layer) return &e;
  }
  return nullptr;
}

optional<string> judge_completeness(const RankLog& log, int rank, int first, int end) {
  if (log.steps.size() != kSteps) {
    return fmt::format(
        "rank {} reaches the end of {} steps instead of {}: keep the loop, and the call "
        "of snapshot() at its end",
        rank, log.steps.size(), kSteps);
  }
  for (int step = 1; step <= kSteps; ++step) {
    for (int layer = first; layer < end; ++layer) {
      if (forward_of(log, step, layer) != nullptr) continue;
      return fmt::format("rank {} does not compute layer {} in step {}: keep the model as it is",
                         rank, layer, step);
    }
  }
  if (!log.digest.empty()) return std::nullopt;
  return fmt::format("rank {} prints no digest: keep the program's last lines", rank);
}

optional<string> judge_exits(const std::vector<dist::RankExit>& exits, int chapter) {
  // The others may have failed because of it. How long a rank ran decides last: of two that end at
  // once, either may be seen to end first.
  const auto cause = [](const dist::RankExit& exit) {
    const string error = error_of(exit);
    const bool waited = error.find("nothing from rank") != string::npos;
    const bool left_alone = error.find("is gone") != string::npos;
    return std::tuple(exit.killed, left_alone, waited, exit.seconds);
  };
  const dist::RankExit* first = nullptr;
  for (const dist::RankExit& exit : exits) {
    if (exit.ok()) continue;
    if (first == nullptr || cause(exit) < cause(*first)) first = &exit;
  }
  if (first == nullptr) return std::nullopt;
  return describe_exit(*first, chapter);
}

string printed_by(const std::vector<dist::RankExit>& exits) {
  string text;
  for (const dist::RankExit& exit : exits) text += exit.output.substr(0, error_begin(exit));
  return text;
}

optional<string> judge_run(int chapter, const Run& run, const References& references,
                           bool by_autograd) {
  const auto ranks = static_cast<int>(run.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const RankLog& log = run[static_cast<std::size_t>(rank)];
    if (auto text = judge_completeness(log, rank, 0, kLayers)) return text;
  }
  // First, because a tensor that is read too early holds anything.
  for (int rank = 0; chapter == 5 && rank < ranks; ++rank) {
    if (auto text = judge_order(rank, ranks, run[static_cast<std::size_t>(rank)])) return text;
  }
  if (auto text = judge_batches(run)) return text;
  if (auto text = judge_agreement(chapter, run)) return text;
  if (auto text = judge_rest(chapter, run, references)) return text;
  if (auto text = judge_steps(chapter, run, judge_peak)) return text;
  if (by_autograd) {
    if (auto text = judge_steps(chapter, run, judge_joint_peak)) return text;
  }
  const auto traffic = [&](const Rank& at, const StepBytes& step) {
    return judge_traffic(at, run, step);
  };
  if (auto text = judge_steps(chapter, run, traffic)) return text;
  return judge_weights(chapter, run, references);
}

}  // namespace zero::exercise
