#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/device/device_backend.hpp>
#include <zero/distributed/reduce_by_exchange.hpp>

namespace zero::dist {
namespace {

c10::Stream new_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

}  // namespace

DeviceBackend::DeviceBackend(const Place& place, DeviceTransport transport)
    : rank_(place.rank),
      size_(place.size),
      native_(place.options.order == ReductionOrder::kNative),
      timeout_(place.options.timeout),
      store_(place.store),
      transport_(std::move(transport)),
      gradients_(new_stream(transport_.device)),
      others_(new_stream(transport_.device)) {
  // The group takes the device of the tensors; allocations without an index follow the current one.
  c10::impl::VirtualGuardImpl(transport_.device.type()).setDevice(transport_.device);
  if (size_ > 1) group_ = transport_.make_group(store_->store(), rank_, size_, timeout_);
}

DeviceBackend::~DeviceBackend() {
  if (!group_) return;
  try {
    if (failed_ || std::uncaught_exceptions() > 0) {
      group_->abort();
    } else {
      group_->shutdown();
    }
  } catch (const std::exception& error) {
    log_error(fmt::format("rank {}: the connections of {} could not be closed: {}", rank_,
                          transport_.name, first_line(error.what())));
  }
}

Backend::WorkPtr DeviceBackend::start(const Call& call, std::vector<at::Tensor> buffers,
                                      const GroupOperation& operation,
                                      const std::function<void()>& after) {
  return fly(call, std::move(buffers), [&](Flight& flight) {
    launch(flight, operation);
    if (after) after();
  });
}

Backend::WorkPtr DeviceBackend::reduce_in_order(const Call& call, const Pieces& pieces) {
  return fly(call, {pieces.input, pieces.output}, [&](Flight& flight) {
    const Exchange exchange = [&](std::vector<at::Tensor> incoming,
                                  std::vector<at::Tensor> outgoing) {
      launch(flight, [&](c10d::Backend& group) { return group.alltoall(incoming, outgoing); });
    };
    std::vector<at::Tensor> all;
    for (int r = 0; r < size_; ++r) all.push_back(pieces.of(r));
    reduce_by_exchange(all, pieces.output, rank_, call.divisor, pieces.gather, exchange);
  });
}

Backend::WorkPtr DeviceBackend::broadcast(const Call& call, at::Tensor tensor) {
  c10d::BroadcastOptions options;
  options.rootRank = call.root;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return start(call, tensors,
               [&](c10d::Backend& group) { return group.broadcast(tensors, options); });
}

Backend::WorkPtr DeviceBackend::reduce(const Call& call, at::Tensor tensor) {
  if (!native_) return reduce_in_order(call, Pieces(call, rank_, size_, tensor));
  c10d::ReduceOptions options;
  options.rootRank = call.root;
  std::vector<at::Tensor> tensors{tensor};
  return start(
      call, tensors, [&](c10d::Backend& group) { return group.reduce(tensors, options); },
      [tensor, by = rank_ == call.root ? call.divisor : 1] { divide(tensor, by); });
}

Backend::WorkPtr DeviceBackend::all_reduce(const Call& call, at::Tensor tensor) {
  if (!native_) return reduce_in_order(call, Pieces(call, rank_, size_, tensor));
  std::vector<at::Tensor> tensors{tensor};
  return start(
      call, tensors, [&](c10d::Backend& group) { return group.allreduce(tensors); },
      [tensor, by = call.divisor] { divide(tensor, by); });
}

Backend::WorkPtr DeviceBackend::reduce_scatter(const Call& call, at::Tensor output,
                                               at::Tensor input) {
  if (!native_) return reduce_in_order(call, Pieces(call, rank_, size_, input, output));
  at::Tensor flat_output = output.flatten();
  at::Tensor flat_input = input.flatten();
  return start(
      call, {flat_output, flat_input},
      [&](c10d::Backend& group) { return group._reduce_scatter_base(flat_output, flat_input); },
      [flat_output, by = call.divisor] { divide(flat_output, by); });
}

Backend::WorkPtr DeviceBackend::all_gather(const Call& call, at::Tensor output, at::Tensor input) {
  at::Tensor flat_output = output.flatten();
  at::Tensor flat_input = input.flatten();
  return start(call, {flat_output, flat_input}, [&](c10d::Backend& group) {
    return group._allgather_base(flat_output, flat_input);
  });
}

Backend::WorkPtr DeviceBackend::all_to_all(const Call& call, at::Tensor output, at::Tensor input) {
  at::Tensor flat_output = output.flatten();
  at::Tensor flat_input = input.flatten();
  std::vector<std::int64_t> equal_pieces;
  return start(call, {flat_output, flat_input}, [&](c10d::Backend& group) {
    return group.alltoall_base(flat_output, flat_input, equal_pieces, equal_pieces);
  });
}

Backend::WorkPtr DeviceBackend::message(const Call& call, at::Tensor tensor) {
  if (tensor.numel() == 0) return nullptr;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return start(call, tensors, [&](c10d::Backend& group) {
    return call.operation == Operation::kSend ? group.send(tensors, call.root, /*tag=*/0)
                                              : group.recv(tensors, call.root, /*tag=*/0);
  });
}

namespace {

constexpr auto kLook = std::chrono::microseconds(50);

}  // namespace

class DeviceBackend::FlightWork final : public Work::Pending {
 public:
  FlightWork(DeviceBackend& backend, std::shared_ptr<Flight> flight)
      : backend_(backend), flight_(std::move(flight)) {}

