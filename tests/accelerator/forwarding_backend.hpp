#pragma once

#include <memory>
#include <string>
#include <utility>

#include <zero/distributed/backend.hpp>

namespace zero::dist::testing {

/// Another backend, of which what derives from this replaces a part.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  WorkPtr start(const Call& call, at::Tensor output, at::Tensor input) override {
    return inner_->start(call, output, input);
  }
  void progress() override { inner_->progress(); }
  void synchronize() override { inner_->synchronize(); }
  std::string transport() const override { return inner_->transport(); }
  bool finds_not_finite() const override { return inner_->finds_not_finite(); }

  std::unique_ptr<Backend> take_inner() { return std::move(inner_); }

 private:
  std::unique_ptr<Backend> inner_;
};

/// While it lives, `communicator` is over a T, made of its own backend and `arguments`.
template <typename T>
class Replaced {
 public:
  template <typename... Arguments>
  explicit Replaced(Communicator& communicator, Arguments&&... arguments)
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
  Communicator& communicator_;
};

}  // namespace zero::dist::testing
