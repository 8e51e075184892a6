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
#include <zero/distributed/grouped_reduction.hpp>
#include <zero/distributed/nccl/nccl_communicator.hpp>

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

NcclCommunicator::NcclCommunicator(StoreExchange store, GroupPtr group, int device,
                                   const ConnectOptions& options)
    : GlooCommunicator(store, std::move(group), options,
                       fmt::format("NCCL on GPU {}, CPU tensors over TCP", device)),
      device_(device),
      gradients_(new_stream(device)),
      others_(new_stream(device)) {
  // NCCL takes the GPU of the tensors; allocations without an index follow the current one.
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  if (size() > 1) nccl_ = make_nccl_group(store.store(), rank(), size(), options.timeout);
}

NcclCommunicator::~NcclCommunicator() {
  if (!nccl_) return;
  try {
    if (failed_ || std::uncaught_exceptions() > 0) {
      nccl_->abort();
    } else {
      nccl_->shutdown();
    }
  } catch (const std::exception& error) {
    log_error(fmt::format("rank {}: NCCL's connections could not be closed: {}", rank(),
                          first_line(error.what())));
  }
}

std::unique_ptr<Communicator> NcclCommunicator::make_group(StoreExchange store, GroupPtr group) {
  return std::make_unique<NcclCommunicator>(std::move(store), std::move(group), device_, options());
}

void NcclCommunicator::check_device(const at::Tensor& tensor) const {
  if (tensor.is_cpu() || (tensor.is_cuda() && tensor.device().index() == device_)) return;
  throw Error(
      fmt::format("this rank works on GPU {}; a tensor is on {}", device_, tensor.device().str()));
}

bool NcclCommunicator::on_cpu(const at::Tensor& output, const at::Tensor& input) const {
  if (output.device() == input.device()) return input.is_cpu();
  throw Error(fmt::format("this rank works on GPU {}; a tensor is on {}", device_,
                          (input.is_cpu() ? input : output).device().str()));
}

Communicator::WorkPtr NcclCommunicator::start(const Call& call, std::vector<at::Tensor> buffers,
                                              const NcclOperation& operation,
                                              const std::function<void()>& after) {
  return fly(call, std::move(buffers), [&](Flight& flight) {
    launch(flight, operation);
    if (after) after();
  });
}

Communicator::WorkPtr NcclCommunicator::reduce_pieces(const Call& call, at::Tensor input,
                                                      std::vector<std::int64_t> bounds,
                                                      at::Tensor output, int divisor, bool gather) {
  if (on_cpu(output, input)) {
    return GlooCommunicator::reduce_pieces(call, input, std::move(bounds), output, divisor, gather);
  }
  return fly(call, {input, output}, [&](Flight& flight) {
    const Exchange exchange = [&](std::vector<at::Tensor> incoming,
                                  std::vector<at::Tensor> outgoing) {
      launch(flight, [&](c10d::Backend& nccl) { return nccl.alltoall(incoming, outgoing); });
    };
    grouped_reduce(cut(input, bounds), output, rank(), divisor, gather, exchange);
  });
}

// CPU tensors go to the base class, and reductions in rank order, which comes back to
// reduce_pieces().

Communicator::WorkPtr NcclCommunicator::do_broadcast(const Call& call, at::Tensor tensor,
                                                     int root) {
  if (tensor.is_cpu()) return GlooCommunicator::do_broadcast(call, std::move(tensor), root);
  c10d::BroadcastOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return start(call, tensors,
               [&](c10d::Backend& nccl) { return nccl.broadcast(tensors, options); });
}

Communicator::WorkPtr NcclCommunicator::do_reduce(const Call& call, at::Tensor tensor, int root,
                                                  int divisor) {
  if (tensor.is_cpu() || !native()) {
    return GlooCommunicator::do_reduce(call, std::move(tensor), root, divisor);
  }
  c10d::ReduceOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> tensors{tensor};
  return start(
      call, tensors, [&](c10d::Backend& nccl) { return nccl.reduce(tensors, options); },
      [tensor, by = rank() == root ? divisor : 1] { divide(tensor, by); });
}

Communicator::WorkPtr NcclCommunicator::do_all_reduce(const Call& call, at::Tensor tensor,
                                                      int divisor) {
  if (tensor.is_cpu() || !native()) {
    return GlooCommunicator::do_all_reduce(call, std::move(tensor), divisor);
  }
  std::vector<at::Tensor> tensors{tensor};
  return start(
      call, tensors, [&](c10d::Backend& nccl) { return nccl.allreduce(tensors); },
      [tensor, by = divisor] { divide(tensor, by); });
}

