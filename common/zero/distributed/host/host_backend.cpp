#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/variable.hpp>
#include <zero/distributed/gloo/gloo_backend.hpp>
#include <zero/distributed/host/host_backend.hpp>
#include <zero/distributed/store/store_exchange.hpp>

namespace zero::dist {
namespace {

std::string transport_of(const Place& place) {
  const std::string transport = base::variable("ZERO_TRANSPORT").value_or(place.options.transport);
  if (transport == "auto" || transport == "host" || transport == "tcp") return transport;
  throw Error(fmt::format("transport '{}' is unknown: auto, host or tcp", transport));
}

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
      : HostWork(transport, call, source, std::move(readers)),
        incoming_(std::move(incoming)),
        pieces_(std::move(pieces)),
        summed_(!pieces_ || pieces_->length(transport.rank()) == 0) {
    announce_if_finished();
  }

  bool progress() override {
    const bool summed = sum_if_all_posted();
    const auto before = incoming_.size();
    std::erase_if(incoming_, [this](const Part& part) {
      if (!reached(part.peer, pieces_ ? Stage::kReduced : Stage::kPosted)) return false;
      copy(part.peer, part.offset, part.tensor);
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
                                      : transport_.data_of(r, ticket(), pieces_->offset(me), own));
    }
    add_up(call(), output, contributions);
    for (const int r : transport_.others()) {
      transport_.done_reading(r, contributions[static_cast<std::size_t>(r)], *this);
    }
    summed_ = true;
    if (pieces_->gather) {
      renew(pieces_->offset(me), output);
      transport_.announce(ticket(), Stage::kReduced);
    }
    return true;
  }

  void announce_if_finished() {
    if (summed_ && incoming_.empty()) transport_.announce(ticket(), Stage::kFinished);
  }

  std::vector<Part> incoming_;  // still to be copied
  std::optional<Pieces> pieces_;
  bool summed_;  // this rank's piece, if it owns one
};

}  // namespace

Backend::WorkPtr HostBackend::exchange_parts(const Call& call, at::Tensor source,
                                             std::vector<Part> outgoing,
                                             std::vector<Part> incoming) {
  std::vector<int> readers;
  for (const Part& part : outgoing) readers.push_back(part.peer);
  return std::make_unique<CollectiveWork>(*transport_, call, source, std::move(readers),
                                          std::move(incoming));
}

Backend::WorkPtr HostBackend::reduce_pieces(const Call& call, Pieces pieces) {
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

// With Gloo's group for messages between two ranks, and for collectives where ranks cannot read
// each other's memory.
std::unique_ptr<Backend> make_cpu_backend(const Place& place, bool tcp) {
  const std::string mode = tcp ? "tcp" : transport_of(place);
  const int world_rank = place.store->call_log().world_rank(place.rank);
  GroupPtr group = make_gloo_group(place.store->store(), place.rank, place.size, world_rank,
                                   place.options.loopback, place.options.timeout);
  std::string reason;
  auto transport = HostTransport::open(place, /*wanted=*/mode != "tcp", reason);
  if (mode == "host" && transport == nullptr) {
    throw Error(fmt::format(
        "the ranks cannot read each other's memory: {}; choose transport auto or tcp", reason));
  }
  auto gloo =
      std::make_unique<GlooBackend>(place, std::move(group), fmt::format("TCP ({})", reason));
  if (transport == nullptr) return gloo;
  return std::make_unique<HostBackend>(place, std::move(transport), std::move(gloo));
}

}  // namespace zero::dist
