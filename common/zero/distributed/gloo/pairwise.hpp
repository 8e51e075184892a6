#pragma once

// Private to common/zero/distributed: collectives made of direct messages between pairs of ranks.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/gloo/gloo_communicator.hpp>
#include <zero/memory/storage_pool.hpp>

namespace zero::dist {

/// Messages that are waited on together.
class MessageSet final : public Work::Backend {
 public:
  MessageSet(const Messenger& messenger, std::string what)
      : messenger_(messenger), what_(std::move(what)) {}

  void send(const at::Tensor& tensor, int to, int tag);
  void recv(const at::Tensor& tensor, int from, int tag);
  void wait() override;

 private:
  struct Message {
    Messenger::WorkPtr work;
    int peer;
  };
  Messenger messenger_;
  std::string what_;
  std::vector<Message> messages_;
};

/// Scratch in which contributions of peers arrive. Reductions that overlap in time reuse each
/// other's blocks and so avoid page faults; the last one frees all blocks.
class ArrivalScratch {
 public:
  /// A reduction that is in flight.
  class User {
   public:
    explicit User(std::shared_ptr<ArrivalScratch> scratch) : scratch_(std::move(scratch)) {
      ++scratch_->in_flight_;
    }
    ~User() {
      if (--scratch_->in_flight_ == 0) scratch_->pool_.clear();
    }
    User(const User&) = delete;
    User& operator=(const User&) = delete;

   private:
    std::shared_ptr<ArrivalScratch> scratch_;
  };

  /// [rows, elements], uninitialised, charged to kCommunication.
  at::Tensor take(std::int64_t rows, std::int64_t elements, at::ScalarType dtype);
  /// Gives `block` back for reuse: no view of it may be read later.
  void give_back(const at::Tensor& block) { pool_.release(block); }

 private:
  memory::StoragePool pool_;
  int in_flight_ = 0;
};

/// What a collective needs from its communicator.
struct Surroundings {
  Messenger messenger;
  std::string what;  ///< for error messages
  int rank;
  int size;
  int first_tag;
  std::shared_ptr<ArrivalScratch> scratch;
  std::function<void(std::int64_t)> count_sent;
  /// Communicator::Watch, or empty.
  std::function<void(const at::Tensor&, const std::vector<at::Tensor>&, bool)> watch;
};

/// Every rank p owns piece p of a tensor; `pieces` are this rank's contributions (piece p has the
/// same length on all ranks, but pieces may differ in length). Each contribution goes straight to
/// its owner, which adds them in rank order into `output`. With `gather` the owners' results are
/// also received into `pieces`, which makes it an all-reduce.
///
/// Scratch for what arrives from peers: at most kScratchBytes for each reduction.
Communicator::WorkPtr pairwise_reduce(Surroundings surroundings, std::vector<at::Tensor> pieces,
                                      at::Tensor output, ReduceOp op, bool gather);
inline constexpr std::int64_t kScratchBytes = 32 << 20;

/// Gloo's own collectives, for comparison. Each divides the sum explicitly for an average.
Communicator::WorkPtr native_all_reduce(const Messenger&, std::string what, at::Tensor tensor,
                                        ReduceOp op, int size);
Communicator::WorkPtr native_reduce(const Messenger&, std::string what, at::Tensor tensor, int root,
                                    ReduceOp op, int size);
Communicator::WorkPtr native_reduce_scatter(const Messenger&, std::string what, at::Tensor output,
                                            std::vector<at::Tensor> pieces, ReduceOp op, int size);
Communicator::WorkPtr native_all_gather(const Messenger&, std::string what,
                                        std::vector<at::Tensor> pieces, at::Tensor input);

}  // namespace zero::dist
