#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/grouped_reduction.hpp>
#include <zero/distributed/store/call_log.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {

using Clock = std::chrono::steady_clock;

namespace {

// Without scratch memory: reductions are part of the memory peak.
bool all_finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return true;
  const auto [least, most] = at::aminmax(tensor.flatten());
  return std::isfinite(least.item<float>()) && std::isfinite(most.item<float>());
}

// Waits for a reduction into `wide` and copies it to `result`, rounded.
class NarrowingWork final : public Work::Backend {
 public:
  NarrowingWork(std::unique_ptr<Work::Backend> work, at::Tensor wide, at::Tensor result,
                Communicator::Watch watch)
      : work_(std::move(work)),
        wide_(std::move(wide)),
        result_(std::move(result)),
        watch_(std::move(watch)) {}

  void wait() override {
    work_->wait();
    const at::NoGradGuard no_grad;
    result_.copy_(wide_.view_as(result_));
    // The sum was checked before rounding, but rounding may overflow.
    if (watch_ && !all_finite(result_) && all_finite(wide_)) watch_(result_, {}, true);
  }

 private:
  std::unique_ptr<Work::Backend> work_;
  at::Tensor wide_;
  at::Tensor result_;
  Communicator::Watch watch_;
};

Communicator::WorkPtr narrowing(Communicator::WorkPtr work, const at::Tensor& wide,
                                const at::Tensor& result, Communicator::Watch watch) {
  if (wide.const_data_ptr() == result.const_data_ptr()) return work;
  return std::make_unique<NarrowingWork>(std::move(work), wide, result, std::move(watch));
}

void copy_unless_same(const at::Tensor& output, const at::Tensor& input) {
  if (output.const_data_ptr() == input.const_data_ptr()) return;
  at::Tensor(output).copy_(input.view_as(output));
}

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

// Of a reduction that sends nothing: by one rank, or of 0 elements.
void divide_alone(const at::Tensor& output, const Reduction& reduction, int size) {
  if (size == 1) divide(output, reduction.divisor(size));
}

}  // namespace

Communicator::~Communicator() {
  if (parent_ != nullptr) std::erase(parent_->groups_, this);
}

std::unique_ptr<Communicator> Communicator::split(const std::vector<int>& ranks,
                                                  const std::string& label) {
  std::unique_ptr<Communicator> group = do_split(ranks, label);
  // A communicator that wraps another one has let that one split.
  if (group->parent_ != nullptr) std::erase(group->parent_->groups_, group.get());
  group->parent_ = this;
  group->times_.set_parent(&times_);
  group->ranks_ = ranks;
  group->hosts_.clear();
  for (const int rank : ranks) group->hosts_.push_back(host_of(rank));
  groups_.push_back(group.get());
  return group;
}

void Communicator::set_hosts(std::vector<int> hosts) {
  if (hosts.size() != static_cast<std::size_t>(size_)) {
    throw Error(
        fmt::format("{} hosts for {} ranks: give the host of every rank", hosts.size(), size_));
  }
  hosts_ = std::move(hosts);
}

Work Communicator::broadcast(at::Tensor tensor, int root, Purpose purpose) {
  const auto started = Clock::now();
  check_rank(Operation::kBroadcast, root);
  const Call call = begin(Operation::kBroadcast, purpose, tensor, root);
  if (!sends(tensor)) return times_.track(call, nullptr, started);
  if (rank_ == root) count_each(call, [&](int) { return call.bytes; });
  return times_.track(call, do_broadcast(call, std::move(tensor), root), started);
}

Work Communicator::reduce(at::Tensor tensor, int root, Purpose purpose, Reduction reduction) {
  const auto started = Clock::now();
  check_rank(Operation::kReduce, root);
  check_tensor(Operation::kReduce, tensor);
  const at::Tensor wide = widened(tensor, reduction.type);
  const Call call = begin(Operation::kReduce, purpose, wide, root);
  if (!sends(tensor)) {
    divide_alone(tensor, reduction, size_);
    return times_.track(call, nullptr, started);
  }
  if (rank_ != root) count_each(call, [&](int peer) { return peer == root ? call.bytes : 0; });
  WorkPtr work = do_reduce(call, wide, root, reduction.divisor(size_));
  // Only the root's tensor changes.
  if (rank_ == root) work = narrowing(std::move(work), wide, tensor, watch(call));
  return times_.track(call, std::move(work), started);
}

Work Communicator::all_reduce(at::Tensor tensor, Purpose purpose, Reduction reduction) {
  return all_reduce(tensor, tensor, purpose, reduction);
}

