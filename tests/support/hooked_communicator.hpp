#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <zero/distributed/backend.hpp>
#include <zero/distributed/communicator.hpp>

namespace zero::testing {

/// Called on this rank before an operation is started (`waiting` false) and before its handle is
/// waited on (true).
using Hook = std::function<void(dist::Operation, dist::Purpose, bool waiting)>;

/// Another backend with a function before everything that it does: where tests delay ranks, count
/// calls or let a rank fail. Same results, same traffic.
class HookedBackend final : public dist::Backend {
 public:
  HookedBackend(std::unique_ptr<dist::Backend> inner, Hook hook)
      : inner_(std::move(inner)), hook_(std::move(hook)) {}

  std::string transport() const override { return inner_->transport(); }
  bool takes(at::Device device) const override { return inner_->takes(device); }
  bool finds_not_finite() const override { return inner_->finds_not_finite(); }
  void progress() override { inner_->progress(); }
  void synchronize() override { inner_->synchronize(); }

  WorkPtr start(const dist::Call& call, at::Tensor output, at::Tensor input) override {
    hook_(call.operation, call.purpose, /*waiting=*/false);
    return std::make_unique<HookedWork>(hook_, call, inner_->start(call, output, input));
  }

  std::unique_ptr<dist::Backend> take_inner() { return std::move(inner_); }

 private:
  class HookedWork final : public dist::Work::Pending {
   public:
    HookedWork(Hook hook, const dist::Call& call, WorkPtr work)
        : hook_(std::move(hook)), call_(call), work_(std::move(work)) {}
    void wait() override {
      hook_(call_.operation, call_.purpose, /*waiting=*/true);
      work_->wait();
    }
    bool wait_output() override {
      hook_(call_.operation, call_.purpose, /*waiting=*/true);
      return work_->wait_output();
    }

   private:
    Hook hook_;  // handles may outlive the backend
    dist::Call call_;
    WorkPtr work_;
  };

  std::unique_ptr<dist::Backend> inner_;
  Hook hook_;
};

/// While it lives, `communicator` calls a hook, and so do the handles that it gives. Groups that
/// are split from it do not.
class Hooked {
 public:
  Hooked(dist::Communicator& communicator, Hook hook) : communicator_(communicator) {
    auto inner = communicator_.replace_backend(nullptr);
    communicator_.replace_backend(
        std::make_unique<HookedBackend>(std::move(inner), std::move(hook)));
  }
  ~Hooked() {
    const auto hooked = communicator_.replace_backend(nullptr);
    communicator_.replace_backend(dynamic_cast<HookedBackend&>(*hooked).take_inner());
  }
  Hooked(const Hooked&) = delete;
  Hooked& operator=(const Hooked&) = delete;

 private:
  dist::Communicator& communicator_;
};

}  // namespace zero::testing
