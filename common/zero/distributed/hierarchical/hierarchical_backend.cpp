#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <system_error>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/hierarchical/hierarchical_backend.hpp>
#include <zero/distributed/hierarchical/host_chain.hpp>
#include <zero/distributed/hierarchical/host_gather.hpp>
#include <zero/memory/charge.hpp>

namespace zero::dist {

// Ends what tasks wait for, and what other ranks wait for from this one.
void HierarchicalBackend::give_up() {
  for (Line& line : lines_) line.links.inside.host_transport().stop();
  lines_.front().links.messages.close();
}

auto HierarchicalBackend::or_give_up(const auto& steps) {
  try {
    return steps();
  } catch (...) {
    give_up();
    throw;
  }
}

// After give_up(), so that both lines end. One may have failed only because the other did.
std::string HierarchicalBackend::with_cause(std::string error) const {
  for (const Line& line : lines_) {
    try {
      if (line.last.valid()) line.last.get();
    } catch (const std::exception& other) {
      if (message_of(other) != error) error += "; " + message_of(other);
    }
  }
  return error;
}

HierarchicalBackend::HierarchicalBackend(const Place& place, HostRoutes routes,
                                         std::unique_ptr<Backend> direct, const GlooLinks& messages,
                                         std::array<Connection, 2> inside)
    : direct_(std::move(direct)),
      inside_(std::move(inside)),
      lines_{
          Line{{routes, place.rank, dynamic_cast<HostBackend&>(*inside_[0].cpu), messages}, {}},
          Line{{routes, place.rank, dynamic_cast<HostBackend&>(*inside_[1].cpu), messages}, {}}} {}

HierarchicalBackend::~HierarchicalBackend() {
  for (const auto& [links, last] : lines_) {
    if (!last.valid()) continue;
    if (last.wait_for(std::chrono::seconds(0)) != std::future_status::ready) give_up();
    last.wait();
  }
}

Backend::WorkPtr HierarchicalBackend::start(const Call& call, at::Tensor output, at::Tensor input) {
  const bool adds = adds_up(call.operation);
  Line& line = lines_[adds ? 1 : 0];
  if (!line.links.routes.take(call, input)) return direct_->start(call, output, input);
  return or_give_up([&] {
    if (adds) {
      return run_in_order(call, line, std::make_shared<HostChain>(line.links, call, output, input));
    }
    return run_in_order(call, line, std::make_shared<HostGather>(line.links, call, output, input));
  });
}

Backend::WorkPtr HierarchicalBackend::run_in_order(const Call& call, Line& line,
                                                   std::shared_ptr<HostTask> task) {
  auto run = [this, task, before = line.last]() mutable {
    // Before wait() returns: what the task holds is the caller's alone again.
    const auto end = c10::make_scope_exit([&task] { task.reset(); });
    if (before.valid()) std::exchange(before, {}).get();  // its error is that of all after it
    const at::NoGradGuard no_grad;
    const memory::Charge charge(memory::Category::kCommunication);
    or_give_up([&] { task->run(); });
  };
  try {
    line.last = std::async(std::launch::async, std::move(run)).share();
  } catch (const std::system_error& error) {
    throw Error(fmt::format("{}: there is no thread for it ({})", call.text(), error.what()));
  }
  return when_waited_for([this, call, task = std::move(task), running = line.last] {
    try {
      running.get();
      or_give_up([&] { task->finish(); });
    } catch (const Error& error) {
      throw Error(with_cause(error.what()));
    } catch (const std::exception& error) {
      throw Error(with_cause(fmt::format("{}: {}", call.text(), message_of(error))));
    }
  });
}

}  // namespace zero::dist
