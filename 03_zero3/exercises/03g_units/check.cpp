// Trains models of several shapes, which autograd differentiates, and looks at every read of a
// parameter and at every collective. In the end the weights are compared with those of DDP.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <grading/check.hpp>

#include "03g.hpp"

namespace exercise_03g {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::exercise::refuse;

constexpr int kMost = 9, kWidth = 5;
constexpr double kLearningRate = 0.1;

using Model = std::function<Piece(int rank)>;

// ---- the shape of a model

// What is known of a model from its pieces on all ranks.
class Shape {
 public:
  Shape(const Model& model, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Piece root = model(rank);
      if (!root.is_unit || root.number != 0) {
        refuse("the outermost piece is not unit 0, the root");
      }
      units_run_.emplace_back();
      parameters_read_.emplace_back();
      visit(root, -1);
      if (units_run_.back() != units_run_.front()) {
        refuse(
            "the model runs other units on rank {} than on rank 0: a gather needs its owners, and "
            "they would wait for each other forever",
            rank);
      }
    }
    expect_all_numbers("unit", around_);
    expect_all_numbers("parameter", unit_of_);
    for (const auto& [parameter, unit] : unit_of_) parameters_[unit].push_back(parameter);
  }

  int units() const { return static_cast<int>(around_.size()); }
  int parameters() const { return static_cast<int>(unit_of_.size()); }
  const std::vector<int>& parameters(int unit) const { return parameters_[unit]; }
  int unit_of(int parameter) const { return unit_of_.at(parameter); }
  bool contains(int outer, int inner) const {
    for (inner = around_.at(inner); inner >= 0; inner = around_.at(inner)) {
      if (inner == outer) return true;
    }
    return false;
  }

  // Throws if the model lacks what this exercise is about.
  void expect_every_case() const {
    if (std::none_of(around_.begin(), around_.end(), [](auto& unit) { return unit.second > 0; })) {
      refuse("no unit lies inside a unit other than the root");
    }
    const std::vector<int>& run = units_run_[0];
    if (run.size() == around_.size()) refuse("no unit runs twice");
    if (parameters_read_[0] == parameters_read_[1]) {
      refuse("rank 1 reads what rank 0 reads: no rank skips a branch");
    }
  }

 private:
  void visit(const Piece& piece, int outer) {
    const int number = piece.number;
    if (number < 0 || number >= kMost) refuse("there is a number {}: take 0 to 8", number);
    if (!piece.is_unit) {
      parameters_read_.back().push_back(number);
      const auto [known, is_new] = unit_of_.try_emplace(number, outer);
      // Of several units that read it, it belongs to the innermost one around all.
      while (known->second != outer && !contains(known->second, outer)) {
        known->second = around_.at(known->second);
      }
      return;
    }
    units_run_.back().push_back(number);
    const auto [known, is_new] = around_.try_emplace(number, outer);
    if (known->second != outer || number == outer) {
      refuse("unit {} lies in unit {} and in unit {}: a unit has one place", number, known->second,
             outer);
    }
    for (const Piece& each : piece.body) visit(each, number);
  }

  static void expect_all_numbers(const std::string& what, const std::map<int, int>& of) {
    int next = 0;
    for (const auto& [number, unit] : of) {
      if (number != next++) refuse("there is a {} {}, and no {} {}", what, number, what, next - 1);
    }
  }

  std::map<int, int> around_;   // by unit, -1 for the root
  std::map<int, int> unit_of_;  // by parameter
  std::vector<int> parameters_[kMost];
  std::vector<std::vector<int>> units_run_, parameters_read_;  // by rank
};

// ---- the weights of a model

std::vector<at::Tensor> first_weights(const Shape& shape) {
  std::vector<at::Tensor> weights;
  for (int parameter = 0; parameter < shape.parameters(); ++parameter) {
    at::manual_seed(parameter);
    weights.push_back(at::randn({kWidth, kWidth}).mul_(0.5).requires_grad_());
  }
  return weights;
}

at::Tensor zeros_if_missing(const at::Tensor& gradient) {
  return gradient.defined() ? gradient : at::zeros({kWidth, kWidth});
}

// What happens around the pieces of a forward.
struct Hooks {
  virtual ~Hooks() = default;
  virtual void before(int /*unit*/) {}
  virtual at::Tensor after(int /*unit*/, const at::Tensor& output) { return output; }
  virtual void reads(int /*parameter*/) {}
  virtual void watch(int /*parameter*/, const at::Tensor& /*product*/) {}
};

