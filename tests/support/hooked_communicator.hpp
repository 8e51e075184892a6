#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <zero/distributed/backend.hpp>
#include <zero/distributed/communicator.hpp>

namespace zero::testing {

/// Another backend, of which what derives from this replaces a part.
class ForwardingBackend : public dist::Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<dist::Backend> inner) : inner_(std::move(inner)) {}
  WorkPtr start(const dist::Call& call, at::Tensor output, at::Tensor input) override {
    return inner_->start(call, output, input);
  }
  bool takes(at::Device device) const override { return inner_->takes(device); }
  void progress() override { inner_->progress(); }
  void synchronize() override { inner_->synchronize(); }
  std::string transport() const override { return inner_->transport(); }
  bool finds_not_finite() const override { return inner_->finds_not_finite(); }
  std::unique_ptr<dist::Backend> take_inner() { return std::move(inner_); }

 private:
  std::unique_ptr<dist::Backend> inner_;
};

/// While it lives, `communicator` is over a T, made of its own backend and `arguments`. Groups that
/// are split from it are not.
template <typename T>
class Replaced {
 public:
  template <typename... Arguments>
  explicit Replaced(dist::Communicator& communicator, Arguments&&... arguments)
      : communicator_(communicator) {
    auto inner = communicator_.replace_backend(nullptr);
    communicator_.replace_backend(
        std::make_unique<T>(std::move(inner), std::forward<Arguments>(arguments)...));
  }
  ~Replaced() {
    const auto mine = communicator_.replace_backend(nullptr);
    communicator_.replace_backend(dynamic_cast<T&>(*mine).take_inner());
  }
  Replaced(const Replaced&) = delete;
  Replaced& operator=(const Replaced&) = delete;

 private:
  dist::Communicator& communicator_;
};

/// Called on this rank before an operation is started (`waiting` false) and before its handle is
/// waited on (true).
using Hook = std::function<void(dist::Operation, dist::Purpose, bool waiting)>;

/// A function before everything that a backend does: where tests delay ranks, count calls or let a
/// rank fail. Same results, same traffic.
class HookedBackend final : public ForwardingBackend {
 public:
  HookedBackend(std::unique_ptr<dist::Backend> inner, Hook hook)
      : ForwardingBackend(std::move(inner)), hook_(std::move(hook)) {}

  WorkPtr start(const dist::Call& call, at::Tensor output, at::Tensor input) override {
    hook_(call.operation, call.purpose, /*waiting=*/false);
    return std::make_unique<HookedWork>(hook_, call, ForwardingBackend::start(call, output, input));
  }

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

  Hook hook_;
};

using Hooked = Replaced<HookedBackend>;

}  // namespace zero::testing
