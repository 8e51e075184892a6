// Trains with a host that ends each update as late as it may, and compares the weights with those
// of one rank that trains alone with the same delay.

#include <grading/check.hpp>

#include "10c.hpp"

namespace exercise_10c {

using zero::dist::Communicator;
using zero::exercise::refuse;

constexpr std::int64_t kWeights = 60;  // 1, 2, 3 and 5 divide it
constexpr int kSteps = 10;

bool is_delayed(int step) { return 4 <= step && step <= 8; }

// SGD with momentum and weight decay, so that an update with zeros moves the weights.
struct Optimizer {
  at::Tensor weights, momentum = at::zeros_like(weights);

  void update(const at::Tensor& gradient) {
    momentum = momentum * 0.9 + gradient;
    weights = weights * (1 - 0.01 * 0.01) - momentum * 0.01;
  }
};

at::Tensor first_weights() { return at::arange(kWeights) / 64.0; }

// The gradient of rank `rank` in a step, with these weights.
at::Tensor gradient_of(const at::Tensor& weights, int rank, int step) {
  at::manual_seed(100 * step + rank);
  const at::Tensor slope = at::randint(1, 9, {kWeights}), target = at::randint(-8, 9, {kWeights});
  return slope * weights - target;
}

class LateHost final : public Host {
 public:
  explicit LateHost(const at::Tensor& weights) : optimizer_{weights} {}

  void start_update(const at::Tensor& gradient) override {
    if (is_busy()) refuse("an update is started before the last one was waited for");
    if (gradient.eq(0).all().item<bool>()) {
      refuse(
          "an update with zeros is started: a step without a gradient has no update, or momentum "
          "and weight decay move the weights");
    }
    gradient_ = gradient;
  }
  void wait() override {
    if (is_busy()) optimizer_.update(gradient_);
    gradient_.reset();
  }
  at::Tensor weights() const override { return optimizer_.weights.clone(); }

  bool is_busy() const { return gradient_.defined(); }

 private:
  Optimizer optimizer_;
  at::Tensor gradient_;
};

class TestedDevice final : public Device {
 public:
  TestedDevice(Communicator& communicator, const LateHost& host, const at::Tensor& shard)
      : communicator_(communicator), host_(host) {
    weights = shard.clone();
    gradient = at::zeros_like(shard);
  }

  void compute() override {
    ++step_;
    if (is_delayed(step_) && is_delayed(step_ - 1) && !host_.is_busy()) {
      refuse(
          "step {}: the host has no update to do while the device computes, so nothing is hidden",
          step_);
    }
    const at::Tensor whole = at::empty({kWeights});
    communicator_.all_gather(whole, weights, zero::dist::Purpose::kParameter).wait();
    const at::Tensor all = gradient_of(whole, communicator_.rank(), step_);
    communicator_.reduce_scatter(gradient, all, zero::dist::Purpose::kGradient).wait();
  }

  int steps() const { return step_; }

 private:
  Communicator& communicator_;
  const LateHost& host_;
  int step_ = 0;
};

enum class Fault { kNone, kOld, kNewGradient };

// What one rank has after each step, and last after finish(), if it trains with all batches.
std::vector<at::Tensor> train_alone(int ranks, Fault fault) {
  std::vector<at::Tensor> after;
  Optimizer optimizer{first_weights()};
  at::Tensor weights = optimizer.weights, kept;
  for (int step = 1; step <= kSteps; ++step) {
    if (!is_delayed(step) && kept.defined()) {  // finish()
      optimizer.update(kept);
      weights = optimizer.weights;
      kept.reset();
    }
    const at::Tensor old = optimizer.weights;
    at::Tensor gradient = gradient_of(weights, 0, step);
    for (int rank = 1; rank < ranks; ++rank) gradient = gradient + gradient_of(weights, rank, step);
    gradient = gradient / ranks;
    if (!is_delayed(step)) {
      optimizer.update(gradient);
    } else {
      if (kept.defined()) optimizer.update(fault == Fault::kNewGradient ? gradient : kept);
      kept = gradient;
    }
    weights = fault == Fault::kOld && is_delayed(step) ? old : optimizer.weights;
    after.push_back(weights);
  }
  return after;
}

std::string explain(const at::Tensor& found, int step, int ranks, int begin) {
  const auto is = [&](const at::Tensor& whole) {
    return found.equal(whole.narrow(0, begin, found.numel()));
  };
  if (is(train_alone(ranks, Fault::kOld)[step - 1])) {
    return "the device has the weights from before the update that the host did in this step";
  }
  if (is(train_alone(ranks, Fault::kNewGradient)[step - 1])) {
    return "the host has used the gradient of this step: the device writes into the tensor that "
           "the host reads";
  }
  return "the weights are not those of one rank with the same delay";
}

void check_rank(const Answer& answer, Communicator& communicator) {
  const int rank = communicator.rank(), ranks = communicator.size();
  const std::int64_t shard = kWeights / ranks, begin = rank * shard;
  LateHost host(first_weights().narrow(0, begin, shard));
  TestedDevice device(communicator, host, host.weights());
  Rank mine{device, host};
  const auto right = train_alone(ranks, Fault::kNone);
  for (int step = 1; step <= kSteps; ++step) {
    if (!is_delayed(step) && is_delayed(step - 1)) {
      const at::Tensor before = device.weights.clone();
      answer.finish(mine);
      if (device.weights.equal(before)) {
        refuse("finish() has not changed the weights: the last gradient is lost");
      }
    }
    answer.train_step(mine, is_delayed(step));
    if (device.steps() != step) refuse("a step computes once");
    if (device.weights.equal(right[step - 1].narrow(0, begin, shard))) continue;
    refuse("step {}, rank {}: {}", step, rank, explain(device.weights, step, ranks, begin));
  }
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks(
      [&](Communicator& communicator) { check_rank(answer, communicator); });
}

}  // namespace exercise_10c
