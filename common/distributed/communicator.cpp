#include "zero/distributed/communicator.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <exception>
#include <sstream>
#include <utility>

#include "zero/distributed/narrowing.hpp"
#include "zero/error.hpp"

namespace zero::dist {

using Clock = std::chrono::steady_clock;

std::string_view name(Purpose purpose) {
  constexpr std::array<std::string_view, kPurposes> kNames = {"gradient", "parameter", "control",
                                                              "setup"};
  return kNames.at(static_cast<std::size_t>(purpose));
}

std::string_view name(Operation operation) {
  constexpr std::array<std::string_view, kOperations> kNames = {
      "broadcast",  "reduce", "all_reduce", "reduce_scatter", "all_gather",
      "all_to_all", "send",   "recv",       "barrier"};
  return kNames.at(static_cast<std::size_t>(operation));
}

Traffic::Entry& Traffic::at(Operation operation, Purpose purpose) {
  return entries[static_cast<std::size_t>(operation)][static_cast<std::size_t>(purpose)];
}

const Traffic::Entry& Traffic::at(Operation operation, Purpose purpose) const {
  return entries[static_cast<std::size_t>(operation)][static_cast<std::size_t>(purpose)];
}

std::int64_t Traffic::bytes(Purpose purpose) const {
  std::int64_t sum = 0;
  for (const auto& row : entries) sum += row[static_cast<std::size_t>(purpose)].bytes;
  return sum;
}

std::int64_t Traffic::calls(Purpose purpose) const {
  std::int64_t sum = 0;
  for (const auto& row : entries) sum += row[static_cast<std::size_t>(purpose)].calls;
  return sum;
}

std::int64_t Traffic::bytes() const {
  std::int64_t sum = 0;
  for (std::size_t p = 0; p < kPurposes; ++p) sum += bytes(static_cast<Purpose>(p));
  return sum;
}

Traffic Traffic::since(const Traffic& earlier) const {
  Traffic difference = *this;
  for (std::size_t o = 0; o < kOperations; ++o) {
    for (std::size_t p = 0; p < kPurposes; ++p) {
      difference.entries[o][p].bytes -= earlier.entries[o][p].bytes;
      difference.entries[o][p].calls -= earlier.entries[o][p].calls;
    }
  }
  return difference;
}

Pending& Pending::operator=(Pending&& other) noexcept {
  std::swap(work_, other.work_);
  return *this;
}

Pending::~Pending() {
  if (work_ == nullptr || std::uncaught_exceptions() > 0) return;
  std::fputs("zero: a collective was started and never waited on\n", stderr);
  std::terminate();
}

void Pending::wait() {
  if (work_ == nullptr) return;
  // Taken out first: after an error there is nothing left to wait for.
  const std::unique_ptr<Work> work = std::move(work_);
  work->wait();
}

/// Adds the time spent waiting to the communicator's account.
class TimedWork final : public Pending::Work {
 public:
  TimedWork(std::unique_ptr<Pending::Work> work, double& seconds)
      : work_(std::move(work)), seconds_(seconds) {}

  void wait() override {
    const auto started = Clock::now();
    work_->wait();
    seconds_ += std::chrono::duration<double>(Clock::now() - started).count();
  }

