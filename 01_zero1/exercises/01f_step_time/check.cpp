// Runs the answer on strategies that note when each of their functions begins and ends, and
// compares with these times. So no verdict depends on how fast the machine is.

#include <fmt/format.h>

#include <00_simple_ddp/simple_ddp.hpp>
#include <01_zero1/zero1_sharding.hpp>
#include <grading/check.hpp>
#include <tools/models/mlp.hpp>
#include <zero/optim/adamw.hpp>

#include "01f.hpp"

namespace exercise_01f {

using zero::dist::Communicator;
using zero::exercise::Mistake;

// The clock and the counter at one moment.
struct Moment {
  double time =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  double communication = 0;
  double in_flight = 0;
};

struct Call {
  std::string name;
  Moment begin, end;
};

template <typename Strategy>
class Noted final : public Strategy {
 public:
  using Strategy::Strategy;

  using Strategy::forward;
  at::Tensor forward(const std::function<at::Tensor()>& pass,
                     std::optional<std::int64_t> loss_terms) override {
    return noted("forward", [&] { return Strategy::forward(pass, loss_terms); });
  }
  // One collective is hidden: it is in flight while backward runs.
  void backward(const at::Tensor& loss) override {
    noted("backward", [&] {
      zero::dist::Work hidden =
          this->communicator().all_reduce(at::ones({1}), zero::dist::Purpose::kControl);
      Strategy::backward(loss);
      hidden.wait();
    });
  }
  void finish_backward() override {
    noted("finish_backward", [&] { Strategy::finish_backward(); });
  }
  void optimizer_step() override {
    noted("optimizer_step", [&] { Strategy::optimizer_step(); });
  }
  void sync_parameters() override {
    noted("sync_parameters", [&] { Strategy::sync_parameters(); });
  }
  void zero_grad() override {
    noted("zero_grad", [&] { Strategy::zero_grad(); });
  }

  Moment moment() const {
    return {.communication = this->communicator().times().exposed_seconds(),
            .in_flight = this->communicator().times().in_flight_seconds()};
  }

  std::vector<Call> calls;

 private:
  template <typename Function>
  auto noted(const std::string& name, const Function& function) {
    struct Note {
      Noted& self;
      std::size_t index;
      ~Note() { self.calls[index].end = self.moment(); }
    };
    calls.push_back({name, moment(), {}});
    const Note note{*this, calls.size() - 1};
    return function();
  }
};

std::string milliseconds(double seconds) { return fmt::format("{:.3f} ms", 1000 * seconds); }

constexpr double kRounding = 1e-6;

// A phase is at least as long as its calls, and at most from the call before to the call after.
// Without communication, of which there is none between calls.
void check_phase(const std::string& name, double measured, const std::vector<Call>& calls,
                 std::size_t first, std::size_t last) {
  double least = 0, communication = 0;
  for (std::size_t i = first; i <= last; ++i) {
    const double inside = calls[i].end.communication - calls[i].begin.communication;
    communication += inside;
    least += calls[i].end.time - calls[i].begin.time - inside;
  }
  const double most = calls[last + 1].begin.time - calls[first - 1].end.time - communication;
  if (measured < least - kRounding) {
    throw Mistake(fmt::format("{} takes {}, and its calls alone, without communication, take {}",
                              name, milliseconds(measured), milliseconds(least)));
  }
  if (measured > most + kRounding) {
    throw Mistake(
        fmt::format("{} takes {}, and it can be at most {}: does it count communication as well?",
                    name, milliseconds(measured), milliseconds(most)));
  }
}

template <typename Strategy>
void check_step(const Answer& answer, Communicator& communicator) {
  zero::tools::Mlp model(zero::tools::MlpConfig{.inputs = 64, .hidden = {64, 64}, .outputs = 8});
  Noted<Strategy> strategy({model, communicator, zero::optim::adamw()});
  const at::Tensor inputs = at::ones({16, 64}), targets = at::ones({16, 8});
  const std::int64_t sent = communicator.traffic().bytes();
  const Moment begin = strategy.moment();
  const Phases phases =
      answer.profiled_step(strategy, [&] { return model.loss(inputs, targets, /*terms=*/16); });
  const Moment end = strategy.moment();

  std::vector<Call> calls = {{"", begin, begin}};
  for (const std::string name : {"forward", "backward", "finish_backward", "optimizer_step",
                                 "sync_parameters", "zero_grad"}) {
    std::vector<Call> found;
    for (const Call& call : strategy.calls) {
      if (call.name == name) found.push_back(call);
    }
    if (found.size() != 1) {
      throw Mistake(fmt::format("{}() is called {} times in a step", name, found.size()));
    }
    calls.push_back(found.front());
  }
  calls.push_back({"", end, end});

  check_phase("forward", phases.forward, calls, 1, 1);
  const double communication = end.communication - begin.communication;
  if (std::abs(phases.communication - communication) > kRounding) {
    const double in_flight = end.in_flight - begin.in_flight;
    throw Mistake(
        fmt::format("communication is {}, and exposed_seconds() grew by {}",
                    std::abs(phases.communication - in_flight) <= kRounding
                        ? "the growth of in_flight_seconds(), which also counts what is hidden"
                        : milliseconds(phases.communication),
                    milliseconds(communication)));
  }
  check_phase("backward", phases.backward, calls, 2, 3);
  check_phase("optimizer", phases.optimizer, calls, 4, 6);
  const double least = calls[6].end.time - calls[1].begin.time;
  const double most = end.time - begin.time;
  if (phases.sum() < least - kRounding || phases.sum() > most + kRounding) {
    throw Mistake(fmt::format("the phases add up to {}, and the step takes {}",
                              milliseconds(phases.sum()), milliseconds(most)));
  }
  if (phases.bytes != communicator.traffic().bytes() - sent) {
    throw Mistake(fmt::format("bytes is {}, and this step sent {}", phases.bytes,
                              communicator.traffic().bytes() - sent));
  }
}

void check(const Answer& answer) {
  zero::exercise::on_all_ranks([&](Communicator& communicator) {
    check_step<zero::SimpleDdp>(answer, communicator);
    check_step<zero::Zero1Sharding>(answer, communicator);
  });
}

}  // namespace exercise_01f
