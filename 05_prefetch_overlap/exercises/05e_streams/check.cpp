// Runs the answer on ranks with an emulated device, whose checker says which accesses to memory
// nothing orders, and compares with a run that waits for everything at once.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <regex>

#include <grading/check.hpp>
#include <tests/support/accelerator/accelerator.hpp>
#include <tests/support/accelerator/backend.hpp>
#include <tests/support/accelerator/checker.hpp>
#include <tests/support/accelerator/host_views.hpp>
#include <tests/support/accelerator/streams.hpp>

#include "05e.hpp"

namespace exercise_05e {

using zero::dist::Communicator;
using zero::dist::Purpose;
using zero::exercise::refuse;
using zero::testing::emulated::Checker;
using zero::testing::emulated::kDevice;

constexpr int kLayers = 4;
constexpr std::int64_t kWidth = 12;

const c10::impl::DeviceGuardImplInterface& streams() {
  static const c10::impl::VirtualGuardImpl guard(kDevice.type());
  return guard;
}

// Refuses what the checker has found since the last call, without the functions that it names.
void verify_order() {
  const auto findings = Checker::get().take_findings();
  if (findings.empty()) return;
  static const std::regex callers(R"( in \w+::\S+( < \S+)*)");
  refuse("{}", std::regex_replace(findings.front().text, callers, ""));
}

// Whether work of another stream writes the tensor that the current stream has not waited for: a
// read now would be a finding.
bool is_in_flight(const at::Tensor& tensor) {
  namespace emulated = zero::testing::emulated;
  verify_order();
  Checker::get().launch(emulated::current_stream(), {emulated::access_to(tensor, /*writes=*/false)},
                        "a look");
  return !Checker::get().take_findings().empty();
}

class Emulated final : public Rank {
 public:
  explicit Emulated(Communicator& communicator) : communicator_(communicator) {
    at::manual_seed(static_cast<std::uint64_t>(communicator.rank()));
    for (int layer = 0; layer < kLayers; ++layer) {
      shards_.push_back(at::randn({kWidth / communicator.size(), kWidth}).to(kDevice));
      gradients_.push_back(at::randn({kWidth, kWidth}).to(kDevice));
    }
  }

  int layers() const override { return kLayers; }
  c10::Stream computing() const override { return streams().getDefaultStream(kDevice); }
  Gathered start_gather(int layer) override {
    Gathered next{at::empty({kWidth, kWidth}, kDevice)};
    next.gather = communicator_.all_gather(next.weight, shards_.at(layer), Purpose::kParameter);
    gathered_ = next.weight;
    return next;
  }
  at::Tensor forward(int layer, const at::Tensor& x, const at::Tensor& weight) override {
    const at::Tensor output = x.mm(weight).tanh();
    zero::exercise::in_case(fmt::format("layer {}", layer), &verify_order);
    if (overlaps_ && layer + 1 < kLayers && !is_in_flight(gathered_)) {
      refuse("layer {} computes while no gather is on its way: nothing hides the next", layer);
    }
    return output;
  }
  at::Tensor backward(int layer) override {
    if (overlaps_ && layer + 1 < kLayers && !is_in_flight(reduced_)) {
      refuse("layer {} runs backward while no reduction is on its way", layer);
    }
    return gradients_.at(layer).to(at::kBFloat16);
  }
  at::Tensor reduce(const at::Tensor& gradient) override {
    reduced_ = at::empty({kWidth / communicator_.size(), kWidth}, kDevice);
    communicator_.reduce_scatter(reduced_, gradient, Purpose::kGradient).wait();
    return reduced_;
  }

  // The same results, one thing after the other.
  at::Tensor serial_forward(at::Tensor x) {
    overlaps_ = false;
    for (int layer = 0; layer < kLayers; ++layer) {
      Gathered here = start_gather(layer);
      here.gather.wait();
      x = forward(layer, x, here.weight);
    }
    overlaps_ = true;
    return x.cpu();
  }
  at::Tensor serial_backward() {
    std::vector<at::Tensor> shards;
    for (int layer = kLayers - 1; layer >= 0; --layer) {
      shards.push_back(reduce(gradients_.at(layer).to(at::kBFloat16).to(at::kFloat)));
    }
    return at::stack(shards).cpu();
  }

 private:
  Communicator& communicator_;
  std::vector<at::Tensor> shards_, gradients_;
  at::Tensor gathered_, reduced_;  // the last
  bool overlaps_ = true;
};

// `part` of an answer gives a tensor. It may make the host wait so often.
void check_part(const std::string& name, const at::Tensor& expected, int host_waits,
                const std::function<at::Tensor()>& part) {
  zero::exercise::in_case(name, [&] {
    Checker::get().synchronize();
    const auto before = Checker::get().counts().host_waits;
    const at::Tensor result = part();
    const auto waits = Checker::get().counts().host_waits - before;
    verify_order();
    if (waits > host_waits) refuse("the host waits {} times: {} is enough", waits, host_waits);
    const at::Tensor there = result.cpu();  // read by the computing stream
    verify_order();
    if (!at::equal(there, expected)) refuse("the result is not that of the serial step");
  });
}

void check_rank(const Answer& answer, Communicator& communicator) {
  Emulated rank(communicator);
  const at::Tensor x = at::ones({2, kWidth}).to(kDevice);
  check_part("forward", rank.serial_forward(x), 0, [&] { return answer.forward(rank, x); });
  std::vector<at::Tensor> shards;
  check_part("backward", rank.serial_backward(), 0, [&] {
    return at::stack(shards = answer.backward(rank, streams().getNewStream(kDevice)));
  });
  const std::vector<at::Tensor> losses = {x.sum(), x.mean()};
  check_part("mean", at::stack(losses).mean().cpu(), 1,
             [&] { return at::full({}, answer.mean(rank, losses)); });
  Checker::get().synchronize();  // what is left is freed in order
}

void check(const Answer& answer) {
  zero::testing::emulated::enable_backend();
  for (const int ranks : {2, 3}) {
    zero::exercise::on_ranks(
        ranks, [&](Communicator& communicator) { check_rank(answer, communicator); }, "emulated");
  }
}

}  // namespace exercise_05e
