#pragma once

// Private to common/distributed: where ranks meet, and how those that wait hear of one that ended.

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "zero/distributed/gloo_communicator.hpp"

namespace zero::dist {

/// The store of ranks that this process starts by itself: it serves them over loopback and tells
/// them when one of them has failed. No rank can hold the others up in it, as one that is stopped
/// while it has the lock of a shared file would.
class Rendezvous {
 public:
  /// Takes a port that is free, before the ranks are forked: they can connect from then on.
  Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  ~Rendezvous();

  int port() const { return port_; }

  /// Answers the ranks, in a thread: to be called after the last fork.
  void serve(std::chrono::milliseconds timeout);

  /// Ends the wait of all ranks for something that is not in the store yet; `how` says what became
  /// of which rank, and is their error.
  void say_failed(const std::string& how);

 private:
  int port_ = 0;
  int socket_ = -1;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

/// The rank's side of Rendezvous::port(); zero::Error if it does not answer.
StorePtr meet_at(int port, std::chrono::milliseconds timeout);

/// A store in which nobody waits for what will never come: a wait ends with zero::Error soon after
/// the process that started the ranks has said that one failed. Under a launcher of others nobody
/// says so, and a wait lasts until its time limit, or until the launcher ends this rank.
class WatchedStore final : public c10d::PrefixStore {
 public:
  WatchedStore(std::string prefix, StorePtr base)
      : c10d::PrefixStore(std::move(prefix), base), base_(std::move(base)) {}

  std::vector<std::uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  StorePtr base_;
};

}  // namespace zero::dist
