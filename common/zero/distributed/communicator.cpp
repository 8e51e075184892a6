#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/rank_order.hpp>
#include <zero/distributed/store/call_log.hpp>
#include <zero/distributed/sum_by_operations.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {

using Clock = std::chrono::steady_clock;
using WorkPtr = Backend::WorkPtr;

namespace {

// Waits for a reduction into `wide` and copies it to `result`, rounded.
WorkPtr narrowing(const Call& call, WorkPtr work, const at::Tensor& wide,
                  const at::Tensor& result) {
  if (wide.const_data_ptr() == result.const_data_ptr()) return work;
  return when_waited_for([work = std::move(work), wide, result, not_finite = call.not_finite] {
    if (work != nullptr) work->wait();
    const at::NoGradGuard no_grad;
    result.copy_(wide.view_as(result));
    // The sum was checked before rounding, but rounding may overflow.
    if (not_finite == nullptr || all_finite(result) || !all_finite(wide)) return;
    not_finite->find(result, {}, {}, /*overwritten_finite=*/true);
  });
}

void check_tensor(Operation operation, const at::Tensor& tensor) {
  if (!tensor.defined()) throw Error(fmt::format("{}: the tensor is undefined", name(operation)));
  if (!tensor.is_contiguous()) {
    throw Error(fmt::format(
        "{}: a tensor of shape [{}] with strides [{}] is not contiguous; send contiguous() of it",
        name(operation), fmt::join(tensor.sizes(), ", "), fmt::join(tensor.strides(), ", ")));
  }
}

std::string text_of(const at::Tensor& tensor) {
  return fmt::format("{} {} on {}", tensor.numel(), c10::toString(tensor.scalar_type()),
                     tensor.device().str());
}

}  // namespace

Communicator::Communicator(Connection connection)
    : connection_(std::make_unique<Connection>(std::move(connection))),
      rank_(connection_->place.rank),
      size_(connection_->place.size),
      not_finite_(rank_, size_) {}

Communicator::~Communicator() {
  if (parent_ != nullptr) std::erase(parent_->groups_, this);
}

std::unique_ptr<Communicator> Communicator::split(const std::vector<int>& ranks,
                                                  const std::string& label) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    throw Error(
        fmt::format("group '{}' of ranks {{{}}} does not hold rank {}, which called split()", label,
                    fmt::join(ranks, ", "), rank_));
  }
  Connection connection = connection_->split(static_cast<int>(mine - ranks.begin()), ranks, label);
  connection.place.hosts.clear();
  for (const int rank : ranks) connection.place.hosts.push_back(host_of(rank));
  auto group = std::make_unique<Communicator>(std::move(connection));
  group->parent_ = this;
  group->not_finite_.set_parent(&not_finite_, ranks);
  groups_.push_back(group.get());
  return group;
}

int Communicator::world_rank(int rank) const {
  const CallLog* const log = call_log();
  return log == nullptr ? rank : log->world_rank(rank);
}

ReductionOrder Communicator::order() const { return connection_->place.options.order; }

std::string Communicator::transport() const {
  if (connection_->cpu == nullptr) return "none";
  if (connection_->device == nullptr) return connection_->cpu->transport();
  return fmt::format("{}, CPU tensors over {}", connection_->device->transport(),
                     connection_->cpu->transport());
}

int Communicator::host_of(int rank) const {
  const std::vector<int>& hosts = connection_->place.hosts;
  return hosts.empty() ? 0 : hosts[static_cast<std::size_t>(rank)];
}

void Communicator::set_hosts(std::vector<int> hosts) {
  if (hosts.size() != static_cast<std::size_t>(size_)) {
    throw Error(
        fmt::format("{} hosts for {} ranks: give the host of every rank", hosts.size(), size_));
  }
  connection_->place.hosts = std::move(hosts);
}

std::unique_ptr<Backend> Communicator::replace_backend(std::unique_ptr<Backend> other) {
  return std::exchange(connection_->cpu, std::move(other));
}

Backend& Communicator::backend_of(Operation operation, const at::Tensor& tensor) const {
  Backend* const device = connection_->device.get();
  const bool on_device = device != nullptr && device->takes(tensor.device());
  Backend& backend = on_device ? *device : *connection_->cpu;
  if (backend.takes(tensor.device())) return backend;
  throw Error(fmt::format("{}: a tensor on {} cannot be sent ({})", name(operation),
                          tensor.device().str(), transport()));
}

bool Communicator::sends(const at::Tensor& tensor) const {
  if (tensor.numel() == 0) return false;
  const Backend* const device = connection_->device.get();
  return size_ > 1 ||
         (device != nullptr && device->works_alone() && device->takes(tensor.device()));
}

