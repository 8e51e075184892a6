#include "fake_backend.hpp"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/sum_by_operations.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {
namespace {

class FakeBackend final : public Backend {
 public:
  FakeBackend(int rank, int size) : rank_(rank), size_(size) {}

  std::string transport() const override { return "none: a fake process group, nothing is sent"; }
  bool takes(at::Device /*device*/) const override { return true; }
  // The same as in a real group, so that a step has the same number of collectives. Nothing is
  // added up here, so no gradient is ever found not finite.
  bool finds_not_finite() const override { return true; }

  WorkPtr start(const Call& call, at::Tensor output, at::Tensor input) override {
    // Like a real operation, it has no effect before wait().
    return when_waited_for([this, call, output = std::move(output), input = std::move(input)] {
      finish(call, output, input);
    });
  }

 private:
  void finish(const Call& call, const at::Tensor& output, const at::Tensor& input) const;
  void combine(const at::Tensor& tensor, int divisor) const;
  void all_gather(const Call& call, const at::Tensor& output, const at::Tensor& input) const;

  int rank_;
  int size_;
};

// What a message from another rank has in every place. Its memory may hold anything before, and
// zeros would leave a norm layer nothing to scale.
constexpr double kReceived = 1.0 / 64;

Connection fake_connection(int rank, int size) {
  return {.place = {.rank = rank, .size = size},
          .cpu = std::make_unique<FakeBackend>(rank, size),
          .split = [](int rank_there, const std::vector<int>& ranks, const std::string&) {
            return fake_connection(rank_there, static_cast<int>(ranks.size()));
          }};
}

}  // namespace

Communicator connect_fake(int rank, int size, int ranks_per_host) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(
        fmt::format("there is no rank {} in a world of {}: ranks are 0 to N-1", rank, size));
  }
  if (ranks_per_host < 0 || (ranks_per_host > 0 && size % ranks_per_host != 0)) {
    throw Error(fmt::format(
        "a world of {} ranks cannot fill hosts of {} ranks: the number of ranks on a host must "
        "divide that of all",
        size, ranks_per_host));
  }
  Connection connection = fake_connection(rank, size);
  for (int r = 0; ranks_per_host > 0 && r < size; ++r) {
    connection.place.hosts.push_back(r / ranks_per_host);
  }
  return Communicator(std::move(connection));
}

void FakeBackend::combine(const at::Tensor& tensor, int divisor) const {
  if (divisor == size_) return;
  at::Tensor(tensor).mul_(size_);
  divide(tensor, divisor);
}

void FakeBackend::finish(const Call& call, const at::Tensor& output,
                         const at::Tensor& input) const {
  const c10::NoGradGuard no_grad;
  switch (call.operation) {
    case Operation::kBroadcast:
      if (rank_ != call.root) at::Tensor(output).fill_(kReceived);
      return;
    case Operation::kReduce:
      if (rank_ == call.root) combine(output, call.divisor);
      return;
    case Operation::kAllReduce:
      return combine(output, call.divisor);
    case Operation::kReduceScatter: {
      const at::Tensor mine = input.flatten().narrow(0, rank_ * output.numel(), output.numel());
      if (mine.data_ptr() != output.data_ptr()) output.copy_(mine.view_as(output));
      return combine(output, call.divisor);
    }
    case Operation::kAllToAll: {
      const at::Tensor pieces = output.view({size_, -1});
      pieces.copy_(input.view({size_, -1}).narrow(0, rank_, 1).expand_as(pieces));
      return;
    }
    case Operation::kSend:
      return;
    case Operation::kRecv:
      at::Tensor(output).fill_(kReceived);
      return;
    default:
      return all_gather(call, output, input);
  }
}

void FakeBackend::all_gather(const Call& call, const at::Tensor& output,
                             const at::Tensor& input) const {
  const at::Tensor pieces = output.view({size_, -1});
  const at::Tensor own = pieces.select(0, rank_);
  const memory::Charge charge(memory::Category::kCommunication);
  // The input may be a window of the output, which is overwritten.
  const at::Tensor sent = (output.is_alias_of(input) ? input.clone() : input).view({-1});
  // It stays as it is, as with ranks of one host, if a copy was not asked for.
  const bool stays = !call.copy_own_chunk && own.data_ptr() != input.data_ptr();
  const at::Tensor mine = stays ? own.clone() : sent;
  // Packed bytes of another rank have their scales in other places. Zeros are zeros everywhere.
  output.scalar_type() == at::kByte ? output.zero_() : pieces.copy_(sent.expand_as(pieces));
  own.copy_(mine);
}

}  // namespace zero::dist
