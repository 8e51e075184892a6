// What each kind of pass does with units, gradients and reductions, and in which order: a strategy
// of stage 3 on one rank that does nothing but write it down.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/hooked_optimizer.hpp>
#include <tests/support/ranks.hpp>
#include <zero/base/error.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/unit.hpp>
#include <zero/train/strategy.hpp>
#include <zero/train/unsharded_parameters.hpp>

namespace zero::train {
namespace {

using Lines = std::vector<std::string>;

// A unit of one weight, with units inside.
class Part : public nn::Unit {
 public:
  Part() { weight = register_parameter("w", at::ones({2})); }
  std::shared_ptr<Part> add(const std::string& name) {
    return parts[name] = register_module(name, std::make_shared<Part>());
  }
  Part& operator[](const std::string& name) { return *parts.at(name); }
  // x times the weight, and then the parts in their order, or what `inside` makes of it.
  at::Tensor forward(const at::Tensor& x) {
    return run([&] {
      at::Tensor y = x * weight;
      for (auto& [_, part] : parts) y = part->forward(y);
      return y;
    });
  }
  at::Tensor forward(const std::function<at::Tensor(const at::Tensor&)>& inside) {
    return run([&] { return inside(at::ones({2}) * weight); });
  }
  // The same tensor as another unit's.
  void tie(const at::Tensor& other) { weight = parameters_["w"] = other; }

  at::Tensor weight;
  std::map<std::string, std::shared_ptr<Part>> parts;
};

// The root, units a and d in it, b and c in a.
std::shared_ptr<Part> small_tree() {
  auto root = std::make_shared<Part>();
  const auto a = root->add("a");
  a->add("b");
  a->add("c");
  root->add("d");
  return root;
}

// Gathers, drops and reduces nothing, but says so.
class Diary final : public Strategy {
 public:
  explicit Diary(const StrategyArguments& arguments)
      : Strategy(arguments), whole_(list().units.size(), false) {
    broadcast_first_values();
    reduce_in_backward(
        UnitSchedule::one_by_one(list()),
        [this](std::size_t i) { lines.push_back("reduce " + list().parameters[i].name); },
        Units::kGathered);
    passes().observe_gradients([this](std::size_t i, const at::Tensor&) {
      lines.push_back("gradient " + list().parameters[i].name);
    });
  }
  Costs costs() const override { return {}; }

  Lines lines;

 protected:
  void gather(std::size_t unit, Gather) override {
    if (!whole_[unit]) lines.push_back("gather " + name(unit));
    whole_[unit] = true;
  }
  void drop(std::size_t unit) override {
    if (!whole_[unit]) return;
    lines.push_back("drop " + name(unit));
    whole_[unit] = false;
  }

 private:
  std::string name(std::size_t unit) const {
    const std::string& path = list().units[unit].name;
    return path.empty() ? "root" : path;
  }
  std::vector<bool> whole_;
};

// Runs `program` with a strategy for `model`; one line for each thing that happened in between two
// calls of its own.
struct Events {
  Events(torch::nn::Module& model, dist::Communicator& communicator)
      : diary({model, communicator, testing::sgd(0.1, 0.0)}) {}
  at::Tensor forward(const std::function<at::Tensor()>& pass) {
    const at::Tensor result = diary.forward(pass, /*loss_terms=*/1);
    note("forward");
    return result;
  }
  void backward(const at::Tensor& loss, bool is_last = true) {
    diary.set_requires_gradient_sync(is_last);
    diary.backward(loss);
    note("backward");
    diary.finish_backward();
  }
  /// A step of one micro-batch.
  void train(const std::function<at::Tensor()>& pass) {
    backward(forward(pass).sum());
    step();
  }
  void step() {
    diary.optimizer_step();
    diary.zero_grad();
    note("step");
  }
  void note(const std::string& call) {
    const Lines lines = std::exchange(diary.lines, {});
    said.push_back(lines.empty() ? call : fmt::format("{}: {}", call, fmt::join(lines, ", ")));
  }
  Diary diary;
  Lines said;
};

// The lines of pass_events.txt under the name of the test.
Lines expected_lines() {
  std::ifstream file("common/zero/train/backward/pass_events.txt");
  const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  Lines lines;
  std::string line;
  while (std::getline(file, line) && line != "[" + name + "]") continue;
  while (std::getline(file, line) && !line.empty()) lines.push_back(line);
  return lines;
}

void expect_events(torch::nn::Module& model, const std::function<void(Events&)>& program) {
  testing::on_ranks(1, [&](dist::Communicator& communicator) {
    Events run(model, communicator);
    program(run);
    EXPECT_EQ(run.said, expected_lines()) << fmt::format("{}", fmt::join(run.said, "\n"));
  });
}

at::Tensor x_of_ones() { return at::ones({2}); }

at::Tensor without_graph(const std::function<at::Tensor()>& pass) {
  const at::NoGradGuard no_grad;
  return pass();
}

TEST(PassEvents, OfNestedUnits) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    for (int step = 0; step < 2; ++step) {
      run.train([&] { return model->forward(x_of_ones()); });
    }
  });
}

