#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/host/host_communicator.hpp>
#include <zero/distributed/rank_order.hpp>

namespace zero::dist {
namespace {

using Stage = HostTransport::Stage;

std::byte* writable_bytes(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

struct Withdraw {
  std::uint64_t ticket;
  void operator()(HostTransport* transport) const { transport->withdraw(ticket); }
};

// Data that peers may read under a ticket while this lives; none of it if no peer `reads`. Created
// before the work object: posting may wait, and waiting advances every existing work object.
struct Posting {
  Posting(HostTransport& transport, at::Tensor what, const std::string& call, bool reads = true)
      : tensor(std::move(what)),
        ticket(transport.post(tensor.const_data_ptr(),
                              reads ? static_cast<std::int64_t>(tensor.nbytes()) : 0, call)),
        posted(&transport, Withdraw{ticket}) {}
  at::Tensor tensor;
  std::uint64_t ticket;
  std::unique_ptr<HostTransport, Withdraw> posted;
};

// A part of one peer's posted data, and its destination.
struct Copy {
  int peer;
  std::int64_t offset;  // bytes, in what the peer posted
  at::Tensor to;
};

// Broadcast, all-gather, all-to-all: each rank copies what it needs, then waits for its readers.
class CopyWork final : public HostWork {
 public:
  CopyWork(HostTransport& transport, std::string what, Posting posting, std::vector<Copy> copies,
           std::vector<int> readers)
      : HostWork(transport, std::move(what)),
        posting_(std::move(posting)),
        copies_(std::move(copies)),
        readers_(std::move(readers)) {
    if (copies_.empty()) transport_.announce(posting_.ticket, Stage::kFinished);
  }

  bool progress() override {
    const auto before = copies_.size();
    std::erase_if(copies_, [this](const Copy& copy) {
      if (!transport_.reached(copy.peer, posting_.ticket, Stage::kPosted)) return false;
      transport_.read(copy.peer, posting_.ticket, copy.offset, writable_bytes(copy.to),
                      static_cast<std::int64_t>(copy.to.nbytes()), what_);
      return true;
    });
    if (before > 0 && copies_.empty()) transport_.announce(posting_.ticket, Stage::kFinished);
    return copies_.size() < before;
  }

  bool wait_output() override {
    only_own_ = true;
    transport_.wait(*this);
    only_own_ = false;
    return !complete();
  }

  bool complete() const override { return waits_for() < 0; }

  int waits_for() const override {
    if (!copies_.empty()) return copies_.front().peer;
    if (only_own_) return -1;
    for (const int reader : readers_) {
      if (!transport_.reached(reader, posting_.ticket, Stage::kFinished)) return reader;
    }
    return -1;
  }

 private:
  Posting posting_;
  std::vector<Copy> copies_;
  std::vector<int> readers_;
  bool only_own_ = false;  // waits only for this rank's copies, not for its readers
};

// Reduce, reduce-scatter, all-reduce: the owner of a piece copies all contributions to it block by
// block and adds the blocks in rank order while they are in the cache. With `gather` the other
// ranks then copy the sum.
class ReduceWork final : public HostWork {
 public:
  using Watch = std::function<void(const at::Tensor& sum,
                                   const std::vector<at::Tensor>& contributions, bool)>;

  ReduceWork(HostTransport& transport, std::string what, Posting posting,
             std::vector<std::int64_t> bounds, at::Tensor output, int divisor, bool gather,
             Watch watch)
      : HostWork(transport, std::move(what)),
        posting_(std::move(posting)),
        input_(posting_.tensor),
        bounds_(std::move(bounds)),
        output_(std::move(output)),
        divisor_(divisor),
        gather_(gather),
        watch_(std::move(watch)) {
    for (int r = 0; gather_ && r < transport_.size(); ++r) {
      if (r != transport_.rank() && length(r) > 0) to_copy_.push_back(r);
    }
    summed_ = length(transport_.rank()) == 0;
    announce_if_finished();
  }

  bool progress() override {
    const bool summed = sum_if_all_posted();
    const auto before = to_copy_.size();
    std::erase_if(to_copy_, [this](int peer) {
      if (!transport_.reached(peer, posting_.ticket, Stage::kReduced)) return false;
      transport_.read(peer, posting_.ticket, offset(bounds_[at(peer)]), writable_bytes(piece(peer)),
                      static_cast<std::int64_t>(piece(peer).nbytes()), what_);
      return true;
    });
    const bool moved = summed || to_copy_.size() < before;
    if (moved) announce_if_finished();
    return moved;
  }

  bool complete() const override { return waits_for() < 0; }

  int waits_for() const override {
    if (!summed_) return first_that_did_not_post();
    if (!to_copy_.empty()) return to_copy_.front();
    for (int r = 0; r < transport_.size(); ++r) {
      // Owners read this rank's contributions; with `gather` every rank reads this rank's sum.
      const bool reads = length(r) > 0 || (gather_ && length(transport_.rank()) > 0);
      if (r == transport_.rank() || !reads) continue;
      if (!transport_.reached(r, posting_.ticket, Stage::kFinished)) return r;
    }
    return -1;
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  std::int64_t length(int r) const { return bounds_[at(r) + 1] - bounds_[at(r)]; }
  std::int64_t offset(std::int64_t element) const {
    return element * static_cast<std::int64_t>(input_.element_size());
  }
  at::Tensor piece(int r) const { return input_.narrow(0, bounds_[at(r)], length(r)); }

  // Returns this rank if all have posted.
  int first_that_did_not_post() const {
    for (int r = 0; r < transport_.size(); ++r) {
      if (!transport_.reached(r, posting_.ticket, Stage::kPosted)) return r;
    }
    return transport_.rank();
  }

  bool sum_if_all_posted() {
    if (summed_ || first_that_did_not_post() != transport_.rank()) return false;
    const at::Tensor room = transport_.scratch().view(input_.scalar_type());  // [size - 1, block]
    const at::Tensor own = piece(transport_.rank());
    for (std::int64_t begin = 0; begin < own.numel(); begin += room.size(1)) {
      sum_block(room, own, begin, std::min(room.size(1), own.numel() - begin));
    }
    summed_ = true;
    if (gather_) {
      transport_.renew(posting_.ticket, offset(bounds_[at(transport_.rank())]),
                       output_.const_data_ptr(), static_cast<std::int64_t>(output_.nbytes()));
      transport_.announce(posting_.ticket, Stage::kReduced);
    }
    return true;
  }

  void sum_block(const at::Tensor& room, const at::Tensor& own, std::int64_t begin,
                 std::int64_t n) {
    std::vector<at::Tensor> contributions;
    for (int r = 0; r < transport_.size(); ++r) {
      if (r == transport_.rank()) {
        contributions.push_back(own.narrow(0, begin, n));
        continue;
      }
      const at::Tensor block = room.select(0, r < transport_.rank() ? r : r - 1).narrow(0, 0, n);
      transport_.read(r, posting_.ticket, offset(bounds_[at(transport_.rank())] + begin),
                      writable_bytes(block), static_cast<std::int64_t>(block.nbytes()), what_);
      contributions.push_back(block);
    }
    const at::Tensor sum = output_.narrow(0, begin, n);
    const SumCheck check = sum_in_rank_order(sum, contributions, divisor_);
    if (!check.finite && watch_) watch_(sum, contributions, check.overwritten_finite);
  }

  void announce_if_finished() {
    if (summed_ && to_copy_.empty()) transport_.announce(posting_.ticket, Stage::kFinished);
  }

  Posting posting_;
  at::Tensor input_;                  // flat: this rank's contributions to all pieces
  std::vector<std::int64_t> bounds_;  // first element of each piece, and the end
  at::Tensor output_;                 // flat: this rank's piece of the sum
  int divisor_;
  bool gather_;
  Watch watch_;  // called with sums that are not finite
  bool summed_ = false;
  std::vector<int> to_copy_;  // owners whose sums are still to be copied
};

std::vector<int> all_but(int rank, int size) {
  std::vector<int> others;
  for (int r = 0; r < size; ++r) {
    if (r != rank) others.push_back(r);
  }
  return others;
}

std::vector<std::int64_t> even_bounds(std::int64_t elements, int size) {
  std::vector<std::int64_t> bounds;
  for (int r = 0; r <= size; ++r) bounds.push_back(piece_begin(elements, r, size));
  return bounds;
}

}  // namespace

std::string HostCommunicator::text_of(const Call& call, const at::Tensor& tensor, int root) {
  const std::string what = fmt::format("{} of {} {} for {}{}", name(call.operation), tensor.numel(),
                                       c10::toString(tensor.scalar_type()), name(call.purpose),
                                       root < 0 ? "" : fmt::format(", root {}", root));
  return call.public_call.empty() ? what : fmt::format("{} ({})", call.public_call, what);
}

Communicator::WorkPtr HostCommunicator::do_broadcast(const Call& call, at::Tensor tensor,
                                                     int root) {
  if (tensor.numel() == 0) return nullptr;
  check_device(tensor);
  Posting posting(*transport_, tensor, text_of(call, tensor, root), rank() == root);
  if (rank() == root) {
    count(call, call.bytes * (size() - 1));
    return std::make_unique<CopyWork>(*transport_, describe(call), std::move(posting),
                                      std::vector<Copy>{}, all_but(root, size()));
  }
  return std::make_unique<CopyWork>(*transport_, describe(call), std::move(posting),
                                    std::vector<Copy>{{root, 0, tensor}}, std::vector<int>{});
}

Communicator::WorkPtr HostCommunicator::do_reduce(const Call& call, at::Tensor tensor, int root,
                                                  ReduceOp op) {
  if (native()) return GlooCommunicator::do_reduce(call, std::move(tensor), root, op);
  if (tensor.numel() == 0) return nullptr;
  check_device(tensor);
  if (rank() != root) count(call, call.bytes);
  // The root's piece is the whole tensor; the others' are empty.
  std::vector<std::int64_t> bounds;
  for (int r = 0; r <= size(); ++r) bounds.push_back(r <= root ? 0 : tensor.numel());
  const at::Tensor flat = tensor.flatten();
  Posting posting(*transport_, flat, text_of(call, tensor, root), rank() != root);
  return std::make_unique<ReduceWork>(*transport_, describe(call), std::move(posting), bounds, flat,
                                      op == ReduceOp::kAverage ? size() : 1, /*gather=*/false,
                                      watch(call));
}

Communicator::WorkPtr HostCommunicator::do_all_reduce(const Call& call, at::Tensor tensor,
                                                      ReduceOp op) {
  if (native()) return GlooCommunicator::do_all_reduce(call, std::move(tensor), op);
  if (tensor.numel() == 0) return nullptr;
  check_device(tensor);
  count(call, all_reduce_bytes(tensor.numel(), static_cast<std::int64_t>(tensor.element_size()),
                               rank(), size()));
  const at::Tensor flat = tensor.flatten();
  const std::vector<std::int64_t> bounds = even_bounds(flat.numel(), size());
  const auto mine = static_cast<std::size_t>(rank());
  Posting posting(*transport_, flat, text_of(call, tensor));
  return std::make_unique<ReduceWork>(*transport_, describe(call), std::move(posting), bounds,
                                      flat.narrow(0, bounds[mine], bounds[mine + 1] - bounds[mine]),
                                      op == ReduceOp::kAverage ? size() : 1, /*gather=*/true,
                                      watch(call));
}

Communicator::WorkPtr HostCommunicator::do_reduce_scatter(const Call& call, at::Tensor output,
                                                          at::Tensor input, ReduceOp op) {
  if (native()) {
    return GlooCommunicator::do_reduce_scatter(call, std::move(output), std::move(input), op);
  }
  if (input.numel() == 0) return nullptr;
  check_device(input);
  count(call, call.bytes / size() * (size() - 1));
  Posting posting(*transport_, input.flatten(), text_of(call, input));
  return std::make_unique<ReduceWork>(
      *transport_, describe(call), std::move(posting), even_bounds(input.numel(), size()),
      output.flatten(), op == ReduceOp::kAverage ? size() : 1, /*gather=*/false, watch(call));
}

Communicator::WorkPtr HostCommunicator::do_all_gather(const Call& call, at::Tensor output,
                                                      at::Tensor input) {
  if (native()) return GlooCommunicator::do_all_gather(call, std::move(output), std::move(input));
  if (input.numel() == 0) return nullptr;
  check_device(input);
  count(call, call.bytes * (size() - 1));
  const std::vector<at::Tensor> pieces = output.flatten().chunk(size());
  const at::Tensor& mine = pieces[static_cast<std::size_t>(rank())];
  const at::Tensor source = input.flatten();
  if (call.copy_own_chunk && mine.data_ptr() != source.data_ptr()) mine.copy_(source);
  std::vector<Copy> copies;
  for (const int peer : all_but(rank(), size())) {
    copies.push_back({peer, 0, pieces[static_cast<std::size_t>(peer)]});
  }
  Posting posting(*transport_, source, text_of(call, input));
  return std::make_unique<CopyWork>(*transport_, describe(call), std::move(posting),
                                    std::move(copies), all_but(rank(), size()));
}

Communicator::WorkPtr HostCommunicator::do_all_to_all(const Call& call, at::Tensor output,
                                                      at::Tensor input) {
  if (input.numel() == 0) return nullptr;
  check_device(input);
  const std::vector<at::Tensor> to = input.flatten().chunk(size());
  const std::vector<at::Tensor> from = output.flatten().chunk(size());
  const auto me = static_cast<std::size_t>(rank());
  from[me].copy_(to[me]);
  const std::int64_t piece_bytes = call.bytes / size();
  count(call, piece_bytes * (size() - 1));
  std::vector<Copy> copies;
  for (const int peer : all_but(rank(), size())) {
    copies.push_back({peer, rank() * piece_bytes, from[static_cast<std::size_t>(peer)]});
  }
  Posting posting(*transport_, input, text_of(call, input));
  return std::make_unique<CopyWork>(*transport_, describe(call), std::move(posting),
                                    std::move(copies), all_but(rank(), size()));
}

std::unique_ptr<Communicator> make_cpu_communicator(StoreExchange store, GroupPtr group, int rank,
                                                    int size, const ConnectOptions& options) {
  if (size == 1) {
    return std::make_unique<GlooCommunicator>(std::move(store), nullptr, rank, size, options);
  }
  const char* variable = std::getenv("ZERO_TRANSPORT");
  const bool is_set = variable != nullptr && *variable != '\0';
  const std::string mode = is_set ? variable : options.transport;
  using TransportMode = HostTransport::TransportMode;
  const std::map<std::string, TransportMode> modes = {{"auto", TransportMode::kAny},
                                                      {"host", TransportMode::kAny},
                                                      {"shared", TransportMode::kShared},
                                                      {"tcp", TransportMode::kNone}};
  if (modes.count(mode) == 0) {
    throw Error(fmt::format("transport '{}' is unknown: auto, host, shared or tcp", mode));
  }
  std::string reason;
  auto transport = HostTransport::open(store, rank, size, options.timeout, modes.at(mode), reason);
  if (mode == "host" && (transport == nullptr || transport->shares())) {
    throw Error(
        fmt::format("the ranks cannot read each other's memory: {}; choose transport "
                    "auto, shared or tcp",
                    reason));
  }
  if (mode == "shared" && transport == nullptr) {
    throw Error(
        fmt::format("the ranks cannot share memory: {}; choose transport auto or tcp", reason));
  }
  if (transport != nullptr) {
    return std::make_unique<HostCommunicator>(std::move(store), std::move(group),
                                              std::move(transport), rank, size, options, reason);
  }
  return std::make_unique<GlooCommunicator>(std::move(store), std::move(group), rank, size, options,
                                            reason);
}

}  // namespace zero::dist