// Starts a collective that sends `bytes_to(peer)` bytes to each other rank; one rank alone does all
// of it.
template <typename BytesTo>
WorkPtr Communicator::start(const Call& call, const at::Tensor& output, const at::Tensor& input,
                            const BytesTo& bytes_to) {
  if (!sends(input)) {
    if (call.copy_own_chunk && output.const_data_ptr() != input.const_data_ptr()) {
      output.copy_(input.view_as(output));
    }
    if (size_ == 1 && adds_up(call.operation)) divide(output, call.divisor);
    return nullptr;
  }
  count_bytes(call, bytes_to);
  return backend_of(call.operation, input).start(call, output, input);
}

Work Communicator::broadcast(at::Tensor tensor, int root, Purpose purpose) {
  const auto started = Clock::now();
  check_rank(Operation::kBroadcast, root);
  const Call call = begin(Operation::kBroadcast, purpose, tensor, root);
  return times().track(
      call, start(call, tensor, tensor, [&](int) { return rank_ == root ? call.bytes : 0; }),
      started);
}

Work Communicator::reduce(at::Tensor tensor, int root, Purpose purpose, Reduction reduction) {
  const auto started = Clock::now();
  check_rank(Operation::kReduce, root);
  check_tensor(Operation::kReduce, tensor);
  const at::Tensor wide = widened(tensor, reduction.type);
  const Call call = begin_reduction(Operation::kReduce, purpose, wide, reduction, root);
  WorkPtr work = start(call, wide, wide, [&](int peer) { return peer == root ? call.bytes : 0; });
  if (rank_ == root) work = narrowing(call, std::move(work), wide, tensor);  // else it stays
  return times().track(call, std::move(work), started);
}

Work Communicator::all_reduce(at::Tensor tensor, Purpose purpose, Reduction reduction) {
  return all_reduce(tensor, tensor, purpose, reduction);
}

Work Communicator::all_reduce(at::Tensor output, at::Tensor input, Purpose purpose,
                              Reduction reduction) {
  const auto started = Clock::now();
  check_tensor(Operation::kAllReduce, output);
  check_tensor(Operation::kAllReduce, input);
  const bool rounds =
      input.scalar_type() == at::kFloat && at::isReducedFloatingType(output.scalar_type());
  if (output.numel() != input.numel() || output.device() != input.device() ||
      (!rounds && output.scalar_type() != input.scalar_type())) {
    throw Error(fmt::format(
        "all_reduce: input ({}) and output ({}) must have the same number of elements, one device "
        "and one dtype, or the input float32 and the output 2 bytes an element",
        text_of(input), text_of(output)));
  }
  const at::Tensor wide = widened(input, reduction.type);
  const Call call = begin_reduction(Operation::kAllReduce, purpose, wide, reduction);
  // A reduce-scatter and an all-gather: a peer gets its piece, and the sum of this rank's.
  const auto piece = [&](int rank) {
    return (piece_begin(wide.numel(), rank + 1, size_) - piece_begin(wide.numel(), rank, size_)) *
           static_cast<std::int64_t>(wide.element_size());
  };
  const at::Tensor sum = sends(wide) ? wide : output;
  WorkPtr work = start(call, sum, wide, [&](int peer) { return piece(peer) + piece(rank_); });
  return times().track(call, narrowing(call, std::move(work), sum, output), started);
}

Work Communicator::reduce_scatter(at::Tensor output, at::Tensor input, Purpose purpose,
                                  Reduction reduction) {
  const auto started = Clock::now();
  const bool keeps_sum = reduction.type == ReduceType::kFloat32 && input.defined() &&
                         at::isReducedFloatingType(input.scalar_type()) && output.defined() &&
                         output.scalar_type() == at::kFloat;
  check_pieces(Operation::kReduceScatter, "input", input, "output", output,
               /*same_dtype=*/!keeps_sum);
  const at::Tensor wide = widened(input, reduction.type);
  const Call call = begin_reduction(Operation::kReduceScatter, purpose, wide, reduction);
  // Uses its own piece of the wide copy, which is not needed otherwise.
  const at::Tensor sum = !sends(wide) || wide.scalar_type() == output.scalar_type()
                             ? output
                             : wide.flatten().narrow(0, rank_ * output.numel(), output.numel());
  WorkPtr work = start(call, sum, wide, [&](int) { return call.bytes / size_; });
  return times().track(call, narrowing(call, std::move(work), sum, output), started);
}

