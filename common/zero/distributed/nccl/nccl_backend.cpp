#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/nccl/nccl_backend.hpp>
#include <zero/distributed/reduce_by_exchange.hpp>

namespace zero::dist {
namespace {

NcclGroup make_nccl_group(const StorePtr& store, int rank, int size,
                          std::chrono::milliseconds timeout) {
  // When a peer is lost or the time limit has passed, c10d's watchdog thread ends NCCL's kernels,
  // so that no stream or host waits forever. It must not end the process: an exception names the
  // operation.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>("nccl", store), rank, size, options);
}

// Through LibTorch's device interface, so that CUDA's runtime need not be linked.
c10::Stream new_stream(int device) {
  const c10::impl::VirtualGuardImpl gpus(c10::DeviceType::CUDA);
  return gpus.getStreamFromGlobalPool({c10::kCUDA, static_cast<c10::DeviceIndex>(device)},
                                      /*isHighPriority=*/true);
}

}  // namespace

NcclBackend::NcclBackend(const Place& place, int device)
    : rank_(place.rank),
      size_(place.size),
      native_(place.options.order == ReductionOrder::kNative),
      timeout_(place.options.timeout),
      store_(place.store),
      device_(device),
      gradients_(new_stream(device)),
      others_(new_stream(device)) {
  // NCCL takes the GPU of the tensors; allocations without an index follow the current one.
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  if (size_ > 1) nccl_ = make_nccl_group(store_->store(), rank_, size_, timeout_);
}

NcclBackend::~NcclBackend() {
  if (!nccl_) return;
  try {
    if (failed_ || std::uncaught_exceptions() > 0) {
      nccl_->abort();
    } else {
      nccl_->shutdown();
    }
  } catch (const std::exception& error) {
    log_error(fmt::format("rank {}: NCCL's connections could not be closed: {}", rank_,
                          first_line(error.what())));
  }
}

Backend::WorkPtr NcclBackend::start(const Call& call, std::vector<at::Tensor> buffers,
                                    const NcclOperation& operation,
                                    const std::function<void()>& after) {
  return fly(call, std::move(buffers), [&](Flight& flight) {
    launch(flight, operation);
    if (after) after();
  });
}

Backend::WorkPtr NcclBackend::reduce_in_order(const Call& call, const Pieces& pieces) {
  return fly(call, {pieces.input, pieces.output}, [&](Flight& flight) {
    const Exchange exchange = [&](std::vector<at::Tensor> incoming,
                                  std::vector<at::Tensor> outgoing) {
      launch(flight, [&](c10d::Backend& nccl) { return nccl.alltoall(incoming, outgoing); });
    };
    std::vector<at::Tensor> all;
    for (int r = 0; r < size_; ++r) all.push_back(pieces.of(r));
    reduce_by_exchange(all, pieces.output, rank_, call.divisor, pieces.gather, exchange);
  });
}

Backend::WorkPtr NcclBackend::broadcast(const Call& call, at::Tensor tensor) {
  c10d::BroadcastOptions options;
  options.rootRank = call.root;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return start(call, tensors,
               [&](c10d::Backend& nccl) { return nccl.broadcast(tensors, options); });
}

Backend::WorkPtr NcclBackend::reduce(const Call& call, at::Tensor tensor) {
  if (!native_) return reduce_in_order(call, Pieces(call, rank_, size_, tensor));
  c10d::ReduceOptions options;
  options.rootRank = call.root;
  std::vector<at::Tensor> tensors{tensor};
  return start(
      call, tensors, [&](c10d::Backend& nccl) { return nccl.reduce(tensors, options); },
      [tensor, by = rank_ == call.root ? call.divisor : 1] { divide(tensor, by); });
}

Backend::WorkPtr NcclBackend::all_reduce(const Call& call, at::Tensor tensor) {
  if (!native_) return reduce_in_order(call, Pieces(call, rank_, size_, tensor));
  std::vector<at::Tensor> tensors{tensor};
  return start(
      call, tensors, [&](c10d::Backend& nccl) { return nccl.allreduce(tensors); },
      [tensor, by = call.divisor] { divide(tensor, by); });
}

Backend::WorkPtr NcclBackend::reduce_scatter(const Call& call, at::Tensor output,
                                             at::Tensor input) {
  if (!native_) return reduce_in_order(call, Pieces(call, rank_, size_, input, output));
  at::Tensor flat_output = output.flatten();
  at::Tensor flat_input = input.flatten();
  return start(
      call, {flat_output, flat_input},
      [&](c10d::Backend& nccl) { return nccl._reduce_scatter_base(flat_output, flat_input); },
      [flat_output, by = call.divisor] { divide(flat_output, by); });
}

Backend::WorkPtr NcclBackend::all_gather(const Call& call, at::Tensor output, at::Tensor input) {
  at::Tensor flat_output = output.flatten();
  at::Tensor flat_input = input.flatten();
  return start(call, {flat_output, flat_input},
               [&](c10d::Backend& nccl) { return nccl._allgather_base(flat_output, flat_input); });
}

Backend::WorkPtr NcclBackend::all_to_all(const Call& call, at::Tensor output, at::Tensor input) {
  at::Tensor flat_output = output.flatten();
  at::Tensor flat_input = input.flatten();
  std::vector<std::int64_t> equal_pieces;
  return start(call, {flat_output, flat_input}, [&](c10d::Backend& nccl) {
    return nccl.alltoall_base(flat_output, flat_input, equal_pieces, equal_pieces);
  });
}

Backend::WorkPtr NcclBackend::message(const Call& call, at::Tensor tensor) {
  if (tensor.numel() == 0) return nullptr;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return start(call, tensors, [&](c10d::Backend& nccl) {
    return call.operation == Operation::kSend ? nccl.send(tensors, call.root, /*tag=*/0)
                                              : nccl.recv(tensors, call.root, /*tag=*/0);
  });
}

namespace {

constexpr auto kLook = std::chrono::microseconds(50);

}  // namespace

class NcclBackend::FlightWork final : public Work::Pending {
 public:
  FlightWork(NcclBackend& backend, std::shared_ptr<Flight> flight)
      : backend_(backend), flight_(std::move(flight)) {}

