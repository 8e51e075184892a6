// Runs half a layer with the sequence cut, and compares it with one process that has all of it.
// All values are whole numbers, which add up exactly in any order.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <grading/check.hpp>

#include "08f.hpp"

namespace exercise_08f {

using zero::dist::Communicator;
using zero::exercise::Mistake;

constexpr std::int64_t kTokens = 30, kHidden = 4, kFeatures = 30, kElement = 4;  // bytes

at::Tensor whole_numbers(at::IntArrayRef sizes, int seed, int least = -2) {
  at::manual_seed(seed);
  return at::randint(least, 3, sizes, at::kFloat);
}

// What one process computes with the whole half and all positions.
struct Right {
  Half half;
  at::Tensor x, delta, entered, inner, output, of_entered;
  Gradients gradients;
};

Right right_of_all() {
  Right r;
  r.half = {whole_numbers({kHidden}, 1, /*least=*/1), whole_numbers({kHidden, kFeatures}, 2),
            whole_numbers({kFeatures, kHidden}, 3)};
  r.x = whole_numbers({kTokens, kHidden}, 4);
  r.delta = whole_numbers({kTokens, kHidden}, 5);
  r.entered = r.x * r.half.scale;
  r.inner = r.entered.mm(r.half.first).relu();
  r.output = r.x + r.inner.mm(r.half.second);
  const at::Tensor of_inner = r.delta.mm(r.half.second.t()) * (r.inner > 0);
  r.of_entered = of_inner.mm(r.half.first.t());
  r.gradients = {r.delta + r.of_entered * r.half.scale, (r.of_entered * r.x).sum(0),
                 r.entered.t().mm(of_inner), r.inner.t().mm(r.delta)};
  return r;
}

// One rank's run.
class Run {
 public:
  Run(const Answer& answer, Communicator& axis) : answer_(answer), axis_(axis) {}

  void check() {
    const Half half = {right_.half.scale.clone(), features(right_.half.first, 1),
                       features(right_.half.second, 0)};
    const at::Tensor x = positions(right_.x), delta = positions(right_.delta);
    const std::int64_t before = sent();
    Kept kept;
    const at::Tensor output = answer_.forward(half, x, kept, axis_);
    const std::int64_t sent_forward = sent() - before;
    check_output(output, x, half);
    check_sent("forward", sent_forward, stream_bytes());
    check_kept("entered", kept.entered, right_.entered);
    check_kept("inner", kept.inner, features(right_.inner, 1));

    const std::int64_t after_forward = sent();
    const Gradients g = answer_.backward(half, x, kept, delta, axis_);
    check_gradients(g, x, delta);
    check_sent("backward", sent() - after_forward, stream_bytes() + all_reduce_bytes(kHidden));
  }

 private:
  std::size_t rank() const { return static_cast<std::size_t>(axis_.rank()); }
  std::int64_t sent() const { return axis_.traffic().bytes(); }
  at::Tensor positions(const at::Tensor& whole) const {
    return whole.chunk(axis_.size())[rank()].clone();
  }
  at::Tensor features(const at::Tensor& whole, int dim) const {
    return whole.chunk(axis_.size(), dim)[rank()].contiguous();
  }
  std::int64_t all_reduce_bytes(std::int64_t elements) const {
    return zero::dist::all_reduce_bytes(elements, kElement, axis_.rank(), axis_.size());
  }
  // An all-gather and a reduce-scatter of the stream.
  std::int64_t stream_bytes() const {
    return 2 * kTokens * kHidden * kElement * (axis_.size() - 1) / axis_.size();
  }
  at::Tensor summed(at::Tensor term) const {
    axis_.all_reduce(term, zero::dist::Purpose::kControl, zero::dist::ReduceOp::kSum).wait();
    return term;
  }

  void check_sizes(const char* what, const at::Tensor& mine, const at::Tensor& right) const {
    if (mine.defined() && mine.sizes() == right.sizes()) return;
    throw Mistake(fmt::format("rank {} has {} of {}, not {}", rank(), what,
                              mine.defined() ? mine.sizes().vec() : std::vector<std::int64_t>(),
                              right.sizes().vec()));
  }

  void check_output(const at::Tensor& output, const at::Tensor& x, const Half& half) const {
    const at::Tensor right = positions(right_.output);
    check_sizes("an output", output, right);
    // All ranks take part, whether or not their own output is right.
    const at::Tensor mixed = summed((x * half.scale).mm(half.first).relu().mm(half.second));
    if (output.equal(right)) return;
    const std::string begin = fmt::format("the output of rank {} ", rank());
    if (output.equal(x + mixed)) {
      throw Mistake(begin +
                    "has other ranks' positions added to its own: each rank has positions of its "
                    "own, so gather them before the matrices");
    }
    if (output.equal(x + positions(features(right_.inner, 1).mm(half.second)))) {
      throw Mistake(begin + "has this rank's features only: the ranks' terms must be added up");
    }
    if (((output - x) * axis_.size()).allclose(right - x)) {
      throw Mistake(begin + "has the average of the ranks' terms, not their sum");
    }
    throw Mistake(begin + "is not what one process computes");
  }

  void check_kept(const char* what, const at::Tensor& mine, const at::Tensor& right) const {
    check_sizes(what, mine, right);
    if (mine.equal(right)) return;
    throw Mistake(fmt::format("rank {} keeps other values as {}", rank(), what));
  }

  void check_gradients(const Gradients& g, const at::Tensor& x, const at::Tensor& delta) const {
    check_sizes("a gradient of x", g.x, delta);
    if (!g.x.equal(positions(right_.gradients.x))) {
      throw Mistake(fmt::format(
          "the gradient of x on rank {} is wrong: every rank's features read its positions",
          rank()));
    }
    check_sizes("a gradient of first", g.first, features(right_.gradients.first, 1));
    check_sizes("a gradient of second", g.second, features(right_.gradients.second, 0));
    if (!g.first.equal(features(right_.gradients.first, 1)) ||
        !g.second.equal(features(right_.gradients.second, 0))) {
      throw Mistake(fmt::format("the gradients of rank {}'s matrices are wrong", rank()));
    }
    check_scale(g.scale, x);
  }

  void check_scale(const at::Tensor& mine, const at::Tensor& x) const {
    const at::Tensor& right = right_.gradients.scale;
    check_sizes("a gradient of scale", mine, right);
    if (mine.equal(right)) return;
    const std::string begin = fmt::format("the gradient of scale on rank {} ", rank());
    if (mine.equal((positions(right_.of_entered) * x).sum(0))) {
      throw Mistake(begin +
                    "is of its own positions: without the others' the copies of scale drift apart");
    }
    if (mine.equal(right * axis_.size())) {
      throw Mistake(fmt::format("{}counts each position {} times", begin, axis_.size()));
    }
    throw Mistake(begin + "is wrong");
  }

  void check_sent(const char* pass, std::int64_t bytes, std::int64_t enough) const {
    if (bytes == enough) return;
    throw Mistake(fmt::format(
        "in {} rank {} sends {} bytes, not {}: {}", pass, rank(), bytes, enough,
        bytes > enough
            ? "of a sum a rank needs its own positions only, and only the stream is gathered"
            : "something is not sent"));
  }

  const Answer& answer_;
  Communicator& axis_;
  const Right right_ = right_of_all();
};

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& axis) { Run(answer, axis).check(); });
}

}  // namespace exercise_08f