Work Communicator::all_gather(at::Tensor output, at::Tensor input, Purpose purpose,
                              bool copy_own_chunk) {
  const auto started = Clock::now();
  check_pieces(Operation::kAllGather, "output", output, "input", input);
  Call call = begin(Operation::kAllGather, purpose, input);
  call.copy_own_chunk = copy_own_chunk;
  return times().track(call, start(call, output, input, [&](int) { return call.bytes; }), started);
}

Work Communicator::all_to_all(at::Tensor output, at::Tensor input, Purpose purpose) {
  const auto started = Clock::now();
  check_tensor(Operation::kAllToAll, output);
  check_tensor(Operation::kAllToAll, input);
  if (output.numel() != input.numel() || input.numel() % size_ != 0 ||
      output.device() != input.device() || input.scalar_type() != output.scalar_type()) {
    throw Error(fmt::format(
        "all_to_all: input ({}) and output ({}) must have the same number of elements, a multiple "
        "of the world size {}, one device and one dtype",
        text_of(input), text_of(output), size_));
  }
  const Call call = begin(Operation::kAllToAll, purpose, input);
  return times().track(call, start(call, output, input, [&](int) { return call.bytes / size_; }),
                       started);
}

Work Communicator::send(at::Tensor tensor, int destination, Purpose purpose) {
  return message(Operation::kSend, std::move(tensor), destination, purpose);
}

Work Communicator::recv(at::Tensor tensor, int source, Purpose purpose) {
  return message(Operation::kRecv, std::move(tensor), source, purpose);
}

Work Communicator::message(Operation operation, at::Tensor tensor, int peer, Purpose purpose) {
  const auto started = Clock::now();
  if (peer == rank_) throw Error(fmt::format("{}: rank {} is this rank", name(operation), peer));
  check_rank(operation, peer);
  check_tensor(operation, tensor);
  Backend& backend = backend_of(operation, tensor);
  const Call call{.operation = operation,
                  .purpose = purpose,
                  .sequence = 0,
                  .bytes = static_cast<std::int64_t>(tensor.nbytes()),
                  .step = step(),
                  .public_call = {},
                  .root = peer};
  count(call, /*calls=*/1, 0, 0);
  if (operation == Operation::kSend) {
    count_bytes(call, [&](int other) { return other == peer ? call.bytes : 0; });
  }
  return times().track(call, backend.start(call, tensor, tensor), started);
}

void Communicator::barrier() {
  const auto started = Clock::now();
  // One byte from each rank to each: complete only when all ranks have called it.
  at::Tensor flag = at::ones({size_}, at::kByte);
  at::Tensor mine = flag.narrow(0, rank_, 1);
  const Call call = begin(Operation::kBarrier, Purpose::kControl, mine);
  times().track(call, start(call, flag, mine, [](int) { return 1; }), started).wait();
}

std::vector<std::string> Communicator::exchange(const std::string& text) {
  ++traffic_.at(Operation::kAllGather, Purpose::kSetup).calls;
  if (connection_->place.log == nullptr) {
    return std::vector<std::string>(static_cast<std::size_t>(size_), text);
  }
  return dist::exchange(connection_->cpu.get(), connection_->place, text,
                        {.operation = Operation::kAllGather,
                         .purpose = Purpose::kSetup,
                         .sequence = sequence_++,
                         .bytes = 0,
                         .step = step(),
                         .public_call = running().public_call});
}

Call Communicator::begin(Operation operation, Purpose purpose, const at::Tensor& tensor, int root) {
  check_tensor(operation, tensor);
  if (sends(tensor)) backend_of(operation, tensor);  // it may refuse, before anything is counted
  const Running within = running();
  Call call{.operation = operation,
            .purpose = purpose,
            .sequence = sequence_++,
            .bytes = static_cast<std::int64_t>(tensor.nbytes()),
            .step = step(),
            .public_call = within.public_call,
            .root = root};
  count(call, /*calls=*/1, 0, 0);
  if (CallLog* const log = call_log()) {
    // When gradients of a unit are reduced may differ between ranks by a hook of another unit.
    const std::string of_unit(purpose == Purpose::kParameter ? within.unit : "");
    call.fingerprint =
        log->add({call.public_call, name(operation), name(purpose), tensor.scalar_type(),
                  tensor.numel(), root < 0 ? root : log->world_rank(root), of_unit});
  }
  return call;
}

Call Communicator::begin_reduction(Operation operation, Purpose purpose, const at::Tensor& wide,
                                   const Reduction& reduction, int root) {
  Call call = begin(operation, purpose, wide, root);
  call.divisor = reduction.divisor(size_);
  call.adds_sums = reduction.ranks > 0;
  if (purpose == Purpose::kGradient && checks_gradients()) call.not_finite = &not_finite_;
  return call;
}

