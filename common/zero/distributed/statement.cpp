#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/fnv.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/distributed/statement.hpp>

namespace zero::dist {
namespace {

constexpr std::string_view kRanks = "{ranks}";

// Throws the first problem of a rank, if any has one.
void throw_problem(Communicator& world, const std::string& mine) {
  const std::vector<std::string> problems = world.exchange(mine);
  const auto first = std::ranges::find_if_not(problems, &std::string::empty);
  if (first == problems.end()) return;
  std::vector<int> ranks;
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (problems[r] == *first) ranks.push_back(world.world_rank(static_cast<int>(r)));
  }
  std::string text = *first;
  if (const std::size_t place = text.find(kRanks); place != std::string::npos) {
    text.replace(place, kRanks.size(), ranks_text(ranks));
  }
  throw Error(text);
}

}  // namespace

std::vector<std::vector<double>> exchange(const Mesh& mesh, const Statement& mine) {
  std::vector<double> said = {mine.problem.empty() ? 0.0 : 1.0};
  for (const Statement::Topic& topic : mine.topics) {
    said.push_back(base::fnv1a_as_double(topic.text));
  }
  const auto head = std::ssize(said);
  said.insert(said.end(), mine.numbers.begin(), mine.numbers.end());
  const std::vector<double> all = all_gather_scalars(mesh.world(), said);
  std::vector<std::vector<double>> numbers;
  std::map<std::pair<std::size_t, int>, double> firsts;  // digests, by topic and place
  bool wrong = false;
  for (auto of_rank = all.begin(); of_rank != all.end(); of_rank += std::ssize(said)) {
    const int rank = static_cast<int>(numbers.size());
    wrong = wrong || of_rank[0] != 0;
    for (std::size_t t = 0; t < mine.topics.size(); ++t) {
      const double digest = of_rank[static_cast<std::ptrdiff_t>(t) + 1];
      const int place = mesh.place(rank, mine.topics[t].axes);
      wrong = wrong || firsts.try_emplace({t, place}, digest).first->second != digest;
    }
    numbers.emplace_back(of_rank + head, of_rank + std::ssize(said));
  }
  if (!wrong) return numbers;
  throw_problem(mesh.world(), mine.problem);
  for (const Statement::Topic& topic : mine.topics) {
    mesh.verify_same_at(topic.axes, topic.what, [&] { return topic.text; });
  }
  return numbers;
}

}  // namespace zero::dist