  void wait() override {
    backend_.check(*flight_);
    flight_->done.block(backend_.current_stream());
    flight_->waited_for = true;
    flight_->buffers.clear();
  }

 private:
  DeviceBackend& backend_;
  std::shared_ptr<Flight> flight_;
};

void DeviceBackend::fail(const Flight& flight, const std::string& cause) {
  failed_ = true;
  group_->abort();
  throw Error(fmt::format(
      "{}: not complete within {} s, or a rank is gone; another rank ended, is stopped, "
      "or is in another collective ({})",
      flight.call.text(), std::chrono::duration<double>(timeout_).count(), cause));
}

void DeviceBackend::check(const Flight& flight) {
  for (const C10dWork& work : flight.works) {
    work->isCompleted();  // checks for errors, too
    if (!work->exception()) continue;
    try {
      std::rethrow_exception(work->exception());
    } catch (const std::exception& error) {
      fail(flight, first_line(error.what()));
    }
  }
}

c10::Stream DeviceBackend::current_stream() const {
  return c10::impl::VirtualGuardImpl(transport_.device.type()).getStream(transport_.device);
}

void DeviceBackend::forget_completed() {
  // Checked first: an operation that was ended by an error is complete, too.
  for (const auto& flight : flights_) check(*flight);
  while (!flights_.empty() && flights_.front()->done.query()) flights_.pop_front();
}

void DeviceBackend::synchronize() {
  for (const auto& flight : flights_) {
    if (!flight->waited_for) continue;
    const auto limit = std::chrono::steady_clock::now() + timeout_;
    auto next_look = std::chrono::steady_clock::now() + CallLog::kPatience;
    while (!flight->done.query()) {
      check(*flight);
      if (std::chrono::steady_clock::now() > limit) fail(*flight, "time limit");
      if (std::chrono::steady_clock::now() > next_look) {
        const std::string why = store_->call_log().disagreement();
        if (!why.empty()) fail(*flight, why);
        next_look = std::chrono::steady_clock::now() + CallLog::kPatience;
      }
      std::this_thread::sleep_for(kLook);
    }
  }
  forget_completed();
}

Backend::WorkPtr DeviceBackend::fly(const Call& call, std::vector<at::Tensor> buffers,
                                    const std::function<void(Flight&)>& body) {
  forget_completed();
  const at::DeviceType type = transport_.device.type();
  const auto flight =
      std::make_shared<Flight>(Flight{call, std::move(buffers), c10::Event(type), {}});
  const c10::Stream& side = call.purpose == Purpose::kGradient ? gradients_ : others_;
  c10::Event before(type);
  before.record(current_stream());
  {
    const c10::StreamGuard guard(side);
    before.block(side);
    body(*flight);
    flight->done.record(side);
  }
  flights_.push_back(flight);
  return std::make_unique<FlightWork>(*this, flight);
}

void DeviceBackend::launch(Flight& flight, const GroupOperation& operation) {
  try {
    const C10dWork work = operation(*group_);
    work->wait();  // the stream, not the host
    flight.works.push_back(work);
  } catch (const std::exception& error) {
    failed_ = true;
    throw Error(fmt::format("{}: {} could not start it: {}", flight.call.text(), transport_.name,
                            first_line(error.what())));
  }
}

}  // namespace zero::dist
