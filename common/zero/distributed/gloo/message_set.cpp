#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <thread>

#include <zero/base/error.hpp>
#include <zero/distributed/gloo/message_set.hpp>
#include <zero/memory/charge.hpp>

namespace zero::dist {

void MessageSet::add(Operation operation, at::Tensor tensor, int peer, int tag) {
  const auto rank = [this](int r) { return links_.log->world_rank(r); };
  const int me = rank(links_.group->getRank());
  if (links_.link == nullptr || !links_.link->is_between(me, rank(peer))) {
    return start(operation, tensor, peer, tag);
  }
  // The sender knows when the tensor will be there, and says so in a message before it.
  const memory::Charge charge(memory::Category::kCommunication);
  const at::Tensor arrival = at::empty({1}, at::kLong);
  if (operation == Operation::kSend) {
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    arrival.fill_(links_.link->send(me, rank(peer), bytes).time_since_epoch().count());
  }
  start(operation, arrival, peer, tag);
  start(operation, tensor, peer, tag, arrival);
}

void MessageSet::start(Operation operation, const at::Tensor& tensor, int peer, int tag,
                       const at::Tensor& arrival) {
  std::vector<at::Tensor> tensors{tensor};
  try {
    messages_.push_back({operation == Operation::kSend ? links_.group->send(tensors, peer, tag)
                                                       : links_.group->recv(tensors, peer, tag),
                         peer, arrival});
  } catch (const std::exception& error) {
    fail(peer, error.what(), "");
  }
}

void MessageSet::wait() {
  for (const auto& [message, peer, arrival] : messages_) {
    wait_for(message, peer);
    if (!arrival.defined()) continue;
    std::this_thread::sleep_until(Link::Time(Link::Time::duration(arrival.item<std::int64_t>())));
  }
}

void MessageSet::wait_for(const Message& message, int peer) const {
  const CallLog::Waiting waiting(*links_.log, [&message] { message->abort(); });
  std::string cause = "given up";
  try {
    if (message->wait(links_.timeout)) return;
  } catch (const std::exception& error) {
    cause = error.what();
  }
  fail(peer, cause, waiting.found());
}

void MessageSet::fail(int peer, const std::string& cause, std::string why) const {
  // The peer may have left because it saw that its calls and this rank's differ.
  if (why.empty()) why = links_.log->disagreement();
  if (!why.empty()) throw Error(fmt::format("{}: {}", call_.text(), why));
  why = fmt::format("{} ({})", peer_is_gone(links_.log->world_rank(peer)), first_line(cause));
  if (cause.find("Timed out") != std::string::npos) {
    why = peer_is_late(links_.log->world_rank(peer), links_.timeout);
  } else if (cause.find("Application timeout") != std::string::npos) {
    // Gloo closes all connections when one wait times out.
    why = "ended because another collective of this rank has failed";
  }
  throw Error(fmt::format("{}: {}", call_.text(), why));
}

}  // namespace zero::dist
