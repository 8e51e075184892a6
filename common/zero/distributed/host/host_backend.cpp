#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <zero/distributed/host/host_backend.hpp>
#include <zero/distributed/host/host_transport.hpp>
#include <zero/distributed/pairwise_backend.hpp>
#include <zero/distributed/rank_order.hpp>

namespace zero::dist {
namespace {

using Stage = HostTransport::Stage;
using Part = PairwiseBackend::Part;

// Each rank copies what it needs from its peers, then waits for its readers. In a reduction the
// owner of a piece first reads all contributions to it where they lie and adds them up in rank
// order; what the others copy is then the sum.
class CollectiveWork final : public HostWork {
 public:
  // `pieces`: of a reduction.
  CollectiveWork(HostTransport& transport, const Call& call, const at::Tensor& source,
                 std::vector<int> readers, std::vector<Part> incoming,
                 std::optional<Pieces> pieces = {})
      : transport_(transport),
        call_(call),
        readers_(std::move(readers)),
        // They may read it while this work lives.
        shared_(readers_.empty() ? at::Tensor() : transport.shared(call, source)),
        incoming_(std::move(incoming)),
        pieces_(std::move(pieces)),
        summed_(!pieces_ || pieces_->length(transport.rank()) == 0),
        ticket_(transport.post(call, shared_)) {
    // Only now: posting may wait, and waiting advances all work.
    transport_.add(this);
    announce_if_finished();
  }
  ~CollectiveWork() override { transport_.remove(this); }
  CollectiveWork(const CollectiveWork&) = delete;
  CollectiveWork& operator=(const CollectiveWork&) = delete;

  void wait() override {
    transport_.wait([this] { return waits_for(); }, [this] { return call_.text(); });
  }
  bool wait_output() override {
    transport_.wait([this] { return needs(); }, [this] { return call_.text(); });
    return waits_for() >= 0;
  }

  bool progress() override {
    const bool summed = sum_if_all_posted();
    const auto before = incoming_.size();
    std::erase_if(incoming_, [this](const Part& part) {
      if (!reached(part.peer, pieces_ ? Stage::kReduced : Stage::kPosted)) return false;
      const at::Tensor from = transport_.data_of(part.peer, ticket_, part.offset, part.tensor);
      copy_around_cache(part.tensor, from);
      transport_.done_reading(part.peer, from, call_);
      return true;
    });
    const bool moved = summed || incoming_.size() < before;
    if (moved) announce_if_finished();
    return moved;
  }

  int needs() const override {
    if (!summed_) return first_that_did_not_post();
    return incoming_.empty() ? -1 : incoming_.front().peer;
  }

 private:
  // As needs(), or a reader that has not finished; -1 if the work is complete.
  int waits_for() const {
    if (const int peer = needs(); peer >= 0) return peer;
    const auto reader =
        std::ranges::find_if(readers_, [this](int r) { return !reached(r, Stage::kFinished); });
    return reader == readers_.end() ? -1 : *reader;
  }

  bool reached(int peer, Stage stage) const {
    return transport_.reached(peer, ticket_, call_.fingerprint, stage);
  }

  // Returns this rank if all have posted.
  int first_that_did_not_post() const {
    for (int r = 0; r < transport_.size(); ++r) {
      if (!reached(r, Stage::kPosted)) return r;
    }
    return transport_.rank();
  }

  bool sum_if_all_posted() {
    const int me = transport_.rank();
    if (summed_ || first_that_did_not_post() != me) return false;
    const at::Tensor& output = pieces_->output;
    std::vector<at::Tensor> contributions;
    for (int r = 0; r < transport_.size(); ++r) {
      const at::Tensor own = pieces_->of(me);
      contributions.push_back(r == me ? own
                                      : transport_.data_of(r, ticket_, pieces_->offset(me), own));
    }
    add_up(call_, output, contributions);
    for (const int r : transport_.others()) {
      transport_.done_reading(r, contributions[static_cast<std::size_t>(r)], call_);
    }
    summed_ = true;
    if (pieces_->gather) {
      // Peers now read the sum.
      std::byte* const seen =
          static_cast<std::byte*>(shared_.mutable_data_ptr()) + pieces_->offset(me);
      if (seen != output.const_data_ptr()) {
        copy_around_cache(seen, output.const_data_ptr(), output.nbytes());
      }
      transport_.announce(ticket_, Stage::kReduced);
    }
    return true;
  }

  void announce_if_finished() {
    if (summed_ && incoming_.empty()) transport_.announce(ticket_, Stage::kFinished);
  }

  HostTransport& transport_;
  Call call_;
  std::vector<int> readers_;
  at::Tensor shared_;
  std::vector<Part> incoming_;  // still to be copied
  std::optional<Pieces> pieces_;
  bool summed_;  // this rank's piece, if it owns one
  std::uint64_t ticket_;
};

class HostBackend final : public PairwiseBackend {
 public:
  HostBackend(const Place& place, std::unique_ptr<HostTransport> transport,
              std::unique_ptr<Backend> messages)
      : PairwiseBackend(place.rank, place.size),
        messages_(std::move(messages)),
        transport_(std::move(transport)) {}

  std::string transport() const override { return "one copy within the host"; }
  bool finds_not_finite() const override { return true; }
  void progress() override { transport_->progress(); }

 protected:
  WorkPtr exchange_parts(const Call& call, at::Tensor source, std::vector<Part> outgoing,
                         std::vector<Part> incoming) override {
    std::vector<int> readers;
    for (const Part& part : outgoing) readers.push_back(part.peer);
    return std::make_unique<CollectiveWork>(*transport_, call, source, std::move(readers),
                                            std::move(incoming));
  }

  WorkPtr reduce_pieces(const Call& call, Pieces pieces) override {
    std::vector<int> readers;
    std::vector<Part> incoming;
    for (const int r : transport_->others()) {
      const bool owns = pieces.length(r) > 0;
      // Owners read this rank's contributions; with `gather` every rank reads this rank's sum.
      if (owns || (pieces.gather && pieces.length(rank()) > 0)) readers.push_back(r);
      if (owns && pieces.gather) incoming.push_back({r, pieces.of(r), pieces.offset(r)});
    }
    const at::Tensor source = pieces.input;
    return std::make_unique<CollectiveWork>(*transport_, call, source, std::move(readers),
                                            std::move(incoming), std::move(pieces));
  }

  WorkPtr message(const Call& call, at::Tensor tensor) override {
    return messages_->start(call, tensor, tensor);
  }

 private:
  std::unique_ptr<Backend> messages_;
  std::unique_ptr<HostTransport> transport_;
};

}  // namespace

std::string put_host_before(std::unique_ptr<Backend>& backend, const Place& place, bool wanted) {
  std::string reason;
  auto transport = HostTransport::open(place, *backend, wanted, reason);
  if (transport != nullptr) {
    backend = std::make_unique<HostBackend>(place, std::move(transport), std::move(backend));
  }
  return reason;
}

}  // namespace zero::dist
