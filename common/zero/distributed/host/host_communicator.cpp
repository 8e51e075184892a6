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

// A part of one peer's posted data, and its destination.
struct Copy {
  int peer;
  std::int64_t offset;  // bytes, in what the peer posted
  at::Tensor to;
};

// Broadcast, all-gather, all-to-all: each rank copies what it needs, then waits for its readers.
class CopyWork final : public HostWork {
 public:
  CopyWork(HostTransport& transport, const Communicator::Call& call, at::Tensor source,
           std::vector<Copy> copies, std::vector<int> readers)
      : HostWork(transport, call, std::move(source), /*reads=*/!readers.empty()),
        copies_(std::move(copies)),
        readers_(std::move(readers)) {
    if (copies_.empty()) transport_.announce(ticket(), Stage::kFinished);
  }

  bool progress() override {
    const auto before = copies_.size();
    std::erase_if(copies_, [this](const Copy& copy) {
      if (!transport_.reached(copy.peer, ticket(), Stage::kPosted)) return false;
      transport_.read(copy.peer, ticket(), copy.offset, writable_bytes(copy.to),
                      static_cast<std::int64_t>(copy.to.nbytes()), *this);
      return true;
    });
    if (before > 0 && copies_.empty()) transport_.announce(ticket(), Stage::kFinished);
    return copies_.size() < before;
  }

  bool wait_output() override {
    only_own_ = true;
    wait();
    only_own_ = false;
    return !complete();
  }

  int waits_for() const override {
    if (!copies_.empty()) return copies_.front().peer;
    if (only_own_) return -1;
    for (const int reader : readers_) {
      if (!transport_.reached(reader, ticket(), Stage::kFinished)) return reader;
    }
    return -1;
  }

 private:
  std::vector<Copy> copies_;
  std::vector<int> readers_;
  bool only_own_ = false;  // waits only for this rank's copies, not for its readers
};

// Reduce, reduce-scatter, all-reduce: the owner of a piece copies all contributions to it block by
// block and adds the blocks in rank order while they are in the cache. With `gather` the other
// ranks then copy the sum.
class ReduceWork final : public HostWork {
 public:
  // `input`: this rank's contributions to all pieces. `reads`: whether a peer reads any of it.
  ReduceWork(HostTransport& transport, const Communicator::Call& call, at::Tensor input, bool reads,
             std::vector<std::int64_t> bounds, at::Tensor output, int divisor, bool gather,
             Communicator::Watch watch)
      : HostWork(transport, call, std::move(input), reads),
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
      if (!transport_.reached(peer, ticket(), Stage::kReduced)) return false;
      transport_.read(peer, ticket(), offset(bounds_[at(peer)]), writable_bytes(piece(peer)),
                      static_cast<std::int64_t>(piece(peer).nbytes()), *this);
      return true;
    });
    const bool moved = summed || to_copy_.size() < before;
    if (moved) announce_if_finished();
    return moved;
  }

  int waits_for() const override {
    if (!summed_) return first_that_did_not_post();
    if (!to_copy_.empty()) return to_copy_.front();
    for (int r = 0; r < transport_.size(); ++r) {
      // Owners read this rank's contributions; with `gather` every rank reads this rank's sum.
      const bool reads = length(r) > 0 || (gather_ && length(transport_.rank()) > 0);
      if (r == transport_.rank() || !reads) continue;
      if (!transport_.reached(r, ticket(), Stage::kFinished)) return r;
    }
    return -1;
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  std::int64_t length(int r) const { return bounds_[at(r) + 1] - bounds_[at(r)]; }
  std::int64_t offset(std::int64_t element) const {
    return element * static_cast<std::int64_t>(posted().element_size());
  }
  at::Tensor piece(int r) const { return posted().narrow(0, bounds_[at(r)], length(r)); }

  // Returns this rank if all have posted.
  int first_that_did_not_post() const {
    for (int r = 0; r < transport_.size(); ++r) {
      if (!transport_.reached(r, ticket(), Stage::kPosted)) return r;
    }
    return transport_.rank();
  }

  bool sum_if_all_posted() {
    if (summed_ || first_that_did_not_post() != transport_.rank()) return false;
    const at::Tensor room = transport_.scratch().view(output_.scalar_type());  // [size - 1, block]
    const at::Tensor own = piece(transport_.rank());
    for (std::int64_t begin = 0; begin < own.numel(); begin += room.size(1)) {
      sum_block(room, own, begin, std::min(room.size(1), own.numel() - begin));
    }
    summed_ = true;
    if (gather_) {
      transport_.renew(ticket(), offset(bounds_[at(transport_.rank())]), output_.const_data_ptr(),
                       static_cast<std::int64_t>(output_.nbytes()));
      transport_.announce(ticket(), Stage::kReduced);
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
      transport_.read(r, ticket(), offset(bounds_[at(transport_.rank())] + begin),
                      writable_bytes(block), static_cast<std::int64_t>(block.nbytes()), *this);
      contributions.push_back(block);
    }
    const at::Tensor sum = output_.narrow(0, begin, n);
    const SumCheck check = sum_in_rank_order(sum, contributions, divisor_);
    if (!check.finite && watch_) watch_(sum, contributions, check.overwritten_finite);
  }

  void announce_if_finished() {
    if (summed_ && to_copy_.empty()) transport_.announce(ticket(), Stage::kFinished);
  }

  std::vector<std::int64_t> bounds_;  // first element of each piece, and the end
  at::Tensor output_;                 // flat: this rank's piece of the sum
  int divisor_;
  bool gather_;
  Communicator::Watch watch_;  // called with sums that are not finite
  bool summed_ = false;
  std::vector<int> to_copy_;  // owners whose sums are still to be copied
};

}  // namespace

Communicator::WorkPtr HostCommunicator::exchange_parts(const Call& call, at::Tensor source,
                                                       std::int64_t offset,
                                                       std::vector<Part> outgoing,
                                                       std::vector<Part> incoming) {
  std::vector<int> readers;
  for (const Part& part : outgoing) readers.push_back(part.peer);
  std::vector<Copy> copies;
  for (Part& part : incoming) copies.push_back({part.peer, offset, std::move(part.tensor)});
  return std::make_unique<CopyWork>(*transport_, call, std::move(source), std::move(copies),
                                    std::move(readers));
}

Communicator::WorkPtr HostCommunicator::reduce_pieces(const Call& call, at::Tensor input,
                                                      std::vector<std::int64_t> bounds,
                                                      at::Tensor output, int divisor, bool gather) {
  const bool reads = gather || bounds[me() + 1] - bounds[me()] < input.numel();
  return std::make_unique<ReduceWork>(*transport_, call, std::move(input), reads, std::move(bounds),
                                      std::move(output), divisor, gather, watch(call));
}

std::unique_ptr<Communicator> make_cpu_communicator(StoreExchange store, GroupPtr group,
                                                    const ConnectOptions& options) {
  if (store.size() == 1) {
    return std::make_unique<GlooCommunicator>(std::move(store), nullptr, options);
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
  auto transport = HostTransport::open(store, modes.at(mode), reason);
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
                                              std::move(transport), options, reason);
  }
  return std::make_unique<GlooCommunicator>(std::move(store), std::move(group), options,
                                            fmt::format("TCP ({})", reason));
}

}  // namespace zero::dist
