// Cuts a model's gradient over several meshes and compares the norm with that of the whole.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "08c.hpp"

namespace exercise_08c {

using zero::dist::Communicator;
using zero::exercise::Mistake;

struct Shape {
  std::int64_t elements;
  bool is_split;
};
// The elements of what is split divide by 1, 2 and 3; the last shards may be smaller, or empty.
constexpr Shape kModel[] = {{60, true}, {7, false}, {6, true}, {12, true}, {1, false}, {5, false}};

struct Sizes {
  int ranks, tensor_ranks;
};
constexpr Sizes kMeshes[] = {{4, 2}, {6, 3}, {2, 2}, {2, 1}, {3, 1}, {1, 1}};

// The squares of the whole gradient, by kind.
struct Squares {
  double split = 0, replicated = 0;
};

Squares squares_of_model() {
  at::manual_seed(6);
  Squares squares;
  for (const Shape& shape : kModel) {
    const double square = at::randn({shape.elements}).to(at::kDouble).square().sum().item<double>();
    (shape.is_split ? squares.split : squares.replicated) += square;
  }
  return squares;
}

std::vector<Gradient> gradients_of_rank(const Communicator& data, const Communicator& tensor) {
  at::manual_seed(6);
  std::vector<Gradient> gradients;
  for (const Shape& shape : kModel) {
    at::Tensor part = at::randn({shape.elements});
    if (shape.is_split) part = part.chunk(tensor.size())[tensor.rank()];
    const auto cut = [&](int rank) {
      return zero::dist::piece_begin(part.numel(), rank, data.size());
    };
    const std::int64_t begin = cut(data.rank());
    gradients.push_back(
        {part.narrow(0, begin, cut(data.rank() + 1) - begin).clone(), shape.is_split});
  }
  return gradients;
}

bool is_near(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

std::string explain(double norm, const Squares& squares, int data, int tensor) {
  const double right = std::sqrt(squares.split + squares.replicated);
  const std::string begin =
      fmt::format("the norm is {} and that of the whole gradient is {}: ", norm, right);
  if (norm == 0) return "the norm is 0: nothing has been added up";
  if (is_near(norm, std::sqrt(squares.split + tensor * squares.replicated))) {
    return begin + fmt::format(
                       "a gradient that is not split counts {} times, once for each tensor "
                       "rank",
                       tensor);
  }
  if (is_near(norm, std::sqrt(squares.split / tensor + squares.replicated))) {
    return begin + "the parts of a split gradient are averaged over the tensor axis, not added up";
  }
  if (is_near(norm, right / std::sqrt(data * tensor)) || is_near(norm, right / std::sqrt(data))) {
    return begin + "the squares are averaged, not added up";
  }
  if (is_near(norm, std::sqrt(squares.split))) {
    return begin + "gradients that are not split are left out";
  }
  if (is_near(norm, right * right)) return begin + "that is its square";
  if (norm > right) return begin + "norms were added and not their squares, or some count twice";
  return begin + "something is left out";
}

// The groups along both axes. Neighbours are on one tensor axis.
void check_mesh(const Answer& answer, Communicator& world, int tensor_ranks) {
  std::vector<int> of_data, of_tensor;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank % tensor_ranks == world.rank() % tensor_ranks) of_data.push_back(rank);
    if (rank / tensor_ranks == world.rank() / tensor_ranks) of_tensor.push_back(rank);
  }
  const auto data = world.split(of_data, fmt::format("data {} {}", tensor_ranks, of_data[0]));
  const auto tensor =
      world.split(of_tensor, fmt::format("tensor {} {}", tensor_ranks, of_tensor[0]));
  const std::string begin =
      fmt::format("on a mesh of {} data x {} tensor ranks ", data->size(), tensor->size());
  const double norm = answer.gradient_norm(gradients_of_rank(*data, *tensor), *data, *tensor);
  const std::int64_t sent = data->traffic().bytes() + tensor->traffic().bytes();

  const std::vector<double> norms = all_gather_scalars(world, {norm});
  for (std::size_t rank = 1; rank < norms.size(); ++rank) {
    if (norms[rank] == norms[0]) continue;
    const bool along_tensor = static_cast<int>(rank) < tensor_ranks;
    throw Mistake(fmt::format(
        "{}ranks 0 and {} have different norms: they differ in their place on the {} axis, over "
        "which something was not added up",
        begin, rank, along_tensor ? "tensor" : "data"));
  }
  const Squares squares = squares_of_model();
  if (!is_near(norm, std::sqrt(squares.split + squares.replicated))) {
    throw Mistake(begin + explain(norm, squares, data->size(), tensor->size()));
  }
  const auto two_doubles = [](const Communicator& group) {
    return zero::dist::all_reduce_bytes(2, 8, group.rank(), group.size());
  };
  if (sent > two_doubles(*data) + two_doubles(*tensor)) {
    throw Mistake(fmt::format(
        "{}rank {} sends {} bytes, and two doubles on each axis are enough: squares, not gradients",
        begin, world.rank(), sent));
  }
}

void check(const Answer& answer) {
  for (const auto& [ranks, tensor_ranks] : kMeshes) {
    zero::exercise::on_ranks(ranks, [&, tensor_ranks = tensor_ranks](Communicator& world) {
      check_mesh(answer, world, tensor_ranks);
    });
  }
}

}  // namespace exercise_08c