  void wait() override {
    backend_.check(*flight_);
    flight_->done.block(backend_.current_stream());
    flight_->waited_for = true;
    flight_->buffers.clear();
  }

 private:
  NcclBackend& backend_;
  std::shared_ptr<Flight> flight_;
};

void NcclBackend::fail(const Flight& flight, const std::string& cause) {
  failed_ = true;
  nccl_->abort();
  throw Error(fmt::format(
      "{}: not complete within {} s, or a rank is gone; another rank ended, is stopped, "
      "or is in another collective ({})",
      flight.call.text(), std::chrono::duration<double>(timeout_).count(), cause));
}

void NcclBackend::check(const Flight& flight) {
  for (const C10dWork& work : flight.works) {
    work->isCompleted();  // checks for NCCL's errors, too
    if (!work->exception()) continue;
    try {
      std::rethrow_exception(work->exception());
    } catch (const std::exception& error) {
      fail(flight, first_line(error.what()));
    }
  }
}

c10::Stream NcclBackend::current_stream() const {
  const c10::impl::VirtualGuardImpl gpus(c10::DeviceType::CUDA);
  return gpus.getStream({c10::kCUDA, static_cast<c10::DeviceIndex>(device_)});
}

void NcclBackend::forget_completed() {
  // Checked first: an operation that was ended by an error is complete, too.
  for (const auto& flight : flights_) check(*flight);
  while (!flights_.empty() && flights_.front()->done.query()) flights_.pop_front();
}

void NcclBackend::synchronize() {
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

Backend::WorkPtr NcclBackend::fly(const Call& call, std::vector<at::Tensor> buffers,
                                  const std::function<void(Flight&)>& body) {
  forget_completed();
  auto flight = std::make_shared<Flight>();
  flight->call = call;
  flight->buffers = std::move(buffers);
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

void NcclBackend::launch(Flight& flight, const NcclOperation& operation) {
  try {
    const C10dWork work = operation(*nccl_);
    work->wait();  // the stream, not the host
    flight.works.push_back(work);
  } catch (const std::exception& error) {
    failed_ = true;
    throw Error(fmt::format("{}: NCCL could not start it: {}", flight.call.text(),
                            first_line(error.what())));
  }
}

}  // namespace zero::dist