at::Tensor forward(const Piece& piece, at::Tensor x, const std::vector<at::Tensor>& weights,
                   Hooks& hooks) {
  if (piece.is_unit) {
    hooks.before(piece.number);
    for (const Piece& each : piece.body) x = forward(each, x, weights, hooks);
    return hooks.after(piece.number, x);
  }
  hooks.reads(piece.number);
  const at::Tensor product = x.mm(weights[piece.number]);
  hooks.watch(piece.number, product);
  return product.tanh();
}

void forward_and_backward(const Piece& model, int rank, int step,
                          const std::vector<at::Tensor>& weights, Hooks& hooks) {
  at::manual_seed(100 * step + rank);
  // An input with a gradient: backward comes through all pieces.
  const at::Tensor x = at::randn({3, kWidth}).requires_grad_();
  forward(model, x, weights, hooks).square().sum().backward();
}

// ---- ZeRO-3 with the decisions of an answer

class Zero3 final : public Units, public Hooks {
 public:
  Zero3(const Answer& answer, Communicator& communicator, const Shape& shape)
      : answer_(answer),
        communicator_(communicator),
        shape_(shape),
        schedule_(shape.units()),
        weights_(first_weights(shape)) {
    for (const at::Tensor& weight : weights_) owned_.push_back(weight.detach().clone());
    for (int unit = 0; unit < shape.units(); ++unit) drop(unit);
  }

  // A step of gradient descent. `ddp`: the weights of DDP, which takes the same step.
  void train(const Piece& model, int step, const std::vector<at::Tensor>& ddp) {
    const int rank = communicator_.rank();
    Hooks none;
    forward_and_backward(model, rank, step, ddp, none);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& weight : ddp) gradients.push_back(zeros_if_missing(weight.grad()));
    meet(kBegin, gradients);
    for (int p = 0; p < shape_.parameters(); ++p)
      update(ddp[p].variable_data(), average(p), ddp[p]);