Communicator::WorkPtr NcclCommunicator::do_reduce_scatter(const Call& call, at::Tensor output,
                                                          at::Tensor input, int divisor) {
  if (on_cpu(output, input) || !native()) {
    return GlooCommunicator::do_reduce_scatter(call, std::move(output), std::move(input), divisor);
  }
  at::Tensor flat_output = output.flatten();
  at::Tensor flat_input = input.flatten();
  return start(
      call, {flat_output, flat_input},
      [&](c10d::Backend& nccl) { return nccl._reduce_scatter_base(flat_output, flat_input); },
      [flat_output, by = divisor] { divide(flat_output, by); });
}

Communicator::WorkPtr NcclCommunicator::do_all_gather(const Call& call, at::Tensor output,
                                                      at::Tensor input) {
  if (on_cpu(output, input)) {
    return GlooCommunicator::do_all_gather(call, std::move(output), std::move(input));
  }
  at::Tensor flat_output = output.flatten();
  at::Tensor flat_input = input.flatten();
  return start(call, {flat_output, flat_input},
               [&](c10d::Backend& nccl) { return nccl._allgather_base(flat_output, flat_input); });
}

Communicator::WorkPtr NcclCommunicator::do_all_to_all(const Call& call, at::Tensor output,
                                                      at::Tensor input) {
  if (on_cpu(output, input)) {
    return GlooCommunicator::do_all_to_all(call, std::move(output), std::move(input));
  }
  at::Tensor flat_output = output.flatten();
  at::Tensor flat_input = input.flatten();
  std::vector<std::int64_t> equal_pieces;
  return start(call, {flat_output, flat_input}, [&](c10d::Backend& nccl) {
    return nccl.alltoall_base(flat_output, flat_input, equal_pieces, equal_pieces);
  });
}

Communicator::WorkPtr NcclCommunicator::do_message(const Call& call, at::Tensor tensor, int peer) {
  if (tensor.is_cpu()) return GlooCommunicator::do_message(call, std::move(tensor), peer);
  if (tensor.numel() == 0) return nullptr;
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return start(call, tensors, [&](c10d::Backend& nccl) {
    return call.operation == Operation::kSend ? nccl.send(tensors, peer, /*tag=*/0)
                                              : nccl.recv(tensors, peer, /*tag=*/0);
  });
}

namespace {

constexpr auto kLook = std::chrono::microseconds(50);

}  // namespace

class NcclCommunicator::FlightWork final : public Work::Backend {
 public:
  FlightWork(NcclCommunicator& communicator, std::shared_ptr<Flight> flight)
      : communicator_(communicator), flight_(std::move(flight)) {}

  void wait() override {
    communicator_.check(*flight_);
    flight_->done.block(communicator_.current_stream());
    flight_->waited_for = true;
    flight_->buffers.clear();
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
      flight.call.text(), std::chrono::duration<double>(options().timeout).count(), cause));
}

void NcclCommunicator::check(const Flight& flight) {
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

c10::Stream NcclCommunicator::current_stream() const {
  const c10::impl::VirtualGuardImpl gpus(c10::DeviceType::CUDA);
  return gpus.getStream({c10::kCUDA, static_cast<c10::DeviceIndex>(device_)});
}

void NcclCommunicator::forget_completed() {
  // Checked first: an operation that was ended by an error is complete, too.
  for (const auto& flight : flights_) check(*flight);
  while (!flights_.empty() && flights_.front()->done.query()) flights_.pop_front();
}

void NcclCommunicator::do_synchronize() {
  for (const auto& flight : flights_) {
    if (!flight->waited_for) continue;
    const auto limit = std::chrono::steady_clock::now() + options().timeout;
    while (!flight->done.query()) {
      check(*flight);
      if (std::chrono::steady_clock::now() > limit) fail(*flight, "time limit");
      std::this_thread::sleep_for(kLook);
    }
  }
  forget_completed();
}

Communicator::WorkPtr NcclCommunicator::fly(const Call& call, std::vector<at::Tensor> buffers,
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

void NcclCommunicator::launch(Flight& flight, const NcclOperation& operation) {
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
