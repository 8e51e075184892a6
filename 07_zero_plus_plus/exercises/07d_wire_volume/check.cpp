// Compares the numbers with the formulas, and these with what a communicator counts when it makes
// the collectives of each mode.

#include <fmt/format.h>

#include <grading/check.hpp>

namespace exercise_07d {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::exercise::Mistake;

constexpr std::int64_t kUnits[] = {4000, 993};
constexpr int kHosts = 2, kEach = 4, kRanks = kHosts * kEach;
constexpr std::int64_t kBlock = 64;

constexpr std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Sums over units of what a shard of 1/ranks takes: as floats, in 8 bits and in 4.
struct Shards {
  std::int64_t floats = 0, eight_bits = 0, four_bits = 0, elements = 0, scales = 0;
};

constexpr Shards shards_of(int ranks) {
  Shards shards;
  for (const std::int64_t unit : kUnits) {
    const std::int64_t n = up(unit, ranks), scales = 4 * up(n, kBlock);
    shards.floats += 4 * n;
    shards.eight_bits += n + scales;
    shards.four_bits += up(n, 2) + scales;
    shards.elements += n;
    shards.scales += scales;
  }
  return shards;
}

struct Bytes {
  std::int64_t inside, between;  // hosts
  bool operator==(const Bytes&) const = default;
};

// A collective in which a rank sends each other rank `bytes`.
constexpr Bytes to_all(std::int64_t bytes) { return {(kEach - 1) * bytes, kEach * bytes}; }
constexpr Bytes to_host(std::int64_t bytes) { return {(kEach - 1) * bytes, 0}; }

template <typename... All>
constexpr Bytes sum_of(const All&... all) {
  return {(all.inside + ...), (all.between + ...)};
}

struct Mode {
  std::string name;
  Bytes bytes;
};

std::vector<Mode> modes() {
  const Shards one = shards_of(kRanks), of_host = shards_of(kEach);
  const Bytes gather = to_all(one.floats), reduction = to_all(one.floats);
  const Bytes gather_in_8_bits = to_all(one.eight_bits);
  const Bytes two_hops = {(kEach - 1) * kHosts * one.four_bits, (kHosts - 1) * one.four_bits};
  return {{"engine3", sum_of(gather, gather, reduction)},
          {"hsdp3", {3 * to_host(of_host.floats).inside, of_host.floats}},
          {"hpz", sum_of(gather, to_host(kHosts * one.floats), reduction)},
          {"qwz", sum_of(gather_in_8_bits, gather_in_8_bits, reduction)},
          {"qgz", sum_of(gather, gather, two_hops)},
          {"zeropp", sum_of(gather_in_8_bits, to_host(kHosts * one.eight_bits), two_hops)}};
}

// ---- what a communicator counts ----

struct Groups {
  Communicator &world, &host, &across;
};

at::Tensor floats(std::int64_t n) { return at::zeros({n}); }
at::Tensor bytes(std::int64_t n) { return at::zeros({n}, at::kByte); }

void gather(Communicator& ranks, const at::Tensor& mine) {
  const at::Tensor all = at::empty({ranks.size() * mine.numel()}, mine.options());
  ranks.all_gather(all, mine, Purpose::kParameter).wait();
}

// `shards` shards of `n` elements in 8 bits.
void gather_in_8_bits(Communicator& ranks, std::int64_t n, int shards) {
  gather(ranks, bytes(shards * n));
  gather(ranks, floats(shards * up(n, kBlock)));
}

void reduce_scatter(Communicator& ranks, std::int64_t n) {
  ranks.reduce_scatter(floats(n), floats(ranks.size() * n), Purpose::kGradient).wait();
}

// `shards` shards of `n` elements in 4 bits to each rank.
void exchange_in_4_bits(Communicator& ranks, std::int64_t n, int shards) {
  for (const at::Tensor& all :
       {bytes(ranks.size() * shards * up(n, 2)), floats(ranks.size() * shards * up(n, kBlock))}) {
    ranks.all_to_all(at::empty_like(all), all, Purpose::kGradient).wait();
  }
}

// The collectives that `mode` needs for one unit in a step.
void run_unit(const Groups& groups, const std::string& mode, std::int64_t unit) {
  const std::int64_t n = up(unit, kRanks), of_host = up(unit, kEach);
  const bool narrow = mode == "qwz" || mode == "zeropp", twice = mode != "hpz" && mode != "zeropp";
  if (mode == "hsdp3") {
    for (int pass = 0; pass < 2; ++pass) gather(groups.host, floats(of_host));
    reduce_scatter(groups.host, of_host);
    groups.across.all_reduce(floats(of_host), Purpose::kGradient).wait();
    return;
  }
  for (int pass = 0; pass < 2; ++pass) {
    Communicator& ranks = pass == 0 || twice ? groups.world : groups.host;
    const int shards = pass == 0 || twice ? 1 : kHosts;
    if (narrow) {
      gather_in_8_bits(ranks, n, shards);
    } else {
      gather(ranks, floats(shards * n));
    }
  }
  if (mode == "qgz" || mode == "zeropp") {
    exchange_in_4_bits(groups.host, n, kHosts);
    exchange_in_4_bits(groups.across, n, 1);
  } else {
    reduce_scatter(groups.world, n);
  }
}

void check_counters(Communicator& world) {
  std::vector<int> hosts, of_host, of_across;
  for (int rank = 0; rank < kRanks; ++rank) {
    hosts.push_back(rank / kEach);
    if (hosts.back() == world.rank() / kEach) of_host.push_back(rank);
    if (rank % kEach == world.rank() % kEach) of_across.push_back(rank);
  }
  world.set_hosts(hosts);
  const auto host = world.split(of_host, fmt::format("host {}", of_host[0]));
  const auto across = world.split(of_across, fmt::format("place {}", of_across[0]));
  for (const auto& [name, right] : modes()) {
    const zero::dist::Traffic before = world.traffic();
    for (const std::int64_t unit : kUnits) run_unit({world, *host, *across}, name, unit);
    const zero::dist::Traffic sent = world.traffic().since(before);
    const std::int64_t between =
        sent.between_hosts(Purpose::kParameter) + sent.between_hosts(Purpose::kGradient);
    if (Bytes{sent.bytes() - between, between} == right) continue;
    throw Mistake(fmt::format("the counters do not agree with the formulas for {}", name));
  }
}

// ---- numbers that people give ----

// Of the modes that send all in float32.
void check_floats(const zero::exercise::Numbers& numbers, const std::vector<Mode>& all) {
  const std::int64_t shard = shards_of(kRanks).floats, of_host = shards_of(kEach).floats;
  const Bytes engine3 = all[0].bytes, hsdp3 = all[1].bytes, hpz = all[2].bytes;
  const double parameters = kUnits[0] + kUnits[1];
  numbers.expect("engine3_inside", engine3.inside,
                 {{2 * 3 * shard, "counts two collectives: there are two gathers and a reduction"},
                  {3 * 3 * parameters / 2, "has no padding: 993 does not divide by 8"},
                  {3 * kEach * shard, "counts the rank itself: it sends itself nothing"}});
  numbers.expect("engine3_between", engine3.between,
                 {{kEach * engine3.between, "is what a host sends, and not a rank"},
                  {3 * 4 * parameters / 2, "has no padding: 993 does not divide by 8"}});
  numbers.expect(
      "hsdp3_inside", hsdp3.inside,
      {{engine3.inside, "is for shards of an eighth: the ranks of a host have a quarter"},
       {2 * 3 * of_host, "counts two collectives: there are two gathers and a reduction"}});
  numbers.expect("hsdp3_between", hsdp3.between,
                 {{2 * hsdp3.between,
                   "takes an all-reduce for twice its tensor: of two ranks each sends it once"},
                  {hsdp3.between / 2, "is one half of the all-reduce: the sums must come back too"},
                  {kEach * hsdp3.between, "is what a host sends, and not a rank"}});
  numbers.expect(
      "hpz_inside", hpz.inside,
      {{engine3.inside, "gathers an eighth in backward: the secondary shard is a quarter"}});
  numbers.expect(
      "hpz_between", hpz.between,
      {{engine3.between, "gathers between hosts in backward"},
       {engine3.between / 3, "forgets that gradients go between hosts too"},
       {hsdp3.between, "is that of hsdp3: under hpZ an update is of an eighth, not a copy"}});
}

// Of those that send few bits.
void check_few_bits(const zero::exercise::Numbers& numbers, const std::vector<Mode>& all) {
  const Shards one = shards_of(kRanks);
  const Bytes qwz = all[3].bytes, qgz = all[4].bytes, zeropp = all[5].bytes;
  const std::string no_scales = "forgets the scales";
  numbers.expect("qwz_inside", qwz.inside,
                 {{qwz.inside - 2 * 3 * one.scales, no_scales},
                  {3 * 3 * one.eight_bits, "sends gradients in 8 bits: qwZ is for weights"}});
  numbers.expect("qwz_between", qwz.between,
                 {{qwz.between - 2 * 4 * one.scales, no_scales},
                  {3 * 4 * one.eight_bits, "sends gradients in 8 bits: qwZ is for weights"}});
  const std::int64_t even = one.elements / 2 + one.scales;  // without the half byte
  numbers.expect(
      "qgz_inside", qgz.inside,
      {{qgz.inside - 3 * 2 * one.scales, no_scales},
       {qgz.inside - 3 * one.four_bits,
        "sends each neighbour one shard in the first hop: it adds up the shards of both hosts"},
       {qgz.inside - 3 * 2 * (one.four_bits - even), "cuts half a byte off an odd shard"}});
  numbers.expect(
      "qgz_between", qgz.between,
      {{qgz.between - one.scales, no_scales},
       {qgz.between + 3 * one.four_bits,
        "sends to all ranks of the other host: a sum goes to the one rank that needs it"},
       {2 * 4 * one.floats, "forgets the second hop"},
       {qgz.between - (one.four_bits - even), "cuts half a byte off an odd shard"}});
  numbers.expect(
      "zeropp_inside", zeropp.inside,
      {{zeropp.inside + 3 * 2 * (one.floats - one.eight_bits),
        "keeps the secondary shard in float32"},
       {zeropp.inside - 3 * one.eight_bits, "gathers an eighth in backward, not a quarter"},
       {zeropp.inside - 3 * 3 * one.scales - 3 * 2 * one.scales, no_scales}});
  numbers.expect("zeropp_between", zeropp.between,
                 {{zeropp.between + 4 * one.eight_bits, "gathers between hosts in backward"},
                  {zeropp.between - 5 * one.scales, no_scales},
                  {kEach * zeropp.between, "is what a host sends, and not a rank"}});
}

void check(const zero::exercise::Numbers& numbers) {
  const std::vector<Mode> all = modes();
  check_floats(numbers, all);
  check_few_bits(numbers, all);
  zero::exercise::on_ranks(kRanks, check_counters);
}

}  // namespace exercise_07d
