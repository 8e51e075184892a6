// Trains the model of 03h.hpp beside DDP, and looks at the storages of its weights whenever a unit
// begins or ends. The communicator refuses ranks that call different collectives.

#include <fmt/format.h>

#include <algorithm>

#include <grading/check.hpp>
#include <zero/memory/accounting.hpp>

#include "03h.hpp"

namespace exercise_03h {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::exercise::refuse;

constexpr int kSteps = 3;
constexpr double kRate = 0.1;

constexpr int kNone = -1;
constexpr int kParents[] = {kNone, kRoot, kBody, kBody, kBody};
constexpr const char* kNames[] = {"root", "body", "embedding", "first", "second"};
constexpr int kGathers[] = {1, 2, 2, 3, 2};  // in a step: those of forward, and one in backward
// By weight: the positions, the tokens, which are tied, two blocks, and the last layer.
constexpr int kUnitOf[] = {kEmbedding, kBody,   kFirst,  kFirst,  kFirst,  kFirst,  kFirst, kFirst,
                           kSecond,    kSecond, kSecond, kSecond, kSecond, kSecond, kRoot,  kRoot};

struct Weight {
  std::string name;
  at::Tensor tensor;
  c10::Storage storage;  // that autograd saves; the tensor might get another one
};

std::vector<Weight> weights_of(const Net& net) {
  std::vector<Weight> weights;
  for (const auto& [name, tensor] : net.named_parameters().pairs()) {
    if (name != "body.head.weight") weights.push_back({name, tensor, tensor.storage()});  // tied
  }
  return weights;
}

std::shared_ptr<Net> first_model() {
  at::manual_seed(0);  // the same on every rank
  return std::make_shared<Net>();
}

// Plain DDP: every rank holds everything.
struct Ddp final : Method {
  Ddp(Communicator& all, const Net& net) : ranks(all), weights(weights_of(net)) {}

  at::Tensor run(int /*unit*/, const std::function<at::Tensor()>& body) override { return body(); }
  void end_backward() override {}
  void update(double rate) override {
    for (const Weight& weight : weights) {
      at::Tensor& gradient = weight.tensor.mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(weight.tensor);
      ranks.all_reduce(gradient, Purpose::kGradient).wait();
      weight.tensor.variable_data().sub_(gradient, rate);
      gradient.reset();
    }
  }

  Communicator& ranks;
  std::vector<Weight> weights;
};

// An answer, and what its rank holds.
struct Watched final : Method {
  Watched(const Answer& answer, Communicator& all, Net& net)
      : ranks(all), weights(weights_of(net)), method(answer.zero3(all, net.units())) {
    expect(kNone, "before the first step");
  }

  at::Tensor run(int unit, const std::function<at::Tensor()>& body) override {
    output = method->run(unit, [&] {
      expect(unit, fmt::format("when the forward of unit {} begins,", kNames[unit]));
      const at::Tensor y = body();
      if (y.is_same(output)) return y;  // the unit computes nothing
      y.register_hook([this, unit](const at::Tensor& /*gradient*/) {
        expect(unit, fmt::format("when the backward of unit {} begins,", kNames[unit]));
      });
      return y.view_as(y);  // the hooks of the answer come before ours
    });
    expect(std::max(kParents[unit], +kRoot),
           fmt::format("after the forward of unit {}", kNames[unit]));
    return output;
  }
  void end_backward() override {
    output.reset();
    method->end_backward();
    expect(kNone, "after backward");
  }
  void update(double rate) override { method->update(rate); }

  int owner(int weight) const { return weight % ranks.size(); }
  bool owns(int weight) const { return owner(weight) == ranks.rank(); }
  // Throws unless this rank holds what it owns, the units around `running` and that unit.
  void expect(int running, const std::string& when) const {
    const int rank = ranks.rank();
    for (int i = 0; i < static_cast<int>(weights.size()); ++i) {
      const auto& [name, tensor, storage] = weights[i];
      const bool holds = storage.data() != nullptr, whole = is_around(kUnitOf[i], running);
      const std::string what = fmt::format("{} of unit {}", name, kNames[kUnitOf[i]]);
      if (!tensor.storage().is_alias_of(storage)) {
        refuse("{} {} has another storage: autograd may have saved the first", when, what);
      }
      if ((whole || owns(i)) && !holds) refuse("{} rank {} does not hold {}", when, rank, what);
      if (whole || owns(i) || (!holds && !tensor.grad().defined())) continue;
      refuse("{} rank {} still holds {}{}, which rank {} owns", when, rank,
             holds ? "" : "the gradient of ", what, owner(i));
    }
  }
  // Also if they are the same unit.
  static bool is_around(int outer, int unit) {
    while (unit != kNone && unit != outer) unit = kParents[unit];
    return unit == outer;
  }

  Communicator& ranks;
  std::vector<Weight> weights;
  at::Tensor output;  // of the unit that ended forward last
  std::unique_ptr<Method> method;
};

void train(Communicator& ranks, Net& net, Method& method, int step) {
  at::manual_seed(100 * step + ranks.rank());  // another batch on every rank
  const at::Tensor ids = at::randint(kWords, {kTokens}, at::kLong);
  net.forward(method, ids, /*takes_branch=*/ranks.rank() != 1).square().mean().backward();
  method.end_backward();
  method.update(kRate);
}

// Of the sharded model, after a step. `held` and `sent`: all bytes of tensors, and those of the
// step.
void check_rank(const Watched& zero3, const Ddp& ddp, std::int64_t held, std::int64_t sent) {
  const int rank = zero3.ranks.rank(), others = zero3.ranks.size() - 1;
  std::int64_t owned = 0, to_send = 0;
  for (int i = 0; i < static_cast<int>(ddp.weights.size()); ++i) {
    const auto& [name, tensor, storage] = zero3.weights[i];
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    owned += zero3.owns(i) ? bytes : 0;
    to_send += zero3.owns(i) ? others * kGathers[kUnitOf[i]] * bytes : bytes;
    if (zero3.owns(i) && !at::equal(tensor, ddp.weights[i].tensor)) {
      refuse("{} is not that of DDP", name);
    }
  }
  if (held != owned) {
    refuse("rank {} holds {} bytes, and not only the {} that it owns", rank, held, owned);
  }
  if (sent != to_send) {
    refuse(
        "rank {} has sent {} bytes and not {}: a unit is gathered for each forward, once in "
        "backward, and reduced once",
        rank, sent, to_send);
  }
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& ranks) {
    const auto net = first_model();
    Ddp ddp(ranks, *net);
    const std::int64_t before = zero::memory::snapshot().total;
    const auto sharded = first_model();
    Watched zero3(answer, ranks, *sharded);
    for (int step = 1; step <= kSteps; ++step) {
      train(ranks, *net, ddp, step);
      const std::int64_t earlier = ranks.traffic().bytes();
      train(ranks, *sharded, zero3, step);
      zero::exercise::in_case(fmt::format("after step {}", step), [&] {
        check_rank(zero3, ddp, zero::memory::snapshot().total - before,
                   ranks.traffic().bytes() - earlier);
      });
    }
  });
}

}  // namespace exercise_03h