CallLog* Communicator::call_log() const { return connection_->place.log.get(); }

Running Communicator::running() const {
  const CallLog* const log = call_log();
  Running mine = log == nullptr ? Running() : log->running();
  if (parent_ == nullptr) return mine;
  const Running outer = parent_->running();  // a group is inside it
  if (mine.public_call.empty()) mine.public_call = outer.public_call;
  if (mine.unit.empty()) mine.unit = outer.unit;
  return mine;
}

void Communicator::count(const Call& call, std::int64_t calls, std::int64_t bytes,
                         std::int64_t between_hosts) {
  Traffic::Entry& entry = traffic_.at(call.operation, call.purpose);
  entry.calls += calls;
  entry.bytes += bytes;
  entry.between_hosts += between_hosts;
  if (parent_ != nullptr) parent_->count(call, calls, bytes, between_hosts);
}

// Counts `bytes_to(peer)` for each other rank.
template <typename BytesTo>
void Communicator::count_bytes(const Call& call, const BytesTo& bytes_to) {
  std::int64_t bytes = 0, between_hosts = 0;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const std::int64_t to_peer = bytes_to(peer);
    bytes += to_peer;
    if (host_of(peer) != host_of(rank_)) between_hosts += to_peer;
  }
  count(call, /*calls=*/0, bytes, between_hosts);
}

bool Communicator::checks_gradients() const {
  const Connection& c = *connection_;
  return size_ > 1 && c.cpu->finds_not_finite() &&
         (c.device == nullptr || c.device->finds_not_finite());
}

bool Communicator::matches_calls() const {
  const Connection& c = *connection_;
  return c.device == nullptr || c.device->matches_calls();
}

void Communicator::progress() {
  const auto started = Clock::now();
  with_groups(&Backend::progress);
  times().note_exposed("progress", nullptr, started);
}

void Communicator::synchronize() {
  parent_ != nullptr ? parent_->synchronize() : with_groups(&Backend::synchronize);
}

void Communicator::with_groups(void (Backend::*does)()) {
  for (Backend* const backend : {connection_->cpu.get(), connection_->device.get()}) {
    if (backend != nullptr) (backend->*does)();
  }
  for (Communicator* const group : groups_) group->with_groups(does);
}

void Communicator::set_step(std::int64_t step) {
  parent_ != nullptr ? parent_->set_step(step) : void(step_ = step);
}

void Communicator::check_rank(Operation operation, int peer) const {
  if (peer < 0 || peer >= size_) {
    throw Error(fmt::format("{}: rank {} does not exist; ranks are 0 to {}", name(operation), peer,
                            size_ - 1));
  }
}

void Communicator::check_pieces(Operation operation, const char* whole_is, const at::Tensor& whole,
                                const char* piece_is, const at::Tensor& piece,
                                bool same_dtype) const {
  check_tensor(operation, whole);
  check_tensor(operation, piece);
  if (whole.numel() != piece.numel() * size_ || whole.device() != piece.device() ||
      (same_dtype && whole.scalar_type() != piece.scalar_type())) {
    throw Error(fmt::format("{}: the {} has {} elements, must have {} (world size {} x {} of {})",
                            name(operation), whole_is, text_of(whole), piece.numel() * size_, size_,
                            piece_is, text_of(piece)));
  }
}

bool Communicator::widens(at::ScalarType dtype, ReduceType type) const {
  if (size_ == 1) return false;  // nothing is added
  if (dtype == at::kHalf && order() == ReductionOrder::kNative) return true;
  return type == ReduceType::kFloat32 && at::isReducedFloatingType(dtype);
}

at::Tensor Communicator::widened(const at::Tensor& tensor, ReduceType type) const {
  if (!widens(tensor.scalar_type(), type)) return tensor;
  const at::NoGradGuard no_grad;
  const memory::Charge charge(memory::Category::kCommunication);
  return tensor.to(at::kFloat);
}

std::int64_t Communicator::reduced_element_size(at::ScalarType dtype, ReduceType type) const {
  return static_cast<std::int64_t>(c10::elementSize(widens(dtype, type) ? at::kFloat : dtype));
}

CallScope::CallScope(Communicator& communicator, std::string_view name, std::string_view unit)
    : log_(communicator.call_log()) {
  if (log_ == nullptr) return;
  outer_ = log_->running();
  log_->set_running(
      {outer_.public_call.empty() ? name : outer_.public_call, unit.empty() ? outer_.unit : unit});
}

CallScope::~CallScope() {
  if (log_ != nullptr) log_->set_running(outer_);
}

}  // namespace zero::dist
