// Trains, evaluates, skips an update and loads. Compares each gathered weight with that of a rank
// that has all of it, counts bytes by host, and asks the allocator what a rank holds.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <grading/check.hpp>
#include <zero/memory/accounting.hpp>

#include "07a.hpp"

namespace exercise_07a {

using zero::dist::Communicator;
using zero::exercise::Mistake;

constexpr std::int64_t kElements = 1800, kBytes = 4 * kElements;
constexpr std::int64_t kChanges = 7;  // updates and loads of a run
constexpr std::int64_t kFew = 10;     // elements

struct Sizes {
  int groups, ranks_of_group;
};
constexpr Sizes kMeshes[] = {{2, 2}, {3, 2}, {2, 3}, {1, 2}, {2, 1}, {1, 1}};

struct Sent {
  std::int64_t between = 0, inside = 0;  // groups
};

std::int64_t bytes_held() {
  const zero::memory::Snapshot now = zero::memory::snapshot();
  return now.total - now[zero::memory::Category::kCommunication];
}

at::Tensor random_weight(int seed) {
  at::manual_seed(seed);
  return at::randn({kElements});
}

// One rank's part of a run.
class Run {
 public:
  Run(const Answer& answer, Ranks ranks)
      : answer_(answer),
        ranks_(ranks),
        whole_(at::zeros({kElements})),
        earlier_(at::zeros({kChanges, kElements})),
        held_by_check_(bytes_held()) {}

  void forward(int step) {
    const int others = ranks_.world.size() - 1, near = ranks_.group.size() - 1;
    const std::int64_t shard = kBytes / ranks_.world.size();
    gather(fmt::format("in step {} forward", step), {(others - near) * shard, near * shard},
           [&] { return answer_.forward_weight(ranks_, weight_, step); });
  }

  void backward(int step) {
    const std::int64_t shard = kBytes / ranks_.group.size();
    gather(fmt::format("in step {} backward", step), {0, (ranks_.group.size() - 1) * shard},
           [&] { return answer_.backward_weight(ranks_, weight_); });
  }

  void update(int step) {
    const at::Tensor gradient = random_weight(100 + step);
    change("update", whole_ - kLearningRate * gradient,
           [&] { answer_.update(ranks_, weight_, primary_piece(gradient).clone()); });
  }

  void load(int seed) { load(random_weight(seed)); }

  // A checkpoint that differs from the weight as it is now in its first and its last elements. The
  // primary shards of most ranks stay as they are.
  void load_few(int seed) {
    const at::Tensor saved = whole_.clone(), random = random_weight(seed);
    for (const std::int64_t begin : {std::int64_t{0}, kElements - kFew}) {
      saved.narrow(0, begin, kFew).copy_(random.narrow(0, begin, kFew));
    }
    load(saved);
  }

 private:
  void load(const at::Tensor& saved) {
    change("load", saved, [&] { answer_.load(ranks_, weight_, saved.clone()); });
  }

  at::Tensor primary_piece(const at::Tensor& whole) const {
    return whole.chunk(ranks_.world.size())[ranks_.world.rank()];
  }

  // What this rank sends in `call`.
  template <typename Call>
  Sent sent_in(const Call& call) const {
    const zero::dist::Traffic before = ranks_.world.traffic();
    call();
    const zero::dist::Traffic sent = ranks_.world.traffic().since(before);
    std::int64_t between = 0;
    for (std::size_t p = 0; p < zero::dist::kPurposes; ++p) {
      between += sent.between_hosts(static_cast<zero::dist::Purpose>(p));
    }
    return {between, sent.bytes() - between};
  }

  template <typename Call>
  void change(const std::string& name, const at::Tensor& after, const Call& call) {
    earlier_[std::ssize(changes_)].copy_(whole_);
    whole_.copy_(after);
    changes_.push_back(name);
    const Sent sent = sent_in(call);
    if (sent.between + sent.inside > 0) {
      throw Mistake(fmt::format("{}() sends {} bytes: the next forward gathers the weight anyway",
                                name, sent.between + sent.inside));
    }
    if (!weight_.primary.defined() || !weight_.primary.equal(primary_piece(whole_))) {
      throw Mistake(
          fmt::format("after {}() the primary shard is not right: piece {} of {} of the weight",
                      name, ranks_.world.rank(), ranks_.world.size()));
    }
  }

