#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/communicator.hpp>

namespace zero::testing {

/// Another communicator with a function before everything that it does: where tests delay ranks,
/// count calls or let a rank fail. Same ranks, same results, same traffic.
class HookedCommunicator final : public dist::Communicator {
 public:
  /// Called on this rank before an operation is started (`waiting` false) and before its handle is
  /// waited on (true).
  using Hook = std::function<void(dist::Operation, dist::Purpose, bool waiting)>;

  /// `inner` must outlive this, and this must outlive the handles that it gives.
  HookedCommunicator(dist::Communicator& inner, Hook hook)
      : Communicator(inner.rank(), inner.size(), inner.order(), /*check_collectives=*/false),
        inner_(inner),
        hook_(std::move(hook)) {}

  std::string transport() const override { return inner_.transport(); }
  std::vector<std::string> exchange(const std::string& text) override {
    return inner_.exchange(text);
  }

 protected:
  void do_synchronize() override { inner_.synchronize(); }
  std::unique_ptr<dist::Communicator> do_split(const std::vector<int>& ranks,
                                               const std::string& label) override {
    return inner_.split(ranks, label);
  }
  WorkPtr do_broadcast(const Call& call, at::Tensor tensor, int root) override {
    return pass(call, [&] { return inner_.broadcast(tensor, root, call.purpose); });
  }
  WorkPtr do_reduce(const Call& call, at::Tensor tensor, int root, int divisor) override {
    return pass(call,
                [&] { return inner_.reduce(tensor, root, call.purpose, divided_by(divisor)); });
  }
  WorkPtr do_all_reduce(const Call& call, at::Tensor tensor, int divisor) override {
    return pass(call, [&] { return inner_.all_reduce(tensor, call.purpose, divided_by(divisor)); });
  }
  WorkPtr do_reduce_scatter(const Call& call, at::Tensor output, at::Tensor input,
                            int divisor) override {
    return pass(call, [&] {
      return inner_.reduce_scatter(output, input, call.purpose, divided_by(divisor));
    });
  }
  WorkPtr do_all_gather(const Call& call, at::Tensor output, at::Tensor input) override {
    return pass(
        call, [&] { return inner_.all_gather(output, input, call.purpose, call.copy_own_chunk); });
  }
  WorkPtr do_all_to_all(const Call& call, at::Tensor output, at::Tensor input) override {
    return pass(call, [&] { return inner_.all_to_all(output, input, call.purpose); });
  }
  WorkPtr do_message(const Call& call, at::Tensor tensor, int peer) override {
    return pass(call, [&] {
      return call.operation == dist::Operation::kSend ? inner_.send(tensor, peer, call.purpose)
                                                      : inner_.recv(tensor, peer, call.purpose);
    });
  }
  void do_progress() override { inner_.progress(); }

 private:
  static dist::Reduction divided_by(int divisor) {
    dist::Reduction reduction;
    reduction.ranks = divisor;
    return reduction;
  }

  class HookedWork final : public dist::Work::Backend {
   public:
    HookedWork(HookedCommunicator& self, const Call& call, dist::Work pending)
        : self_(self), call_(call), pending_(std::move(pending)) {}
    void wait() override {
      pass_wait([this] { pending_.wait(); });
    }
    bool wait_output() override {
      pass_wait([this] { pending_.wait_output(); });
      return pending_.active();
    }

   private:
    void pass_wait(const std::function<void()>& wait) {
      self_.hook_(call_.operation, call_.purpose, /*waiting=*/true);
      const std::int64_t sent = self_.inner_.traffic().bytes();
      wait();
      self_.count(call_, self_.inner_.traffic().bytes() - sent);
    }
    HookedCommunicator& self_;
    Call call_;
    dist::Work pending_;
  };

  template <typename Start>
  WorkPtr pass(const Call& call, const Start& start) {
    hook_(call.operation, call.purpose, /*waiting=*/false);
    return std::make_unique<HookedWork>(*this, call, start());
  }

  dist::Communicator& inner_;
  Hook hook_;
};

}  // namespace zero::testing
