#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <deque>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/distributed/hierarchical/hierarchical_backend.hpp>
#include <zero/distributed/not_finite.hpp>

namespace zero::dist {

// A collective whose steps the thread takes.
class HierarchicalBackend::TaskWork final : public Work::Pending {
 public:
  // `run` is the task, `finish` what is left for the caller. Both share what they need.
  TaskWork(HierarchicalBackend& backend, const Call& call, std::function<void()> run,
           std::function<void()> finish)
      : backend_(backend), call_(call), finish_(std::move(finish)) {
    done_ = backend_.thread_.add([&backend, run = std::move(run)]() mutable {
      // Before the future is ready: what the task holds is the caller's alone again.
      const auto end = c10::make_scope_exit([&run] { run = nullptr; });
      try {
        run();
      } catch (...) {
        backend.inside_->host_transport().stop();  // so that peers need not wait to find out
        throw;
      }
    });
  }

  void wait() override {
    while (done_.wait_for(CallLog::kPatience) != std::future_status::ready) throw_if_calls_differ();
    try {
      done_.get();
    } catch (const Error&) {
      throw_if_calls_differ();  // a peer may have left because it saw that they do
      throw;
    } catch (const std::exception& error) {
      throw Error(fmt::format("{}: {}", call_.text(), message_of(error)));
    }
    finish_();
  }

 private:
  void throw_if_calls_differ() {
    const std::string why = backend_.log_.disagreement();
    if (why.empty()) return;
    backend_.stop();
    if (done_.valid()) done_.wait();  // until then the task uses the caller's tensors
    throw Error(fmt::format("{}: {}", call_.text(), why));
  }

  HierarchicalBackend& backend_;
  Call call_;
  std::function<void()> finish_;
  std::future<void> done_;
};

HierarchicalBackend::HierarchicalBackend(const Place& place, HostRoutes routes,
                                         std::unique_ptr<Backend> direct, const GlooLinks& messages,
                                         std::shared_ptr<StoreExchange> exchange,
                                         std::unique_ptr<HostBackend> inside)
    : direct_(std::move(direct)),
      log_(place.store->call_log()),
      exchange_(std::move(exchange)),
      inside_(std::move(inside)),
      messages_(messages),
      results_(messages),
      links_{routes,    place.rank, *inside_,
             messages_, results_,   [this](MessageSet& set) { wait_for(set); }} {
  messages_.log = &silent_log_;
}

HierarchicalBackend::~HierarchicalBackend() { stop(); }

// Ends what the thread waits for.
void HierarchicalBackend::stop() {
  inside_->host_transport().stop();
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (waited_for_ != nullptr) waited_for_->abort();
}

void HierarchicalBackend::wait_for(MessageSet& messages) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) messages.abort();
    waited_for_ = &messages;
  }
  const auto forget = [this] {
    const std::lock_guard lock(mutex_);
    waited_for_ = nullptr;
  };
  try {
    messages.wait();
  } catch (...) {
    forget();
    throw;
  }
  forget();
}

std::optional<std::int64_t> HierarchicalBackend::sent_between_hosts(const Call& call,
                                                                    const at::Tensor& t) const {
  if (!links_.routes.take(call, t)) return std::nullopt;
  return links_.routes.sent_between_hosts(call, t, links_.rank);
}

Backend::WorkPtr HierarchicalBackend::reduce_by_chain(const Call& call, const at::Tensor& input,
                                                      const at::Tensor& output) {
  const auto chain = std::make_shared<HostChain>(links_, call, input.flatten(), output.flatten());
  return std::make_unique<TaskWork>(
      *this, call, [chain] { chain->run(); },
      [chain, call] {
        chain->results().wait();
        for (const int rank : chain->not_finite()) call.not_finite->note(rank);
      });
}

Backend::WorkPtr HierarchicalBackend::reduce(const Call& call, at::Tensor tensor) {
  if (!links_.routes.take(call, tensor)) return direct_->reduce(call, std::move(tensor));
  return reduce_by_chain(call, tensor, tensor);
}