    is_backward_ = false;
    for (auto* const counts : {&to_begin_, &gathers_, &reads_left_, &reductions_}) {
      std::fill(std::begin(*counts), std::end(*counts), 0);
    }
    forward_and_backward(model, rank, step, weights_, *this);
    answer_.backward_done(*this, schedule_);
    meet(kDone);
    for (int u = 0; u < shape_.units(); ++u) check_end(u, "after backward_done()");
    for (int p = 0; p < shape_.parameters(); ++p)
      update(owned_[p], weights_[p].grad(), weights_[p]);
  }

  bool owns(int parameter) const { return owner(parameter) == communicator_.rank(); }
  const at::Tensor& owned(int parameter) const { return owned_[parameter]; }

  // What the answer calls.
  bool contains(int outer, int inner) const override {
    return shape_.contains(unit(outer), unit(inner));
  }
  const std::vector<int>& parameters(int u) const override { return shape_.parameters(unit(u)); }
  bool has_gradient(int p) const override { return weights_[parameter(p)].grad().defined(); }
  bool is_whole(int u) const override { return is_whole_[unit(u)]; }

  void gather(int u) override {
    if (is_whole(u)) refuse("unit {} is gathered, although it is whole", u);
    if (is_backward_ && u == 0) {
      refuse("the root is gathered in backward: it was whole when forward ended with it");
    }
    if (is_backward_ && ++gathers_[u] > 1) {
      refuse(
          "unit {} is gathered twice in backward: it was dropped when another use of it was still "
          "to come",
          u);
    }
    if (is_backward_) meet(u);  // in forward the model decides, which is the same on all ranks
    for (const int p : parameters(u)) weights_[p].variable_data().copy_(all_[owner(p)][p]);
    is_whole_[u] = true;
  }

  void drop(int u) override {
    is_whole_[unit(u)] = false;
    for (const int parameter : parameters(u)) weights_[parameter].variable_data().fill_(NAN);
  }

  void reduce(int p) override {
    const int u = shape_.unit_of(parameter(p));
    const std::string name = fmt::format("the gradient of parameter {} of unit {}", p, u);
    if (!is_backward_) refuse("{} is reduced before backward", name);
    if (++reductions_[p] > 1) refuse("{} is reduced twice", name);
    if (reads_left_[p] > 0) {
      refuse("{} is reduced too early, when it is not complete: {}", name,
             to_begin_[u] > 0 ? "the backward of a use of the unit is still to come"
                              : "backward is in a unit inside");
    }
    meet(kReduce + p, {zeros_if_missing(weights_[p].grad())});
    weights_[p].mutable_grad() = average(0);
  }

  // What forward and autograd call.
  void before(int u) override {
    ++to_begin_[u];
    answer_.forward_begins(*this, schedule_, u);
  }
  at::Tensor after(int u, const at::Tensor& output) override {
    answer_.forward_ends(*this, schedule_, u);
    if (u != 0 && is_whole_[u]) refuse("unit {} is still whole after its forward", u);
    const at::Tensor y = output.view_as(output);  // the last operation of the unit
    y.register_hook([this, u](const at::Tensor& /*gradient*/) { begin_backward(u); });
    return y;
  }
  void reads(int p) override { check_read("forward", p); }
  void watch(int p, const at::Tensor& product) override {
    ++reads_left_[p];
    product.register_hook([this, p](const at::Tensor& /*gradient*/) {
      check_read("backward", p);
      --reads_left_[p];
    });
  }

 private:
  // Slots of what a rank sends; before them are the parameters that it owns.
  static constexpr int kWhat = kMost, kGradients = kMost + 1, kSlots = 2 * kMost + 1;
  // What it is about to do: the number of a unit is its gather.
  static constexpr int kReduce = 100, kBegin = 200, kDone = 201;

  int owner(int parameter) const { return parameter % communicator_.size(); }

  int unit(int number) const {
    if (number < 0 || number >= shape_.units()) refuse("there is no unit {}", number);
    return number;
  }
  int parameter(int number) const {
    if (number < 0 || number >= shape_.parameters()) refuse("there is no parameter {}", number);
    return number;
  }

  // Throws if ranks are about to do different things. Each rank also sends the parameters that it
  // owns and `gradients`, because a loaded machine takes long for each collective.
  void meet(int what, const std::vector<at::Tensor>& gradients = {}) {
    at::Tensor mine = at::zeros({kSlots, kWidth, kWidth});
    for (int p = 0; p < shape_.parameters(); ++p) {
      if (owns(p)) mine[p].copy_(owned_[p]);
    }
    mine[kWhat].fill_(what);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      mine[kGradients + static_cast<int>(i)].copy_(gradients[i]);
    }
    all_ = at::empty({communicator_.size(), kSlots, kWidth, kWidth});
    communicator_.all_gather(all_, mine, Purpose::kParameter).wait();
    const auto said = [&](int rank) { return all_[rank][kWhat][0][0].item<int>(); };
    for (int rank = 1; rank < communicator_.size(); ++rank) {
      if (said(rank) == said(0)) continue;
      refuse("rank 0 {} while rank {} {}: they would wait for each other forever", named(said(0)),
             rank, named(said(rank)));
    }
  }

  // Of a gradient that ranks have sent, in the order of ranks.
  at::Tensor average(int gradient) const {
    at::Tensor sum = all_[0][kGradients + gradient].clone();
    for (int rank = 1; rank < communicator_.size(); ++rank) {
      sum.add_(all_[rank][kGradients + gradient]);
    }
    return sum.div_(communicator_.size());
  }

  static void update(const at::Tensor& values, const at::Tensor& gradient, const at::Tensor& of) {
    values.sub_(gradient, kLearningRate);
    of.mutable_grad().reset();
  }

  std::string named(int what) const {
    if (what >= kBegin) return "is done with backward";
    if (what < kReduce) return fmt::format("gathers unit {}", what);
    return fmt::format("reduces the gradient of parameter {}", what - kReduce);
  }

  void check_read(const char* pass, int p) const {
    const int u = shape_.unit_of(p);
    if (is_whole_[u]) return;
    const bool was_dropped = is_backward_ && gathers_[u] > 0;
    refuse("{} reads parameter {} of unit {}, which is not whole: {}", pass, p, u,
           was_dropped ? "it was dropped in backward, before this read"
                       : (is_backward_ ? "nothing has gathered it since forward"
                                       : "nothing has gathered it"));
  }

  void begin_backward(int u) {
    is_backward_ = true;
    --to_begin_[u];
    answer_.backward_begins(*this, schedule_, u);
    for (int v = 0; v < shape_.units(); ++v) {
      if (v == u || to_begin_[v] > 0 || shape_.contains(v, u)) continue;
      check_end(v, fmt::format("when the backward of unit {} begins,", u));
    }
  }

  // The backward of the unit is over.
  void check_end(int u, const std::string& when) const {
    if (is_whole_[u]) refuse("{} unit {} is still whole, although its backward is over", when, u);
    for (const int parameter : shape_.parameters(u)) {
      if (reductions_[parameter] > 0) continue;
      refuse(
          "{} the gradient of parameter {} of unit {} is not reduced, although the backward of the "
          "unit is over",
          when, parameter, u);
    }
  }

  const Answer& answer_;
  Communicator& communicator_;
  const Shape& shape_;
  Schedule schedule_;
  std::vector<at::Tensor> weights_, owned_;  // by parameter; weights are NaN while dropped
  at::Tensor all_;                           // what ranks have sent, by rank and slot
  bool is_whole_[kMost] = {};                // by unit
  bool is_backward_ = false;
  // In this step: uses whose backward has not begun and gathers in backward, by unit; reads whose
  // backward has not begun and reductions, by parameter.
  int to_begin_[kMost] = {}, gathers_[kMost] = {}, reads_left_[kMost] = {}, reductions_[kMost] = {};
};