Work Communicator::all_reduce(at::Tensor output, at::Tensor input, Purpose purpose,
                              Reduction reduction) {
  const auto started = Clock::now();
  check_tensor(Operation::kAllReduce, output);
  check_tensor(Operation::kAllReduce, input);
  const bool rounds = input.scalar_type() == at::kFloat && is_half(output);
  if (output.numel() != input.numel() || (!rounds && output.scalar_type() != input.scalar_type())) {
    throw Error(fmt::format(
        "all_reduce: input ({} of {}) and output ({} of {}) must have the same number of elements "
        "and one dtype, or the input float32 and the output 2 bytes an element",
        input.numel(), c10::toString(input.scalar_type()), output.numel(),
        c10::toString(output.scalar_type())));
  }
  const at::Tensor wide = widened(input, reduction.type);
  Call call = begin(Operation::kAllReduce, purpose, wide);
  call.adds_sums = reduction.ranks > 0;
  if (!sends(input)) {
    copy_unless_same(output, input);
    divide_alone(output, reduction, size_);
    return times_.track(call, nullptr, started);
  }
  // A reduce-scatter and an all-gather: a peer gets its piece, and the sum of this rank's.
  const auto piece = [&](int rank) {
    return (piece_begin(wide.numel(), rank + 1, size_) - piece_begin(wide.numel(), rank, size_)) *
           static_cast<std::int64_t>(wide.element_size());
  };
  count_each(call, [&](int peer) { return piece(peer) + piece(rank_); });
  WorkPtr work = do_all_reduce(call, wide, reduction.divisor(size_));
  return times_.track(call, narrowing(std::move(work), wide, output, watch(call)), started);
}

Work Communicator::reduce_scatter(at::Tensor output, at::Tensor input, Purpose purpose,
                                  Reduction reduction) {
  const auto started = Clock::now();
  const bool keeps_sum = reduction.type == ReduceType::kFloat32 && input.defined() &&
                         is_half(input) && output.defined() && output.scalar_type() == at::kFloat;
  check_pieces(Operation::kReduceScatter, "input", input, "output", output,
               /*same_dtype=*/!keeps_sum);
  const at::Tensor wide = widened(input, reduction.type);
  const Call call = begin(Operation::kReduceScatter, purpose, wide);
  if (!sends(input)) {
    copy_unless_same(output, input);
    divide_alone(output, reduction, size_);
    return times_.track(call, nullptr, started);
  }
  count_each(call, [&](int) { return call.bytes / size_; });
  // Uses its own piece of the wide copy, which is not needed otherwise.
  const at::Tensor wide_output =
      wide.scalar_type() == output.scalar_type()
          ? output
          : wide.flatten().narrow(0, rank_ * output.numel(), output.numel());
  WorkPtr work = do_reduce_scatter(call, wide_output, wide, reduction.divisor(size_));
  return times_.track(call, narrowing(std::move(work), wide_output, output, watch(call)), started);
}

Work Communicator::all_gather(at::Tensor output, at::Tensor input, Purpose purpose,
                              bool copy_own_chunk) {
  const auto started = Clock::now();
  check_pieces(Operation::kAllGather, "output", output, "input", input);
  Call call = begin(Operation::kAllGather, purpose, input);
  call.copy_own_chunk = copy_own_chunk;
  if (!sends(input)) {
    if (copy_own_chunk) copy_unless_same(output, input);
    return times_.track(call, nullptr, started);
  }
  count_each(call, [&](int) { return call.bytes; });
  return times_.track(call, do_all_gather(call, std::move(output), std::move(input)), started);
}

Work Communicator::all_to_all(at::Tensor output, at::Tensor input, Purpose purpose) {
  const auto started = Clock::now();
  check_tensor(Operation::kAllToAll, output);
  if (output.numel() != input.numel() || input.numel() % size_ != 0 ||
      input.scalar_type() != output.scalar_type()) {
    throw Error(fmt::format(
        "all_to_all: input ({}) and output ({}) must have the same number of elements, a multiple "
        "of the world size {}, and one dtype",
        input.numel(), output.numel(), size_));
  }
  const Call call = begin(Operation::kAllToAll, purpose, input);
  if (!sends(input)) {
    copy_unless_same(output, input);
    return times_.track(call, nullptr, started);
  }
  count_each(call, [&](int) { return call.bytes / size_; });
  return times_.track(call, do_all_to_all(call, std::move(output), std::move(input)), started);
}

Work Communicator::send(at::Tensor tensor, int destination, Purpose purpose) {
  if (destination == rank_) throw Error("send: a rank cannot send to itself");
  return message(Operation::kSend, std::move(tensor), destination, purpose);
}

