#pragma once

// Private to common/zero/distributed, as every header that shows c10d types. StoreExchange and
// Messenger are defined in store_exchange.cpp and messenger.cpp.

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include <zero/distributed/communicator.hpp>
#include <zero/distributed/connect.hpp>
#include <zero/distributed/store/store.hpp>

namespace zero::dist {

/// What an exception of c10d says, without the stack trace behind it.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

/// Start-up and object exchange over a c10d store, shared by all backends.
class StoreExchange {
 public:
  /// `server`: the rank with whose process the store goes away; -1 where it is none of these.
  StoreExchange(StorePtr store, int rank, int size, std::chrono::milliseconds timeout, int server)
      : store_(std::move(store)), rank_(rank), size_(size), timeout_(timeout), server_(server) {}

  /// See Communicator::exchange.
  std::vector<std::string> exchange(const std::string& text);

  const StorePtr& store() const { return store_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  int server() const { return server_; }

 private:
  static std::string key_of(std::int64_t round, int rank);
  void put(const std::string& key, const std::string& text);
  std::string take(int rank, std::int64_t round);
  void forget_last_message();
  void leave(std::int64_t round);
  // Calls `wait` and turns what c10d throws into a zero::Error that says what was waited for.
  std::string patiently(const std::string& what, const std::function<std::string()>& wait);

  StorePtr store_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  int server_;
  std::int64_t round_ = 0;
  std::vector<std::string> mine_;   // keys of this rank's message
  std::vector<std::string> older_;  // and of the one before
};

/// Messages between pairs of ranks over Gloo, with errors that say who did not answer.
class Messenger {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  Messenger(GroupPtr group, int rank, std::chrono::milliseconds timeout)
      : group_(std::move(group)), rank_(rank), timeout_(timeout) {}

  /// `what` and `peer` are for the message of the zero::Error, here and in wait().
  WorkPtr send(at::Tensor tensor, int to, int tag, const std::string& what) const;
  WorkPtr recv(at::Tensor tensor, int from, int tag, const std::string& what) const;

  /// Blocks until `work` is done.
  void wait(const WorkPtr& work, const std::string& what, int peer) const;

  const GroupPtr& group() const { return group_; }

 private:
  [[noreturn]] void fail(const std::string& what, int peer, const std::string& cause) const;

  GroupPtr group_;
  int rank_;
  std::chrono::milliseconds timeout_;
};

class ArrivalScratch;

/// CPU tensors over Gloo: every collective is made of direct messages between pairs of ranks
/// (measured against Gloo's own in docs/benchmarks.md), reductions add in rank order.
class GlooCommunicator : public Communicator {
 public:
  /// Called by all ranks; blocks until they are connected. `group` is null for one rank.
  /// `why_not_faster`: why ranks do not read each other's memory.
  GlooCommunicator(StoreExchange store, GroupPtr group, int rank, int size,
                   const ConnectOptions& options, std::string why_not_faster = "");

  std::string transport() const override;

  /// Null for a group of one.
  const GroupPtr& group() const { return messenger_.group(); }

  std::vector<std::string> exchange(const std::string& text) override;
  std::unique_ptr<Communicator> split(const std::vector<int>& ranks,
                                      const std::string& label) override;

 protected:
  WorkPtr do_broadcast(const Call&, at::Tensor tensor, int root) override;
  WorkPtr do_reduce(const Call&, at::Tensor tensor, int root, ReduceOp op) override;
  WorkPtr do_all_reduce(const Call&, at::Tensor tensor, ReduceOp op) override;
  WorkPtr do_reduce_scatter(const Call&, at::Tensor output, at::Tensor input, ReduceOp op) override;
  WorkPtr do_all_gather(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_all_to_all(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_send(const Call&, at::Tensor tensor, int destination, int tag) override;
  WorkPtr do_recv(const Call&, at::Tensor tensor, int source, int tag) override;

  /// The communicator of a group that split() has connected: of the same kind as this one.
  virtual std::unique_ptr<Communicator> make_group(StoreExchange store, GroupPtr group, int rank,
                                                   int size);

  std::string describe(const Call& call) const;  ///< for error messages
  void check_device(const at::Tensor& tensor) const;
  const ConnectOptions& options() const { return options_; }

 private:
  StoreExchange store_;
  Messenger messenger_;
  std::shared_ptr<ArrivalScratch> scratch_;
  ConnectOptions options_;
  std::string why_not_faster_;
};

/// A Gloo group over `store`, at the interfaces of GLOO_SOCKET_IFNAME, else loopback or the host's.
GroupPtr make_gloo_group(const StorePtr& store, int rank, int size, bool loopback,
                         std::chrono::milliseconds timeout);

}  // namespace zero::dist