TEST(PassEvents, OfAUnitThatIsUsedTwice) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    run.train([&] {
      return model->forward([&](const at::Tensor& x) {
        return (*model)["d"].forward((*model)["a"].forward((*model)["d"].forward(x)));
      });
    });
  });
}

TEST(PassEvents, OfABranchThatIsNotTaken) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    run.train([&] {
      return model->forward([&](const at::Tensor& x) { return (*model)["d"].forward(x); });
    });
  });
}

TEST(PassEvents, OfACheckpoint) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    run.train([&] {
      return model->forward([&](const at::Tensor& x) {
        const at::Tensor y = nn::checkpoint(
            [&](const std::vector<at::Tensor>& in) { return (*model)["a"].forward(in.front()); },
            {x});
        return (*model)["d"].forward(y);
      });
    });
  });
}

TEST(PassEvents, OfAFrozenFirstUnit) {
  const auto model = small_tree();
  (*model)["a"].weight.requires_grad_(false);
  expect_events(*model,
                [&](Events& run) { run.train([&] { return model->forward(x_of_ones()); }); });
}

TEST(PassEvents, OfAUnitWithoutAGraph) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    run.train([&] {
      return model->forward([&](const at::Tensor& x) {
        const at::Tensor target = without_graph([&] { return (*model)["a"].forward(x); });
        return (*model)["d"].forward(x) - target;
      });
    });
  });
}

TEST(PassEvents, OfTiedWeights) {
  const auto tied = std::make_shared<Part>();
  tied->add("a");
  tied->add("d");
  (*tied)["d"].tie((*tied)["a"].weight);
  expect_events(*tied, [&](Events& run) { run.train([&] { return tied->forward(x_of_ones()); }); });
}

TEST(PassEvents, OfAPlainModule) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  expect_events(*net, [&](Events& run) { run.train([&] { return net->forward(x_of_ones()); }); });
}

TEST(PassEvents, OfAnEvaluationInsideALoss) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    run.train([&] {
      return model->forward([&](const at::Tensor& x) {
        const at::Tensor target = without_graph([&] { return model->forward(x_of_ones()); });
        return (*model)["a"].forward(x) - target;
      });
    });
  });
}

TEST(PassEvents, OfTwoForwardsBeforeABackward) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    const auto pass = [&] { return model->forward(x_of_ones()).sum(); };
    const at::Tensor first = run.forward(pass), second = run.forward(pass);
    run.backward(second, /*is_last=*/false);
    run.backward(first);
    run.step();
  });
}

TEST(PassEvents, OfAutogradGradBetweenForwardAndBackward) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    const at::Tensor x = x_of_ones().requires_grad_();
    const at::Tensor loss = run.forward([&] { return model->forward(x).sum(); });
    torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
    run.note("grad");
    run.backward(loss);
    run.step();
  });
}

TEST(PassEvents, OfAReadWithAGradient) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    at::Tensor penalty;
    {
      const UnshardedParameters whole(run.diary, 4);
      penalty = (*model)["d"].weight.square().sum();
    }
    run.note("read");
    run.backward(run.forward([&] { return model->forward(x_of_ones()).sum(); }) + penalty);
    run.step();
  });
}

TEST(PassEvents, AfterAForwardAndABackwardThatThrew) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    EXPECT_ANY_THROW(run.forward([&] {
      return model->forward([&](const at::Tensor& x) -> at::Tensor {
        (*model)["a"].forward(x);
        throw Error("of the program");
      });
    }));
    run.note("threw");
    const at::Tensor loss = run.forward([&] {
      return model
          ->forward([&](const at::Tensor& x) {
            const at::Tensor y = (*model)["a"].forward(x);
            y.register_hook([](const at::Tensor&) { throw Error("of the program"); });
            return (*model)["d"].forward(y);
          })
          .sum();
    });
    EXPECT_ANY_THROW(run.diary.backward(loss));
    run.note("threw");
    run.diary.zero_grad();
    run.note("given up");
    run.train([&] { return model->forward(x_of_ones()); });
  });
}

TEST(PassEvents, OfAnEvaluation) {
  const auto model = small_tree();
  expect_events(*model, [&](Events& run) {
    const at::Tensor loss = run.forward([&] { return model->forward(x_of_ones()).sum(); });
    {
      const at::NoGradGuard no_grad;
      run.forward([&] { return model->forward(x_of_ones()); });
    }
    run.backward(loss);
    run.step();
  });
}

}  // namespace
}  // namespace zero::train
