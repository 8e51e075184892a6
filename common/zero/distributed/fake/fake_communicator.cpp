#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/fake/fake_communicator.hpp>
#include <zero/distributed/grouped_reduction.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {
namespace {

// Like a real operation, it has no effect before wait().
class WhenWaitedFor final : public Work::Backend {
 public:
  explicit WhenWaitedFor(std::function<void()> effect) : effect_(std::move(effect)) {}
  void wait() override { effect_(); }

 private:
  std::function<void()> effect_;
};

Communicator::WorkPtr when_waited_for(std::function<void()> effect) {
  return std::make_unique<WhenWaitedFor>(std::move(effect));
}

}  // namespace

FakeCommunicator::FakeCommunicator(int rank, int size, Source source, int ranks_per_host)
    : Communicator(rank, size, ReductionOrder::kRankOrdered, /*check_collectives=*/false),
      source_(std::make_shared<Source>(std::move(source))) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(
        fmt::format("there is no rank {} in a world of {}: ranks are 0 to N-1", rank, size));
  }
  if (ranks_per_host == 0) return;
  if (ranks_per_host < 0 || size % ranks_per_host != 0) {
    throw Error(fmt::format(
        "a world of {} ranks cannot fill hosts of {} ranks: the number of ranks on a host must "
        "divide that of all",
        size, ranks_per_host));
  }
  std::vector<int> hosts;
  for (int r = 0; r < size; ++r) hosts.push_back(r / ranks_per_host);
  set_hosts(std::move(hosts));
}

std::vector<std::string> FakeCommunicator::exchange(const std::string& text) {
  return std::vector<std::string>(static_cast<std::size_t>(size()), text);
}

std::unique_ptr<Communicator> FakeCommunicator::do_split(const std::vector<int>& ranks,
                                                         const std::string& label) {
  auto group =
      std::make_unique<FakeCommunicator>(rank_among(ranks, label), static_cast<int>(ranks.size()));
  group->source_ = source_;
  return group;
}

void FakeCommunicator::combine(const at::Tensor& tensor, int divisor) const {
  if (divisor == size()) return;
  const c10::NoGradGuard no_grad;
  at::Tensor(tensor).mul_(size());
  divide(tensor, divisor);
}

Communicator::WorkPtr FakeCommunicator::do_broadcast(const Call&, at::Tensor tensor, int root) {
  return when_waited_for([this, tensor, root] {
    if (rank() != root) receive_from_source(tensor);
  });
}

Communicator::WorkPtr FakeCommunicator::do_reduce(const Call&, at::Tensor tensor, int root,
                                                  int divisor) {
  return when_waited_for([this, tensor, root, divisor] {
    if (rank() == root) combine(tensor, divisor);
  });
}

Communicator::WorkPtr FakeCommunicator::do_all_reduce(const Call&, at::Tensor tensor, int divisor) {
  return when_waited_for([this, tensor, divisor] { combine(tensor, divisor); });
}

Communicator::WorkPtr FakeCommunicator::do_reduce_scatter(const Call&, at::Tensor output,
                                                          at::Tensor input, int divisor) {
  return when_waited_for([this, output, input, divisor] {
    const at::Tensor mine = input.flatten().narrow(0, rank() * output.numel(), output.numel());
    if (mine.data_ptr() != output.data_ptr()) output.copy_(mine.view_as(output));
    combine(output, divisor);
  });
}

Communicator::WorkPtr FakeCommunicator::do_all_gather(const Call& call, at::Tensor output,
                                                      at::Tensor input) {
  return when_waited_for([this, output, input, left = !call.copy_own_chunk] {
    at::Tensor own = output.view({size(), -1}).select(0, rank());
    if (!left || own.data_ptr() == input.data_ptr()) return gather(output, input);
    // It stays as it is, as with ranks of one host: a copy was not asked for.
    const memory::Charge charge(memory::Category::kCommunication);
    const at::Tensor before = own.clone();
    gather(output, input);
    own.copy_(before);
  });
}

void FakeCommunicator::gather(const at::Tensor& output, const at::Tensor& input) const {
  // The input may be a window of the output, which is overwritten.
  const memory::Charge charge(memory::Category::kCommunication);
  const at::Tensor own = (output.is_alias_of(input) ? input.clone() : input).view({1, -1});
  const at::Tensor pieces = output.view({size(), -1});
  const bool of_own = !receive_from_source(output) && output.scalar_type() != at::kByte;
  // Packed bytes of another rank have their scales in other places. Zeros are zeros everywhere.
  if (output.scalar_type() == at::kByte) output.zero_();
  of_own ? pieces.copy_(own.expand_as(pieces)) : pieces.narrow(0, rank(), 1).copy_(own);
}

Communicator::WorkPtr FakeCommunicator::do_all_to_all(const Call&, at::Tensor output,
                                                      at::Tensor input) {
  return when_waited_for([this, output, input] {
    const at::Tensor pieces = output.view({size(), -1});
    pieces.copy_(input.view({size(), -1}).narrow(0, rank(), 1).expand_as(pieces));
  });
}

Communicator::WorkPtr FakeCommunicator::do_message(const Call& call, at::Tensor tensor,
                                                   int /*peer*/) {
  const bool receives = call.operation == Operation::kRecv;
  const bool of_activations = call.purpose == Purpose::kActivation;
  return when_waited_for([this, tensor, receives, of_activations] {
    if (!receives || receive_from_source(tensor) || !of_activations) return;
    // Its memory may hold anything, and zeros would leave a norm layer nothing to scale.
    const c10::NoGradGuard no_grad;
    tensor.fill_(1);
  });
}

}  // namespace zero::dist
