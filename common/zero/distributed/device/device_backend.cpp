#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/device/device_backend.hpp>
#include <zero/distributed/sum_by_operations.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::dist {
namespace {

c10::Stream new_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

}  // namespace

void verify_own_devices(const std::vector<std::string>& identities) {
  std::map<std::string, std::size_t> users;
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    const auto [other, first] = users.emplace(identities[rank], rank);
    if (first) continue;
    throw Error(
        fmt::format("ranks {} and {} would both use {}: give each rank a GPU of its own (start "
                    "as many ranks on a machine as it has GPUs), or let ranks share one: NCCL 2.30 "
                    "with NCCL_MULTI_RANK_GPU_ENABLE=1",
                    other->second, rank, identities[rank]));
  }
}

DeviceBackend::DeviceBackend(const Place& place, DeviceTransport transport)
    : place_(place), transport_(std::move(transport)) {
  // The group takes the device of the tensors; allocations without an index follow the current one.
  c10::impl::VirtualGuardImpl(transport_.device.type()).setDevice(transport_.device);
}

DeviceGroup DeviceBackend::new_group(const std::string& name) const {
  StorePtr store = place_.log->store();
  if (store == nullptr) store = c10::make_intrusive<c10d::HashStore>();  // of one rank
  return transport_.make_group(c10::make_intrusive<c10d::PrefixStore>(name, store), place_.rank,
                               place_.size, place_.options.timeout);
}

DeviceBackend::~DeviceBackend() {
  if (std::uncaught_exceptions() > 0) abort("an exception");
  if (!aborted_.empty()) return;
  try {
    for (const auto& [name, group] : groups_) group->shutdown();
  } catch (const std::exception& error) {
    log_error(fmt::format("rank {}: the connections of {} could not be closed: {}",
                          place_.log->world_rank(place_.rank), transport_.name,
                          first_line(error.what())));
  }
}

// Every rank gets all contributions, and adds up what it keeps.
Backend::WorkPtr DeviceBackend::reduce_in_order(const Call& call, const at::Tensor& output,
                                                const at::Tensor& input) {
  return fly(call, {output, input}, [this, call, to = output.flatten(), from = input.flatten()] {
    const memory::Charge charge(memory::Category::kCommunication);
    at::Tensor all = at::empty({place_.size * from.numel()}, from.options());
    at::Tensor own = from;
    launch(call, [&](c10d::Backend& group) { return group._allgather_base(all, own); });
    if (call.operation == Operation::kReduce && place_.rank != call.root) return;
    const bool scatters = call.operation == Operation::kReduceScatter;
    std::vector<at::Tensor> contributions;
    for (int r = 0; r < place_.size; ++r) {
      const std::int64_t begin = r * from.numel() + (scatters ? place_.rank * to.numel() : 0);
      contributions.push_back(all.narrow(0, begin, to.numel()));
    }
    sum_by_operations(to, contributions, call.divisor);
  });
}

Backend::WorkPtr DeviceBackend::start(const Call& call, at::Tensor output, at::Tensor input) {
  if (input.numel() == 0) return nullptr;  // a message
  if (adds_up(call.operation) && place_.options.order == ReductionOrder::kRankOrdered) {
    return reduce_in_order(call, output, input);
  }
  at::Tensor to = output.flatten(), from = input.flatten();
  std::vector<at::Tensor> in_place{to};
  std::vector<std::int64_t> equal_pieces;
  const auto operation = [&](c10d::Backend& group) {
    switch (call.operation) {
      case Operation::kBroadcast:
        return group.broadcast(in_place, {.rootRank = call.root});
      case Operation::kReduce:
        return group.reduce(in_place, {.rootRank = call.root});
      case Operation::kAllReduce:
        return group.allreduce(in_place);
      case Operation::kReduceScatter:
        return group._reduce_scatter_base(to, from);
      case Operation::kAllToAll:
        return group.alltoall_base(to, from, equal_pieces, equal_pieces);
      case Operation::kSend:
        return group.send(in_place, call.root, /*tag=*/0);
      case Operation::kRecv:
        return group.recv(in_place, call.root, /*tag=*/0);
      default:
        return group._allgather_base(to, from);
    }
  };
  return fly(call, {to, from}, [&] {
    launch(call, operation);
    const bool has_sum = call.operation != Operation::kReduce || place_.rank == call.root;
    if (adds_up(call.operation) && has_sum) divide(to, call.divisor);
  });
}

void DeviceBackend::abort(const std::string& cause) noexcept {
  if (!aborted_.empty()) return;
  aborted_ = cause;
  for (const auto& [name, group] : groups_) {
    try {
      group->abort();
    } catch (const std::exception& error) {
      log_error(fmt::format("rank {}: the operations of {} could not be ended: {}",
                            place_.log->world_rank(place_.rank), transport_.name,
                            first_line(error.what())));
    }
  }
}

