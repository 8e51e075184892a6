// When NCCL's collectives run: on streams of their own, ordered by events, with errors noticed by
// the host whenever it looks.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/nccl/nccl_communicator.hpp>

namespace zero::dist {
namespace {

constexpr auto kLook = std::chrono::microseconds(50);

}  // namespace

class NcclCommunicator::FlightWork final : public Pending::Work {
 public:
  FlightWork(NcclCommunicator& communicator, std::shared_ptr<Flight> flight)
      : communicator_(communicator), flight_(std::move(flight)) {}

  void wait() override {
    communicator_.check(*flight_);
    flight_->done.block(communicator_.current_stream());
    flight_->waited_for = true;
  }

 private:
  NcclCommunicator& communicator_;
  std::shared_ptr<Flight> flight_;
};

void NcclCommunicator::fail(const Flight& flight, const std::string& cause) {
  failed_ = true;
  nccl_->abort();
  throw Error(fmt::format(
      "{}: not complete within {} s, or a rank is gone; another rank ended, is stopped, "
      "or is in another collective ({})",
      flight.what, std::chrono::duration<double>(options().timeout).count(), cause));
}

void NcclCommunicator::check(const Flight& flight) {
  for (const C10dWork& work : flight.works) {
    work->isCompleted();  // looks for NCCL's errors, too
    if (!work->exception()) continue;
    try {
      std::rethrow_exception(work->exception());
    } catch (const std::exception& error) {
      fail(flight, first_line(error.what()));
    }
  }
}

c10::Stream NcclCommunicator::current_stream() const {
  const c10::impl::VirtualGuardImpl gpus(c10::DeviceType::CUDA);
  return gpus.getStream({c10::kCUDA, static_cast<c10::DeviceIndex>(device_)});
}

void NcclCommunicator::forget_completed() {
  while (!flights_.empty() && flights_.front()->done.query()) flights_.pop_front();
  for (const auto& flight : flights_) check(*flight);
}

void NcclCommunicator::settle() {
  for (const auto& flight : flights_) {
    if (!flight->waited_for) continue;
    const auto limit = std::chrono::steady_clock::now() + options().timeout;
    while (!flight->done.query()) {
      check(*flight);
      if (std::chrono::steady_clock::now() > limit) fail(*flight, "time limit");
      std::this_thread::sleep_for(kLook);
    }
    // An operation that was ended because of an error is over as well.
    check(*flight);
  }
  forget_completed();
}

Communicator::WorkPtr NcclCommunicator::fly(const Call& call,
                                            const std::function<void(Flight&)>& body) {
  forget_completed();
  auto flight = std::make_shared<Flight>();
  flight->what = describe(call);
  const c10::Stream& side = call.purpose == Purpose::kGradient ? gradients_ : others_;
  c10::Event before(c10::DeviceType::CUDA);
  before.record(current_stream());
  {
    const c10::StreamGuard guard(side);
    before.block(side);
    body(*flight);
    flight->done.record(side);
  }
  flights_.push_back(flight);
  return std::make_unique<FlightWork>(*this, std::move(flight));
}

void NcclCommunicator::launch(Flight& flight, const NcclOperation& operation) {
  try {
    const C10dWork work = operation(*nccl_);
    work->wait();  // the stream, not the host
    flight.works.push_back(work);
  } catch (const std::exception& error) {
    failed_ = true;
    throw Error(
        fmt::format("{}: NCCL could not start it: {}", flight.what, first_line(error.what())));
  }
}

}  // namespace zero::dist