 private:
  std::unique_ptr<Pending::Work> work_;
  double& seconds_;
};

Pending Communicator::broadcast(at::Tensor tensor, int root, Purpose purpose) {
  const auto started = Clock::now();
  check_rank(Operation::kBroadcast, root);
  const Call call = begin(Operation::kBroadcast, purpose, tensor, root);
  return finish(do_broadcast(call, std::move(tensor), root), started);
}

Pending Communicator::reduce(at::Tensor tensor, int root, Purpose purpose, ReduceOp op) {
  const auto started = Clock::now();
  check_rank(Operation::kReduce, root);
  check_tensor(Operation::kReduce, tensor);
  const at::Tensor wide = widened(tensor);
  const Call call = begin(Operation::kReduce, purpose, wide, root);
  WorkPtr work = do_reduce(call, wide, root, op);
  // Only the root's changes.
  return finish(rank_ == root ? narrowing(std::move(work), wide, tensor) : std::move(work),
                started);
}

Pending Communicator::all_reduce(at::Tensor tensor, Purpose purpose, ReduceOp op) {
  const auto started = Clock::now();
  check_tensor(Operation::kAllReduce, tensor);
  const at::Tensor wide = widened(tensor);
  const Call call = begin(Operation::kAllReduce, purpose, wide, /*peer=*/-1);
  return finish(narrowing(do_all_reduce(call, wide, op), wide, tensor), started);
}

Pending Communicator::reduce_scatter(at::Tensor output, at::Tensor input, Purpose purpose,
                                     ReduceOp op) {
  const auto started = Clock::now();
  check_tensor(Operation::kReduceScatter, output);
  if (input.numel() != output.numel() * size_ || input.scalar_type() != output.scalar_type()) {
    throw Error(
        fmt::format("reduce_scatter: the input has {} {} elements, must have {} (world size {} x "
                    "output {}) of {}",
                    input.numel(), c10::toString(input.scalar_type()), output.numel() * size_,
                    size_, output.numel(), c10::toString(output.scalar_type())));
  }
  check_tensor(Operation::kReduceScatter, input);
  const at::Tensor wide = widened(input);
  // Its own piece of the wide copy has no other use.
  const at::Tensor wide_output =
      widens(input.scalar_type()) ? wide.flatten().narrow(0, rank_ * output.numel(), output.numel())
                                  : output;
  const Call call = begin(Operation::kReduceScatter, purpose, wide, /*peer=*/-1);
  return finish(narrowing(do_reduce_scatter(call, wide_output, wide, op), wide_output, output),
                started);
}

Pending Communicator::all_gather(at::Tensor output, at::Tensor input, Purpose purpose) {
  const auto started = Clock::now();
  check_tensor(Operation::kAllGather, output);
  if (output.numel() != input.numel() * size_ || input.scalar_type() != output.scalar_type()) {
    throw Error(fmt::format(
        "all_gather: the output has {} {} elements, must have {} (world size {} x input {}) of {}",
        output.numel(), c10::toString(output.scalar_type()), input.numel() * size_, size_,
        input.numel(), c10::toString(input.scalar_type())));
  }
  const Call call = begin(Operation::kAllGather, purpose, input, /*peer=*/-1);
  return finish(do_all_gather(call, std::move(output), std::move(input)), started);
}

Pending Communicator::all_to_all(at::Tensor output, at::Tensor input, Purpose purpose) {
  const auto started = Clock::now();
  check_tensor(Operation::kAllToAll, output);
  if (output.numel() != input.numel() || input.numel() % size_ != 0 ||
      input.scalar_type() != output.scalar_type()) {
    throw Error(fmt::format(
        "all_to_all: input ({}) and output ({}) must have the same number of elements, a multiple "
        "of the world size {}, and one dtype",
        input.numel(), output.numel(), size_));
  }
  const Call call = begin(Operation::kAllToAll, purpose, input, /*peer=*/-1);
  return finish(do_all_to_all(call, std::move(output), std::move(input)), started);
}

Pending Communicator::send(at::Tensor tensor, int destination, Purpose purpose, int tag) {
  const auto started = Clock::now();
  check_rank(Operation::kSend, destination);
  check_tensor(Operation::kSend, tensor);
  ++traffic_.at(Operation::kSend, purpose).calls;
  const Call call{Operation::kSend, purpose, 0, static_cast<std::int64_t>(tensor.nbytes())};
  return finish(do_send(call, std::move(tensor), destination, tag), started);
}

Pending Communicator::recv(at::Tensor tensor, int source, Purpose purpose, int tag) {
  const auto started = Clock::now();
  check_rank(Operation::kRecv, source);
  check_tensor(Operation::kRecv, tensor);
  ++traffic_.at(Operation::kRecv, purpose).calls;
  const Call call{Operation::kRecv, purpose, 0, static_cast<std::int64_t>(tensor.nbytes())};
  return finish(do_recv(call, std::move(tensor), source, tag), started);
}

void Communicator::barrier() {
  const auto started = Clock::now();
  // One byte from everyone to everyone: complete only when all ranks have come.
  at::Tensor flag = at::ones({size_}, at::kByte);
  at::Tensor mine = flag.narrow(0, rank_, 1);
  const Call call = begin(Operation::kBarrier, Purpose::kControl, mine, /*peer=*/-1);
  finish(do_all_gather(call, flag, mine), started).wait();
}

namespace {

// The first line in which two texts differ, as each of them has it.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_of_a(a), lines_of_b(b);
  std::string of_a, of_b;
  while (true) {
    const bool more_in_a = static_cast<bool>(std::getline(lines_of_a, of_a));
    const bool more_in_b = static_cast<bool>(std::getline(lines_of_b, of_b));
    if (more_in_a && more_in_b && of_a == of_b) continue;
    return {more_in_a ? of_a : "nothing more", more_in_b ? of_b : "nothing more"};
  }
}

}  // namespace