Work Communicator::recv(at::Tensor tensor, int source, Purpose purpose) {
  if (source == rank_) throw Error("recv: a rank cannot receive from itself");
  return message(Operation::kRecv, std::move(tensor), source, purpose);
}

Work Communicator::message(Operation operation, at::Tensor tensor, int peer, Purpose purpose) {
  const auto started = Clock::now();
  check_rank(operation, peer);
  check_tensor(operation, tensor);
  check_device(tensor);
  count_call(operation, purpose);
  const Call call{.operation = operation,
                  .purpose = purpose,
                  .sequence = 0,
                  .bytes = static_cast<std::int64_t>(tensor.nbytes()),
                  .step = step(),
                  .public_call = {}};
  if (operation == Operation::kSend) {
    count_each(call, [&](int other) { return other == peer ? call.bytes : 0; });
  }
  return times_.track(call, do_message(call, std::move(tensor), peer), started);
}

void Communicator::barrier() {
  const auto started = Clock::now();
  // One byte from each rank to each: complete only when all ranks have called it.
  at::Tensor flag = at::ones({size_}, at::kByte);
  at::Tensor mine = flag.narrow(0, rank_, 1);
  const Call call = begin(Operation::kBarrier, Purpose::kControl, mine);
  count_each(call, [](int) { return 1; });
  times_.track(call, size_ > 1 ? do_all_gather(call, flag, mine) : nullptr, started).wait();
}

namespace {

// The first line in which two texts differ, from each of them.
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

void Communicator::verify_same_on_all_ranks(const std::string& what, const std::string& text) {
  std::vector<RankText> texts;
  for (std::string& theirs : exchange(text)) {
    texts.push_back({static_cast<int>(texts.size()), std::move(theirs)});
  }
  expect_same(what, texts);
}

void expect_same(const std::string& what, const std::vector<RankText>& texts) {
  for (const auto& [rank, text] : texts) {
    if (text == texts.front().text) continue;
    const auto [of_first, of_other] = first_difference(texts.front().text, text);
    throw Error(
        fmt::format("ranks disagree about {}: rank {} has {}, rank {} has {}; start all ranks "
                    "with the same program, options and files",
                    what, texts.front().rank, of_first, rank, of_other));
  }
}

std::int64_t Communicator::all_reduce_bytes(std::int64_t elements, std::int64_t element_size,
                                            int rank, int size) {
  const std::int64_t mine =
      piece_begin(elements, rank + 1, size) - piece_begin(elements, rank, size);
  return (elements - mine + (size - 1) * mine) * element_size;
}

Communicator::Call Communicator::begin(Operation operation, Purpose purpose,
                                       const at::Tensor& tensor, int root) {
  check_tensor(operation, tensor);
  if (sends(tensor)) check_device(tensor);
  count_call(operation, purpose);
  const Call call{.operation = operation,
                  .purpose = purpose,
                  .sequence = sequence_++,
                  .bytes = static_cast<std::int64_t>(tensor.nbytes()),
                  .step = step(),
                  .public_call = public_call(),
                  .root = root};
  if (call_log_) {
    const std::string_view own = call_log_->set_public_call(call.public_call);
    call_log_->add(name(operation), name(purpose), call.bytes);
    call_log_->set_public_call(own);
  }
  if (check_collectives_) {
    verify_same_on_all_ranks(
        "the next collective",
        fmt::format("#{} {} of {} [{}] for {}{}", call.sequence, name(operation),
                    c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                    name(purpose), root < 0 ? "" : fmt::format(", root {}", root)));
  }
  return call;
}

std::string_view Communicator::public_call() const {
  if (call_log_ && !call_log_->public_call().empty()) return call_log_->public_call();
  return parent_ != nullptr ? parent_->public_call() : std::string_view();  // a group is inside it
}

void Communicator::count_call(Operation operation, Purpose purpose) {
  ++traffic_.at(operation, purpose).calls;
  if (parent_ != nullptr) parent_->count_call(operation, purpose);
}

void Communicator::count(const Call& call, std::int64_t bytes, std::int64_t between_hosts) {
  Traffic::Entry& entry = traffic_.at(call.operation, call.purpose);
  entry.bytes += bytes;
  entry.between_hosts += between_hosts;
  if (parent_ != nullptr) parent_->count(call, bytes, between_hosts);
}

void Communicator::count_each(const Call& call,
                              const std::function<std::int64_t(int peer)>& bytes_to) {
  std::int64_t bytes = 0, between_hosts = 0;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const std::int64_t to_peer = bytes_to(peer);
    bytes += to_peer;
    if (host_of(peer) != host_of(rank_)) between_hosts += to_peer;
  }
  count(call, bytes, between_hosts);
}

