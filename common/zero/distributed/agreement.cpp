#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/fnv.hpp>
#include <zero/distributed/agreement.hpp>

namespace zero::dist {
namespace {

// The first line in which two texts differ, from each of them.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_of_a(a), lines_of_b(b);
  std::string of_a, of_b;
  while (true) {
    const bool more_in_a = static_cast<bool>(std::getline(lines_of_a, of_a));
    const bool more_in_b = static_cast<bool>(std::getline(lines_of_b, of_b));
    if (more_in_a && more_in_b && of_a == of_b) continue;
    return {more_in_a ? of_a : "nothing more", more_in_b ? of_b : "nothing more"};
  }
}

}  // namespace

void verify_same(Communicator& communicator, const std::string& what, const std::string& text) {
  verify_same(
      communicator, what, [&] { return text; }, [](int) { return 0; });
}

void verify_same(Communicator& communicator, const std::string& what,
                 const std::function<std::string()>& text,
                 const std::function<int(int rank)>& place) {
  const auto shown = [](const std::string& answer) {
    return (is_error(answer) ? "an error: " : "") + answer.substr(1);
  };
  const std::vector<std::string> all = communicator.exchange(answer_of(text));
  std::map<int, std::size_t> firsts;  // ranks, by place
  for (std::size_t r = 0; r < all.size(); ++r) {
    const int rank = static_cast<int>(r);
    const std::size_t first = firsts.try_emplace(place(rank), r).first->second;
    if (all[r] == all[first]) continue;
    const auto [of_first, of_other] = first_difference(shown(all[first]), shown(all[r]));
    throw Error(
        fmt::format("ranks disagree about {}: rank {} has {}, rank {} has {}; start all ranks "
                    "with the same program, options and files",
                    what, communicator.world_rank(static_cast<int>(first)), of_first,
                    communicator.world_rank(rank), of_other));
  }
  for (const auto& [of_place, first] : firsts) content_of(all[first]);
}

std::string answer_of(const std::function<std::string()>& action) {
  try {
    return "+" + action();
  } catch (const std::exception& error) {
    return "-" + message_of(error);
  }
}

bool is_error(const std::string& answer) { return !answer.starts_with('+'); }

std::string content_of(const std::string& answer, const std::string& who) {
  if (is_error(answer)) throw Error(who + answer.substr(1));
  return answer.substr(1);
}

std::vector<std::string> on_all_ranks(Communicator& communicator, const std::string& what,
                                      const std::function<std::string()>& action) {
  std::vector<std::string> all = communicator.exchange(answer_of(action));
  for (std::size_t r = 0; r < all.size(); ++r) {
    const int rank = communicator.world_rank(static_cast<int>(r));
    all[r] = content_of(all[r], fmt::format("{}: rank {}: ", what, rank));
  }
  return all;
}

void run_on_all_ranks(Communicator& communicator, const std::string& what,
                      const std::function<void()>& action) {
  const std::string mine = answer_of([&] {
    action();
    return std::string();
  });
  const std::vector<double> failed = all_gather_scalars(communicator, {is_error(mine) ? 1.0 : 0.0});
  if (std::ranges::count(failed, 0.0) == communicator.size()) return;
  on_all_ranks(communicator, what, [&] { return content_of(mine); });
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::uint64_t digest(const std::vector<at::Tensor>& tensors, std::uint64_t before) {
  std::uint64_t hash = before;
  for (const at::Tensor& t : tensors) {
    hash =
        (hash ^ (t.defined() ? static_cast<std::uint64_t>(t.numel()) + 1 : 0)) * 1099511628211ULL;
    if (!t.defined() || !t.is_cpu()) continue;
    const at::Tensor dense = t.contiguous();
    hash = base::fnv1a({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()}, hash);
  }
  return hash;
}

std::vector<double> all_gather_scalars(Communicator& communicator, std::vector<double> mine) {
  // Tensors of its own: a failed collective may still use them afterwards.
  const at::Tensor input = at::tensor(mine, at::kDouble);
  const at::Tensor output = at::empty({communicator.size() * input.numel()}, at::kDouble);
  communicator.all_gather(output, input, Purpose::kControl).wait();
  const double* const all = output.const_data_ptr<double>();
  return {all, all + output.numel()};
}

}  // namespace zero::dist