void Communicator::agree(const std::string& what, const std::string& text) {
  const std::vector<std::string> all = exchange(text);
  for (int other = 1; other < size_; ++other) {
    const std::string& theirs = all[static_cast<std::size_t>(other)];
    if (theirs == all.front()) continue;
    const auto [of_rank_0, of_other] = first_difference(all.front(), theirs);
    throw Error(
        fmt::format("ranks disagree about {}: rank 0 has {}, rank {} has {}; start all ranks "
                    "with the same program, options and files",
                    what, of_rank_0, other, of_other));
  }
}

std::int64_t Communicator::all_reduce_bytes(std::int64_t elements, std::int64_t element_size,
                                            int rank, int size) {
  const std::int64_t mine =
      piece_begin(elements, rank + 1, size) - piece_begin(elements, rank, size);
  return (elements - mine + (size - 1) * mine) * element_size;
}

Communicator::Call Communicator::begin(Operation operation, Purpose purpose,
                                       const at::Tensor& tensor, int peer) {
  check_tensor(operation, tensor);
  ++traffic_.at(operation, purpose).calls;
  const Call call{operation, purpose, sequence_++, static_cast<std::int64_t>(tensor.nbytes())};
  if (check_collectives_) {
    agree("the next collective",
          fmt::format("#{} {} of {} [{}] for {}{}", call.sequence, name(operation),
                      c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                      name(purpose), peer < 0 ? "" : fmt::format(", root {}", peer)));
  }
  return call;
}

void Communicator::advance() {
  const auto started = Clock::now();
  do_advance();
  exposed_seconds_ += std::chrono::duration<double>(Clock::now() - started).count();
}

Pending Communicator::finish(WorkPtr work, Clock::time_point started) {
  exposed_seconds_ += std::chrono::duration<double>(Clock::now() - started).count();
  if (work == nullptr) return Pending();
  return Pending(std::make_unique<TimedWork>(std::move(work), exposed_seconds_));
}

void Communicator::check_tensor(Operation operation, const at::Tensor& tensor) const {
  if (!tensor.defined()) throw Error(fmt::format("{}: the tensor is undefined", name(operation)));
  if (!tensor.is_contiguous()) {
    throw Error(fmt::format(
        "{}: a tensor of shape [{}] with strides [{}] is not contiguous; send contiguous() of it",
        name(operation), fmt::join(tensor.sizes(), ", "), fmt::join(tensor.strides(), ", ")));
  }
}

void Communicator::check_rank(Operation operation, int peer) const {
  if (peer < 0 || peer >= size_) {
    throw Error(fmt::format("{}: rank {} does not exist; ranks are 0 to {}", name(operation), peer,
                            size_ - 1));
  }
}

std::int64_t piece_begin(std::int64_t elements, int rank, int size) {
  return rank * (elements / size) + std::min<std::int64_t>(rank, elements % size);
}

}  // namespace zero::dist
