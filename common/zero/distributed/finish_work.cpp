#include <memory>
#include <utility>

#include <zero/distributed/finish_work.hpp>

namespace zero::dist {

namespace {

class FinishedWork final : public Work::Pending {
 public:
  FinishedWork(Work work, std::function<void()> finish)
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
  Work work_;  // last: destroyed before `finish_`
};

}  // namespace

Work finish_with(Work work, std::function<void()> finish) {
  return Work(std::make_unique<FinishedWork>(std::move(work), std::move(finish)));
}

}  // namespace zero::dist