  template <typename Call>
  void gather(const std::string& when, const Sent& right, const Call& call) {
    at::Tensor weight;
    const Sent sent = sent_in([&] { weight = call(); });
    check_bits(when, weight);
    check_sent(when, sent, right);
    weight.reset();
    check_held(when);
  }

  void check_bits(const std::string& when, const at::Tensor& weight) const {
    const std::string begin = fmt::format("{} on rank {} has ", when, ranks_.world.rank());
    if (!weight.defined() || weight.numel() != kElements) {
      throw Mistake(fmt::format("{}{} elements of {}", begin, weight.defined() ? weight.numel() : 0,
                                kElements));
    }
    if (weight.equal(whole_)) return;
    const std::int64_t changes = std::ssize(changes_);
    for (std::int64_t k = changes - 1; k >= 0; --k) {
      if (!weight.equal(earlier_[k])) continue;
      throw Mistake(fmt::format("{}the weight from before the {}: its secondary shard is stale",
                                begin,
                                fmt::join(changes_.begin() + k, changes_.end(), " and the ")));
    }
    if (weight.eq(whole_).logical_or(weight.eq(earlier_[changes - 1])).all().item<bool>()) {
      throw Mistake(fmt::format("{}{} elements from before the {}: some secondary shards are stale",
                                begin, weight.ne(whole_).sum().item<std::int64_t>(),
                                changes_.back()));
    }
    throw Mistake(begin + "a weight that there never was: are pieces in the wrong place?");
  }

  void check_sent(const std::string& when, const Sent& sent, const Sent& right) const {
    const std::string begin = fmt::format("{} sends ", when);
    if (sent.between > right.between) {
      throw Mistake(fmt::format("{}{} bytes from rank {} to other groups, where {} are enough{}",
                                begin, sent.between, ranks_.world.rank(), right.between,
                                right.between == 0 ? ": backward stays inside the group" : ""));
    }
    if (sent.between == right.between && sent.inside == right.inside) return;
    throw Mistake(fmt::format(
        "{}{} bytes from rank {} inside the group and {} to others, which should be {} "
        "and {}",
        begin, sent.inside, ranks_.world.rank(), sent.between, right.inside, right.between));
  }

  void check_held(const std::string& when) const {
    const std::int64_t held = bytes_held() - held_by_check_;
    const std::int64_t primary = kBytes / ranks_.world.size();
    const std::int64_t secondary = kBytes / ranks_.group.size();
    if (held <= primary + secondary + 64) return;
    throw Mistake(
        fmt::format("{} leaves {} bytes on rank {}, and its two shards have {} and {}{}", when,
                    held, ranks_.world.rank(), primary, secondary,
                    held >= primary + kBytes ? ": a view keeps the whole weight in memory" : ""));
  }

  const Answer& answer_;
  Ranks ranks_;
  Weight weight_;
  at::Tensor whole_, earlier_;  // the weight now, and before each change
  std::vector<std::string> changes_;
  std::int64_t held_by_check_;
};

void check_mesh(const Answer& answer, Communicator& world, int ranks_of_group) {
  std::vector<int> hosts, ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    hosts.push_back(rank / ranks_of_group);
    if (hosts.back() == world.rank() / ranks_of_group) ranks.push_back(rank);
  }
  world.set_hosts(hosts);
  const auto group = world.split(ranks, fmt::format("group {}", ranks[0]));
  Run run(answer, {world, *group});
  run.load(1);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    run.forward(1);
    run.backward(1);
  }
  run.update(1);
  run.forward(1);  // evaluation
  run.forward(2);
  run.backward(2);  // not followed by an update
  run.forward(3);
  run.backward(3);
  run.update(3);
  run.forward(3);  // evaluation
  run.load(2);
  for (const int step : {3, 4}) {
    run.forward(step);
    run.backward(step);
    run.update(step);
  }
  run.forward(4);  // evaluation
  run.load_few(3);
  run.forward(5);
  run.backward(5);
}

void check(const Answer& answer) {
  for (const auto& [groups, ranks_of_group] : kMeshes) {
    zero::exercise::on_ranks(
        groups * ranks_of_group,
        [&, each = ranks_of_group](Communicator& world) { check_mesh(answer, world, each); });
  }
}

}  // namespace exercise_07a
