#include "program.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include <tools/ladder/data/random.hpp>

namespace zero::testing {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Program, seed, ranks, width, parts, loop, dtype, optimizer,
                                   accumulation, clip, uneven, own, broadcast, modes)

std::string Program::text() const { return nlohmann::json(*this).dump(); }

Program program_of(const std::string& text) {
  nlohmann::json all = Program();
  all.update(nlohmann::json::parse(text));
  return all.get<Program>();
}

namespace {

// Draws with a generator of its own, whose results are the same everywhere.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(bound)));
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <typename List>
  auto of(const List& list) {
    return list[static_cast<std::size_t>(below(std::ssize(list)))];
  }

 private:
  data::SplitMix64 random_;
};

// `twice`: only what can be differentiated twice.
std::string random_parts(Draw& draw, bool twice, int depth) {
  const std::string library = "lwfendcoasMrshC";
  const std::string ordinary = "LLWFENDOASbvkguzBrpy";
  const std::string changeable = "lLwWenNdDoOaAbvk";  // what follows may be changed in place
  std::string parts;
  const std::int64_t count = 1 + draw.below(depth == 0 ? 6 : 3);
  for (std::int64_t i = 0; i < count; ++i) {
    if (depth < 2 && draw.one_in(6)) {
      const bool is_unit = twice || draw.one_in(2);
      const std::string inner = random_parts(draw, twice, depth + 1);
      parts += (is_unit ? "(" : "[") + inner + (is_unit ? ")" : "]");
      continue;
    }
    const char letter = twice || draw.one_in(2) ? draw.of(ordinary) : draw.of(library);
    parts += letter;
    if (changeable.find(letter) != std::string::npos && draw.one_in(5))
      parts += draw.of(std::string("!?"));
  }
  return parts;
}

std::string random_loop(Draw& draw, bool twice) {
  std::string loop;
  const std::int64_t count = 3 + draw.below(8);
  const std::string others = twice ? "qQqQbjeuxygwnldtvVUCToG" : "bbjjeuxxyygwnldtvVsUCTKoG";
  for (std::int64_t i = 0; i < count; ++i) loop += draw.one_in(2) ? 'm' : draw.of(others);
  return loop + "m";
}

std::string random_options(Draw& draw, int stage, bool in_groups, int ranks) {
  std::vector<std::string> options;
  const auto maybe = [&](const std::string& option) {
    if (draw.one_in(2)) options.push_back(option);
  };
  if (in_groups) options.push_back(fmt::format("shard_size={}", draw.one_in(2) ? 1 : ranks));
  maybe("bucket_mib=" + draw.of(std::vector<std::string>{"0.00001", "0.0003", "0.001"}));
  maybe("in_flight_mib=0.0005");
  maybe("keep_buffers=false");
  maybe("keep_gradients=false");
  if (stage == 3) maybe(fmt::format("lookahead={}", draw.of(std::vector{0, 2, 5})));
  if (stage == 3) maybe(fmt::format("whole_below={}", draw.of(std::vector{10, 60, 1000})));
  if (stage == 1 || stage == 2) maybe("defer_parameter_gather=true");
  if (options.empty()) options.push_back("keep_buffers=true");
  return fmt::format("{}", fmt::join(options, ":"));
}

}  // namespace

Program random_program(std::uint64_t seed, int ranks, const std::vector<std::string>& exact_modes) {
  Draw draw(seed);
  Program program;
  program.seed = seed;
  program.ranks = ranks;
  const bool twice = draw.one_in(4);
  program.width = 2 + draw.below(19);
  program.parts = random_parts(draw, twice, 0);
  program.loop = random_loop(draw, twice);
  program.dtype =
      draw.of(std::vector<std::string>{"float", "float", "float", "double", "bfloat16"});
  program.optimizer =
      draw.of(std::vector<std::string>{"adamw", "adamw", "sgd", "adam", "rmsprop", "groups"});
  program.accumulation = draw.one_in(2) ? 1 : 2 + static_cast<int>(draw.below(2));
  program.clip = draw.one_in(3) ? 0.05 : 0;
  // A normalisation over no rows does not exist.
  program.uneven = draw.one_in(3) && program.parts.find('B') == std::string::npos;
  program.modes = {"engine0", "engine1", "engine2", "engine3", draw.of(exact_modes)};
  const int stage = static_cast<int>(draw.below(4));
  program.modes.push_back(
      fmt::format("engine{}:{}", stage, random_options(draw, stage, false, ranks)));
  program.modes.push_back(fmt::format("engine3:{}", random_options(draw, 3, false, ranks)));
  const int in_groups = 1 + static_cast<int>(draw.below(3));
  program.modes.push_back(
      fmt::format("hsdp{}:{}", in_groups, random_options(draw, in_groups, true, ranks)));
  program.own = !program.uneven && draw.one_in(4);
  return program;
}

namespace {

// Without one letter, in every way; a bracket goes with its partner. First without a half.
std::vector<std::string> shorter(const std::string& letters) {
  std::vector<std::string> all;
  const std::size_t half = letters.size() / 2;
  if (half > 1) all = {letters.substr(half), letters.substr(0, half)};
  for (std::size_t i = 0; i < letters.size(); ++i) {
    std::string fewer = letters;
    fewer.erase(i, 1);
    all.push_back(fewer);
  }
  return all;
}

// Without one of the options of a mode.
std::vector<std::string> simpler_modes(const std::string& mode) {
  std::vector<std::string> words, all;
  std::istringstream stream(mode);
  for (std::string word; std::getline(stream, word, ':');) words.push_back(word);
  for (std::size_t i = 1; i < words.size(); ++i) {
    std::vector<std::string> fewer = words;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    all.push_back(fmt::format("{}", fmt::join(fewer, ":")));
  }
  return all;
}

std::vector<Program> simpler(const Program& program) {
  std::vector<Program> all;
  const auto with = [&](const auto& change) {
    Program candidate = program;
    change(candidate);
    if (candidate.text() != program.text()) all.push_back(candidate);
  };
  if (program.modes.size() > 1) {
    for (const std::string& mode : program.modes) with([&](Program& p) { p.modes = {mode}; });
    return all;  // one of them fails
  }
  for (const std::string& loop : shorter(program.loop)) with([&](Program& p) { p.loop = loop; });
  for (const std::string& parts : shorter(program.parts)) {
    with([&](Program& p) { p.parts = parts; });
  }
  with([](Program& p) { p.accumulation = 1; });
  with([](Program& p) { p.clip = 0; });
  with([](Program& p) { p.uneven = false; });
  with([](Program& p) { p.own = false; });
  with([](Program& p) { p.broadcast = false; });
  with([](Program& p) { p.dtype = "float"; });
  with([](Program& p) { p.optimizer = "sgd"; });
  for (const std::string& mode : simpler_modes(program.modes.front())) {
    with([&](Program& p) { p.modes = {mode}; });
  }
  with([](Program& p) { p.ranks = 2; });
  for (const std::int64_t width : {2, 7}) {
    with([&](Program& p) { p.width = std::min(p.width, width); });
  }
  return all;
}

}  // namespace

Program shrunk(Program program,
               const std::function<std::size_t(const std::vector<Program>&)>& first_failing) {
  for (;;) {
    const std::vector<Program> candidates = simpler(program);
    const std::size_t found = first_failing(candidates);
    if (found >= candidates.size()) return program;
    program = candidates[found];
  }
}

}  // namespace zero::testing