void DeviceBackend::fail(const Flight& flight, const std::string& cause) {
  abort(cause);
  throw Error(fmt::format(
      "{}: not complete within {} s, or a rank is gone; another rank ended, is stopped, "
      "or is in another collective ({})",
      flight.call.text(), std::chrono::duration<double>(place_.options.timeout).count(), cause));
}

std::string DeviceBackend::error_of_groups() const {
  if (!aborted_.empty()) return aborted_;
  for (const auto& [name, group] : groups_) {
    const c10d::ErrorType error = group->getError();
    if (error == c10d::ErrorType::TIMEOUT) return "time limit";
    if (error != c10d::ErrorType::SUCCESS) return "the connection is lost";
  }
  return "";
}

DeviceBackend::Lane DeviceBackend::lane_of(const Call& call) const {
  const bool sends = call.operation == Operation::kSend;
  if (sends || call.operation == Operation::kRecv) {
    return {sends == (call.root < place_.rank) ? "down" : "others", call.root};
  }
  return {call.purpose == Purpose::kGradient ? "gradients" : "others", -1};
}

c10d::Backend& DeviceBackend::group_of(const Call& call) {
  const std::string_view name = lane_of(call).first;
  DeviceGroup& group = groups_[name];
  if (group == nullptr) group = new_group(std::string(name));
  return *group;
}

const c10::Stream& DeviceBackend::stream_of(const Call& call) {
  const Lane lane = lane_of(call);
  const auto found = streams_.find(lane);
  if (found != streams_.end()) return found->second;
  return streams_.emplace(lane, new_stream(transport_.device)).first->second;
}

c10::Stream DeviceBackend::current_stream() const {
  return c10::impl::VirtualGuardImpl(transport_.device.type()).getStream(transport_.device);
}

// An operation that an error ended looks complete: the groups are asked after the events.
void DeviceBackend::forget_completed() {
  const auto incomplete =
      std::ranges::find_if(flights_, [](const auto& flight) { return !flight->done.query(); });
  if (flights_.empty()) return;
  if (const std::string error = error_of_groups(); !error.empty()) fail(*flights_.front(), error);
  flights_.erase(flights_.begin(), incomplete);
}

void DeviceBackend::synchronize() {
  const std::deque<std::shared_ptr<Flight>> all = flights_;  // meanwhile some are forgotten
  for (const auto& flight : all) {
    if (flight->waited_for) wait_for(*flight);
  }
}

void DeviceBackend::wait_for(const Flight& flight) {
  constexpr auto kLook = std::chrono::microseconds(50);
  const auto limit = std::chrono::steady_clock::now() + place_.options.timeout;
  auto next_look = std::chrono::steady_clock::now() + CallLog::kPatience;
  for (;;) {
    const bool done = flight.done.query();
    forget_completed();
    if (done) return;
    if (std::chrono::steady_clock::now() > limit) fail(flight, "time limit");
    if (std::chrono::steady_clock::now() > next_look) {
      const std::string why = place_.log->disagreement();
      if (!why.empty()) fail(flight, why);
      next_look = std::chrono::steady_clock::now() + CallLog::kPatience;
    }
    std::this_thread::sleep_for(kLook);  // to wait for an event would have no time limit
  }
}

Backend::WorkPtr DeviceBackend::fly(const Call& call, std::vector<at::Tensor> buffers,
                                    const std::function<void()>& body) {
  forget_completed();
  const at::DeviceType type = transport_.device.type();
  const auto flight = std::make_shared<Flight>(Flight{call, std::move(buffers), c10::Event(type)});
  flights_.push_back(flight);  // first: if the body throws, its buffers outlive what it launched
  const c10::Stream& side = stream_of(call);
  c10::Event before(type);
  before.record(current_stream());
  const c10::StreamGuard guard(side);
  before.block(side);
  try {
    body();
  } catch (...) {
    flight->done.record(side);
    throw;
  }
  flight->done.record(side);
  return when_waited_for([this, flight] {
    forget_completed();
    flight->done.block(current_stream());
    flight->waited_for = true;
    flight->buffers.clear();
  });
}

void DeviceBackend::launch(const Call& call, const GroupOperation& operation) {
  try {
    operation(group_of(call))->wait();  // the stream, not the host
  } catch (const std::exception& error) {
    const std::string known = error_of_groups();
    abort(known.empty() ? first_line(error.what()) : known);
    throw Error(
        fmt::format("{}: {} could not start it: {}", call.text(), transport_.name, aborted_));
  }
}

}  // namespace zero::dist
