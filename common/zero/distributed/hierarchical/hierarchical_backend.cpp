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
  links_.inside.host_transport().stop();
  links_.messages.close();
}

auto HierarchicalBackend::or_give_up(const auto& steps) {
  try {
    return steps();
  } catch (...) {
    give_up();
    throw;
  }
}

HierarchicalBackend::HierarchicalBackend(const Place& place, HostRoutes routes,
                                         std::unique_ptr<Backend> direct, const GlooLinks& messages,
                                         Connection inside)
    : direct_(std::move(direct)),
      inside_(std::move(inside)),
      links_{routes, place.rank, dynamic_cast<HostBackend&>(*inside_.cpu), messages} {}

HierarchicalBackend::~HierarchicalBackend() {
  if (!last_.valid()) return;
  if (last_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) give_up();
  last_.wait();
}

Backend::WorkPtr HierarchicalBackend::start(const Call& call, at::Tensor output, at::Tensor input) {
  if (!links_.routes.take(call, input)) return direct_->start(call, output, input);
  return or_give_up([&] {
    if (adds_up(call.operation)) {
      return run_in_order(call, std::make_shared<HostChain>(links_, call, output, input));
    }
    return run_in_order(call, std::make_shared<HostGather>(links_, call, output, input));
  });
}

Backend::WorkPtr HierarchicalBackend::run_in_order(const Call& call,
                                                   std::shared_ptr<HostTask> task) {
  auto run = [this, task, before = last_]() mutable {
    // Before wait() returns: what the task holds is the caller's alone again.
    const auto end = c10::make_scope_exit([&task] { task.reset(); });
    if (before.valid()) std::exchange(before, {}).get();  // its error is that of all after it
    const at::NoGradGuard no_grad;
    const memory::Charge charge(memory::Category::kCommunication);
    or_give_up([&] { task->run(); });
  };
  try {
    last_ = std::async(std::launch::async, std::move(run)).share();
  } catch (const std::system_error& error) {
    throw Error(fmt::format("{}: there is no thread for it ({})", call.text(), error.what()));
  }
  return when_waited_for([this, call, task = std::move(task), running = last_] {
    try {
      running.get();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw Error(fmt::format("{}: {}", call.text(), message_of(error)));
    }
    or_give_up([&] { task->finish(); });
  });
}

}  // namespace zero::dist
