// Cuts attention layers, compares each part, and adds up what the ranks compute with them.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include <grading/check.hpp>

#include "08b.hpp"

namespace exercise_08b {

using zero::dist::Communicator;
using zero::exercise::Mistake;

constexpr std::int64_t kHead = 3, kTokens = 5;  // elements of a head

struct Sizes {
  int ranks, heads, key_value_heads;
};
constexpr Sizes kLayers[] = {{2, 8, 4}, {2, 6, 2}, {2, 4, 4}, {3, 12, 3}, {5, 10, 5}, {1, 6, 2}};

Attention layer_of(int heads, int key_value_heads) {
  at::manual_seed(heads);
  const std::int64_t hidden = heads * kHead;
  const auto weight = [](std::int64_t rows, std::int64_t columns) {
    return at::randn({rows, columns}, at::kDouble);
  };
  return {heads,
          key_value_heads,
          weight(hidden, hidden),
          weight(key_value_heads * kHead, hidden),
          weight(key_value_heads * kHead, hidden),
          weight(hidden, hidden)};
}

// The layer's output for x, of [tokens, h].
at::Tensor attend(const Attention& layer, const at::Tensor& x) {
  const auto split = [&](const at::Tensor& weight, int heads) {  // to [heads, tokens, d]
    return x.mm(weight.t()).view({kTokens, heads, kHead}).transpose(0, 1);
  };
  const int shared = layer.heads / layer.key_value_heads;
  const at::Tensor query = split(layer.query, layer.heads);
  const at::Tensor key = split(layer.key, layer.key_value_heads).repeat_interleave(shared, 0);
  const at::Tensor value = split(layer.value, layer.key_value_heads).repeat_interleave(shared, 0);
  const at::Tensor weights = (query.matmul(key.transpose(1, 2)) / std::sqrt(kHead)).softmax(-1);
  const at::Tensor heads = weights.matmul(value).transpose(0, 1);
  return heads.reshape({kTokens, layer.heads * kHead}).mm(layer.output.t());
}

struct Matrix {
  const char* name;
  at::Tensor mine, right;
};

void check_matrix(const Matrix& matrix, const std::string& begin, bool by_columns) {
  const auto& [name, mine, right] = matrix;
  if (!mine.defined()) throw Mistake(fmt::format("{} has no {}", begin, name));
  if (mine.sizes() != right.sizes()) {
    throw Mistake(fmt::format(
        "{} has {} of {}, not {}: it is cut by its {}", begin, name, mine.sizes().vec(),
        right.sizes().vec(),
        by_columns ? "columns, of which each head reads its own" : "rows, which make the heads"));
  }
  if (!mine.equal(right)) {
    throw Mistake(
        fmt::format("{} has other {} of {} than those of its heads, which follow each "
                    "other in the whole layer",
                    begin, by_columns ? "columns" : "rows", name));
  }
  if (mine.storage().nbytes() > mine.nbytes()) {
    throw Mistake(
        fmt::format("{} keeps {} bytes for {}, which has {}: a view keeps the whole "
                    "matrix in memory",
                    begin, mine.storage().nbytes(), name, mine.nbytes()));
  }
}

void check_part(const Attention& part, const Attention& whole, int rank, int ranks) {
  const std::string begin = fmt::format("of {} heads and {} key/value heads, rank {}", whole.heads,
                                        whole.key_value_heads, rank);
  const int heads = whole.heads / ranks, key_value_heads = whole.key_value_heads / ranks;
  if (part.heads != heads || part.key_value_heads != key_value_heads) {
    throw Mistake(fmt::format("{} has {} heads and {} key/value heads, and {} and {} are its own",
                              begin, part.heads, part.key_value_heads, heads, key_value_heads));
  }
  const auto right = [&](const at::Tensor& matrix, int axis) {
    return matrix.chunk(ranks, axis)[static_cast<std::size_t>(rank)];
  };
  check_matrix({"query", part.query, right(whole.query, 0)}, begin, false);
  check_matrix({"key", part.key, right(whole.key, 0)}, begin, false);
  check_matrix({"value", part.value, right(whole.value, 0)}, begin, false);
  check_matrix({"output", part.output, right(whole.output, 1)}, begin, true);
}

// What the ranks compute with their parts must add up to what the whole layer computes.
void check_sum(const Attention& part, const Attention& whole, Communicator& communicator) {
  const at::Tensor x = at::randn({kTokens, whole.heads * kHead}, at::kDouble);
  const at::Tensor sum = attend(part, x);
  communicator.all_reduce(sum, zero::dist::Purpose::kActivation, zero::dist::ReduceOp::kSum).wait();
  if (!sum.allclose(attend(whole, x), 1e-9, 1e-9)) {
    throw Mistake("the sum of what the ranks compute is not what the whole layer computes");
  }
}

// `names`: what the error must say.
void check_refusal(const Answer& answer, const Sizes& sizes,
                   const std::vector<std::string>& names) {
  const std::string begin = fmt::format("{} heads and {} key/value heads on {} ranks", sizes.heads,
                                        sizes.key_value_heads, sizes.ranks);
  std::string said;
  try {
    answer.part_of(layer_of(sizes.heads, sizes.key_value_heads), 0, sizes.ranks);
  } catch (const std::invalid_argument& error) {
    said = error.what();
    for (const std::string& name : names) {
      if (said.find(name) != std::string::npos) continue;
      throw Mistake(
          fmt::format("{} are refused with '{}', which does not name {}", begin, said, name));
    }
    return;
  }
  throw Mistake(begin + " are not refused: they do not divide");
}

void check(const Answer& answer) {
  for (const Sizes& sizes : kLayers) {
    zero::exercise::on_ranks(sizes.ranks, [&](Communicator& communicator) {
      const Attention whole = layer_of(sizes.heads, sizes.key_value_heads);
      const int rank = communicator.rank(), ranks = communicator.size();
      const Attention part = answer.part_of(whole, rank, ranks);
      check_part(part, whole, rank, ranks);
      check_sum(part, whole, communicator);
    });
  }
  zero::exercise::on_ranks(1, [&](Communicator&) {
    check_refusal(answer, {2, 15, 5}, {"15 heads", "2"});
    check_refusal(answer, {8, 16, 4}, {"4 key/value heads", "8"});
    check_refusal(answer, {2, 4, 1}, {"1 key/value heads", "2"});
  });
}

}  // namespace exercise_08b