Backend::WorkPtr HierarchicalBackend::all_reduce(const Call& call, at::Tensor tensor) {
  if (!links_.routes.take(call, tensor)) return direct_->all_reduce(call, std::move(tensor));
  return reduce_by_chain(call, tensor, tensor);
}

Backend::WorkPtr HierarchicalBackend::reduce_scatter(const Call& call, at::Tensor output,
                                                     at::Tensor input) {
  if (links_.routes.take(call, input)) return reduce_by_chain(call, input, output);
  return direct_->reduce_scatter(call, std::move(output), std::move(input));
}

// All-gather and broadcast. What goes to another host is on its way at once; the thread passes it
// on.
class HierarchicalBackend::Gather {
 public:
  Gather(const HostLinks& links, const Call& call)
      : links_(links), call_(call), outgoing_(links.results, call) {}

  void all_gather(at::Tensor output, at::Tensor input) {
    const HostRoutes& routes = links_.routes;
    const int host = routes.host_of(links_.rank), place = routes.place_of(links_.rank);
    const std::vector<at::Tensor> rows = output.flatten().chunk(routes.hosts());
    for (int h = 0; h < routes.hosts(); ++h) {
      const at::Tensor& row = rows[static_cast<std::size_t>(h)];
      if (h == host) {  // needs no message
        steps_.push_front({row, input.flatten(), MessageSet(links_.messages, call_)});
        continue;
      }
      const int peer = routes.rank_at(h, place);
      steps_.push_back({row, row.chunk(routes.per_host())[static_cast<std::size_t>(place)],
                        MessageSet(links_.messages, call_)});
      steps_.back().message.recv(steps_.back().piece, peer, tag_of(call_));
      outgoing_.send(input.flatten(), peer, tag_of(call_));
    }
  }

  void broadcast(at::Tensor tensor) {
    const HostRoutes& routes = links_.routes;
    steps_.push_back({tensor, tensor, MessageSet(links_.messages, call_)});
    if (links_.rank == call_.root) {
      for (int h = 0; h < routes.hosts(); ++h) {
        if (h == routes.host_of(links_.rank)) continue;
        outgoing_.send(tensor, routes.rank_at(h, routes.place_of(links_.rank)), tag_of(call_));
      }
    } else if (routes.place_of(links_.rank) == routes.place_of(call_.root)) {
      steps_.back().message.recv(tensor, call_.root, tag_of(call_));
    }
  }

  void run() {
    Call inside = call_;
    inside.root = links_.routes.place_of(std::max(call_.root, 0));
    for (auto& [whole, piece, message] : steps_) {
      links_.wait(message);
      (call_.operation == Operation::kBroadcast ? links_.inside.broadcast(inside, whole)
                                                : links_.inside.all_gather(inside, whole, piece))
          ->wait();
    }
  }

  MessageSet& outgoing() { return outgoing_; }

 private:
  struct Step {
    at::Tensor whole;
    at::Tensor piece;    // of this rank
    MessageSet message;  // brings it
  };

  const HostLinks& links_;
  Call call_;
  std::deque<Step> steps_;
  MessageSet outgoing_;
};

Backend::WorkPtr HierarchicalBackend::all_gather(const Call& call, at::Tensor output,
                                                 at::Tensor input) {
  if (!links_.routes.take(call, input)) {
    return direct_->all_gather(call, std::move(output), std::move(input));
  }
  const auto gather = std::make_shared<Gather>(links_, call);
  gather->all_gather(std::move(output), std::move(input));
  return std::make_unique<TaskWork>(
      *this, call, [gather] { gather->run(); }, [gather] { gather->outgoing().wait(); });
}

Backend::WorkPtr HierarchicalBackend::broadcast(const Call& call, at::Tensor tensor) {
  if (!links_.routes.take(call, tensor)) return direct_->broadcast(call, std::move(tensor));
  const auto gather = std::make_shared<Gather>(links_, call);
  gather->broadcast(std::move(tensor));
  return std::make_unique<TaskWork>(
      *this, call, [gather] { gather->run(); }, [gather] { gather->outgoing().wait(); });
}

}  // namespace zero::dist
