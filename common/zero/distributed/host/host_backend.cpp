#include <algorithm>
#include <utility>

#include <zero/distributed/host/host_backend.hpp>

namespace zero::dist {
namespace {

using Stage = HostTransport::Stage;
using Part = PairwiseBackend::Part;

// Broadcast, all-gather, all-to-all: each rank copies what it needs, then waits for its readers.
class CopyWork final : public HostWork {
 public:
  CopyWork(HostTransport& transport, const Call& call, at::Tensor source,
           std::vector<Part> outgoing, std::vector<Part> incoming)
      : HostWork(transport, call, std::move(source), /*reads=*/!outgoing.empty()),
        outgoing_(std::move(outgoing)),
        incoming_(std::move(incoming)) {
    if (incoming_.empty()) transport_.announce(ticket(), Stage::kFinished);
  }

  bool progress() override {
    const auto before = incoming_.size();
    std::erase_if(incoming_, [this](const Part& part) {
      if (!reached(part.peer, Stage::kPosted)) return false;
      copy(part.peer, part.offset, part.tensor);
      return true;
    });
    if (before > 0 && incoming_.empty()) transport_.announce(ticket(), Stage::kFinished);
    return incoming_.size() < before;
  }

  bool wait_output() override {
    only_own_ = true;
    wait();
    only_own_ = false;
    return !complete();
  }

  int waits_for() const override {
    if (!incoming_.empty()) return incoming_.front().peer;
    if (only_own_) return -1;
    for (const Part& part : outgoing_) {
      if (!reached(part.peer, Stage::kFinished)) return part.peer;
    }
    return -1;
  }

 private:
  std::vector<Part> outgoing_;
  std::vector<Part> incoming_;  // still to be copied
  bool only_own_ = false;       // waits only for this rank's copies, not for its readers
};

// Reduce, reduce-scatter, all-reduce: the owner of a piece reads all contributions to it where they
// lie and adds them up in rank order. With `gather` the other ranks then copy the sum.
class ReduceWork final : public HostWork {
 public:
  ReduceWork(HostTransport& transport, const Call& call, Pieces pieces)
      : HostWork(transport, call, pieces.input,
                 /*reads=*/pieces.gather || pieces.length(transport.rank()) < pieces.input.numel()),
        pieces_(std::move(pieces)) {
    for (int r = 0; pieces_.gather && r < transport_.size(); ++r) {
      if (r != transport_.rank() && pieces_.length(r) > 0) to_copy_.push_back(r);
    }
    summed_ = pieces_.length(transport_.rank()) == 0;
    announce_if_finished();
  }

  bool progress() override {
    const bool summed = sum_if_all_posted();
    const auto before = to_copy_.size();
    std::erase_if(to_copy_, [this](int peer) {
      if (!reached(peer, Stage::kReduced)) return false;
      copy(peer, offset(peer), pieces_.of(peer));
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
      const bool reads =
          pieces_.length(r) > 0 || (pieces_.gather && pieces_.length(transport_.rank()) > 0);
      if (r == transport_.rank() || !reads) continue;
      if (!reached(r, Stage::kFinished)) return r;
    }
    return -1;
  }

 private:
  // In bytes, of the piece of rank `r`.
  std::int64_t offset(int r) const {
    return pieces_.bounds[static_cast<std::size_t>(r)] *
           static_cast<std::int64_t>(posted().element_size());
  }

  // Returns this rank if all have posted.
  int first_that_did_not_post() const {
    for (int r = 0; r < transport_.size(); ++r) {
      if (!reached(r, Stage::kPosted)) return r;
    }
    return transport_.rank();
  }

  bool sum_if_all_posted() {
    if (summed_ || first_that_did_not_post() != transport_.rank()) return false;
    const at::Tensor& output = pieces_.output;
    std::vector<at::Tensor> contributions;
    for (int r = 0; r < transport_.size(); ++r) {
      const at::Tensor own = pieces_.of(transport_.rank());
      contributions.push_back(
          r == transport_.rank() ? own
                                 : transport_.data_of(r, ticket(), offset(transport_.rank()), own));
    }
    add_up(call(), output, contributions);
    for (int r = 0; r < transport_.size(); ++r) {
      if (r == transport_.rank()) continue;
      transport_.done_reading(r, contributions[static_cast<std::size_t>(r)], *this);
    }
    summed_ = true;
    if (pieces_.gather) {
      transport_.renew(ticket(), offset(transport_.rank()), output.const_data_ptr(),
                       static_cast<std::int64_t>(output.nbytes()));
      transport_.announce(ticket(), Stage::kReduced);
    }
    return true;
  }

  void announce_if_finished() {
    if (summed_ && to_copy_.empty()) transport_.announce(ticket(), Stage::kFinished);
  }

  Pieces pieces_;
  bool summed_ = false;
  std::vector<int> to_copy_;  // owners whose sums are still to be copied
};

}  // namespace

at::Tensor HostReads::of(int peer, std::int64_t begin, const at::Tensor& shape) {
  transport_.wait([&] { return reached(peer, Stage::kPosted) ? -1 : peer; },
                  [this] { return what(); });
  return transport_.data_of(peer, ticket(), begin * static_cast<std::int64_t>(shape.element_size()),
                            shape);
}

void HostReads::finish() {
  transport_.announce(ticket(), Stage::kFinished);
  wait();
}

int HostReads::waits_for() const {
  for (int r = 0; r < transport_.size(); ++r) {
    if (!reached(r, Stage::kFinished)) return r;
  }
  return -1;
}

Backend::WorkPtr HostBackend::exchange_parts(const Call& call, at::Tensor source,
                                             std::vector<Part> outgoing,
                                             std::vector<Part> incoming) {
  return std::make_unique<CopyWork>(*transport_, call, std::move(source), std::move(outgoing),
                                    std::move(incoming));
}

Backend::WorkPtr HostBackend::reduce_pieces(const Call& call, Pieces pieces) {
  return std::make_unique<ReduceWork>(*transport_, call, std::move(pieces));
}

}  // namespace zero::dist
