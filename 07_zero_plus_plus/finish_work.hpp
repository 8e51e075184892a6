#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <zero/distributed/work.hpp>

namespace zero {

/// A handle for `work` that also processes its output: the first wait_output() or wait() calls
/// `finish` before it returns; later ones do not. `finish` and what it holds live until `work` is
/// complete.
inline dist::Work finish_with(dist::Work work, std::function<void()> finish) {
  class FinishedWork final : public dist::Work::Pending {
   public:
    FinishedWork(dist::Work work, std::function<void()> finish)
        : finish_(std::move(finish)), work_(std::move(work)) {}

    void wait() override {
      work_.wait();
      finish_once();
    }
    bool wait_output() override {
      work_.wait_output();
      finish_once();
      return work_.active();
    }

   private:
    void finish_once() {
      if (!std::exchange(finished_, true)) finish_();
    }

    std::function<void()> finish_;
    bool finished_ = false;
    dist::Work work_;  // last: destroyed before `finish_`
  };
  return dist::Work(std::make_unique<FinishedWork>(std::move(work), std::move(finish)));
}

}  // namespace zero