// ---- the check

void check_model(const Answer& answer, Communicator& communicator, const Shape& shape,
                 const Piece& model, int steps) {
  Zero3 zero3(answer, communicator, shape);
  const std::vector<at::Tensor> ddp = first_weights(shape);
  for (int step = 1; step <= steps; ++step) {
    try {
      zero3.train(model, step, ddp);
    } catch (const zero::exercise::Mistake& mistake) {
      refuse("in step {} {}", step, mistake.what());
    }
    for (int p = 0; p < shape.parameters(); ++p) {
      if (!zero3.owns(p) || zero3.owned(p).equal(ddp[p])) continue;
      refuse("after step {} parameter {} is not that of DDP", step, p);
    }
  }
}

const std::vector<std::pair<std::string, Model>>& models() {
  static const std::vector<std::pair<std::string, Model>> all = {
      {"a chain",
       [](int) {
         return runs(0, {reads(0), runs(1, {reads(1)}), runs(2, {reads(2)}), reads(3)});
       }},
      {"a branch that rank 1 skips",
       [](int rank) {
         std::vector<Piece> body = {reads(1)};
         if (rank != 1) body.push_back(reads(2));
         return runs(0, {runs(1, {reads(0)}), runs(2, body), reads(3)});
       }},
      {"a unit that runs three times",
       [](int) {
         const Piece one = runs(1, {reads(0)}), two = runs(2, {reads(1)});
         return runs(0, {one, two, one, one, reads(2)});
       }},
      {"units inside units",
       [](int rank) {
         std::vector<Piece> body = {reads(1), runs(2, {reads(2), runs(3, {reads(3)})})};
         if (rank != 0) body.push_back(reads(4));
         return runs(0, {reads(0), runs(4, {reads(5)}), runs(1, body)});
       }},
      // Unit 2 hands its input on where rank 1 skips its only parameter.
      {"all of it",
       [](int rank) {
         const Piece two = runs(2, rank == 1 ? std::vector<Piece>{} : std::vector{reads(2)});
         const Piece one = runs(1, {reads(1), two, reads(5), two});
         const Piece three = runs(3, {reads(3), reads(4)});
         return runs(0, {reads(0), one, three, one, three, reads(5)});
       }},
  };
  return all;
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& communicator) {
    const auto check_one = [&](const Model& model, int steps) {
      const Shape shape(model, std::max(2, communicator.size()));
      check_model(answer, communicator, shape, model(communicator.rank()), steps);
    };
    for (const auto& [name, model] : models()) {
      const int steps = &model == &models()[0].second ? 2 : 1;  // one model shows what stays
      zero::exercise::in_case(name, [&, &model = model] { check_one(model, steps); });
    }
    zero::exercise::in_case("your model", [&] {
      Shape(answer.model, std::max(2, communicator.size())).expect_every_case();
      check_one(answer.model, 2);
    });
  });
}

}  // namespace exercise_03g