Communicator::Watch Communicator::watch(const Call& call) {
  if (call.purpose != Purpose::kGradient || !checks_gradients()) return {};
  return [this, adds_sums = call.adds_sums](const at::Tensor& sum,
                                            const std::vector<at::Tensor>& contributions,
                                            bool overwritten_finite) {
    note_not_finite(sum, contributions, overwritten_finite, adds_sums);
  };
}

void Communicator::note_not_finite(const at::Tensor& sum,
                                   const std::vector<at::Tensor>& contributions,
                                   bool overwritten_finite, bool adds_sums) {
  bool found = false;
  for (std::size_t r = 0; r < contributions.size(); ++r) {
    const bool overwritten = contributions[r].data_ptr() == sum.data_ptr();
    if (overwritten ? overwritten_finite : at::isfinite(contributions[r]).all().item<bool>()) {
      continue;
    }
    // The reduction that made such a sum has noted where it comes from.
    if (!adds_sums) note_not_finite(static_cast<int>(r));
    found = true;
  }
  if (!found) note_not_finite(rank_);
}

void Communicator::note_not_finite(int rank) {
  not_finite_.resize(static_cast<std::size_t>(size_), false);
  not_finite_[static_cast<std::size_t>(rank)] = true;
  if (parent_ != nullptr) parent_->note_not_finite(ranks_[static_cast<std::size_t>(rank)]);
}

std::vector<bool> Communicator::take_not_finite() {
  std::vector<bool> taken = std::exchange(not_finite_, {});
  taken.resize(static_cast<std::size_t>(size_), false);
  return taken;
}

void Communicator::progress() {
  const auto started = Clock::now();
  progress_with_groups();
  times_.note_exposed("progress", nullptr, started);
}

void Communicator::progress_with_groups() {
  do_progress();
  for (Communicator* group : groups_) group->progress_with_groups();
}

void Communicator::synchronize() {
  do_synchronize();
  for (Communicator* group : groups_) group->synchronize();
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

void Communicator::check_pieces(Operation operation, const char* whole_is, const at::Tensor& whole,
                                const char* piece_is, const at::Tensor& piece,
                                bool same_dtype) const {
  check_tensor(operation, whole);
  check_tensor(operation, piece);
  if (whole.numel() != piece.numel() * size_ ||
      (same_dtype && whole.scalar_type() != piece.scalar_type())) {
    throw Error(fmt::format(
        "{}: the {} has {} {} elements, must have {} (world size {} x {} {}) of {}",
        name(operation), whole_is, whole.numel(), c10::toString(whole.scalar_type()),
        piece.numel() * size_, size_, piece_is, piece.numel(), c10::toString(piece.scalar_type())));
  }
}

int Communicator::rank_among(const std::vector<int>& ranks, const std::string& label) const {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine != ranks.end()) return static_cast<int>(mine - ranks.begin());
  throw Error(fmt::format("group '{}' of ranks {{{}}} does not hold rank {}, which called split()",
                          label, fmt::join(ranks, ", "), rank_));
}

CallScope::CallScope(Communicator& communicator, std::string_view name)
    : log_(communicator.call_log_) {
  if (!log_) return;
  outer_ = log_->public_call();
  if (outer_.empty()) log_->set_public_call(name);
}

CallScope::~CallScope() {
  if (log_) log_->set_public_call(outer_);
}

std::vector<double> all_gather_scalars(Communicator& communicator, std::vector<double> mine) {
  // Tensors of its own: a failed collective may still use them afterwards.
  const at::Tensor input = at::tensor(mine, at::kDouble);
  const at::Tensor output = at::empty({communicator.size() * input.numel()}, at::kDouble);
  communicator.all_gather(output, input, Purpose::kControl).wait();
  const double* const all = output.const_data_ptr<double>();
  return {all, all + output.numel()};
}

std::int64_t piece_begin(std::int64_t elements, int rank, int size) {
  return rank * (elements / size) + std::min<std::int64_t>(rank, elements % size);
}

std::string_view name(ReduceType type) {
  return type == ReduceType::kFloat32 ? "float32" : "their own type";
}

bool Communicator::widens(at::ScalarType dtype, ReduceType type) const {
  if (size_ == 1) return false;  // nothing is added
  if (dtype == at::kHalf && order_ == ReductionOrder::kNative) return true;
  return type == ReduceType::kFloat32 && (dtype == at::kHalf || dtype == at::kBFloat16);
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

}  // namespace zero::dist
