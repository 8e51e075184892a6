#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/gloo/message_set.hpp>

namespace zero::dist {

void GlooLinks::close() const {
  std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
  for (std::size_t device = 0; device < group->getOptions()->devices.size(); ++device) {
    try {
      std::unique_lock lock(starting);
      const auto never = group->recvAnysource(nothing, kNoTag + static_cast<int>(device));
      lock.unlock();
      never->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // The wait was over its time limit: Gloo has closed the connections of this device.
    }
  }
}

void MessageSet::add(Operation operation, at::Tensor tensor, int peer, int tag) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  try {
    const std::lock_guard lock(links_.starting);
    messages_.emplace_back(operation == Operation::kSend ? links_.group->send(tensors, peer, tag)
                                                         : links_.group->recv(tensors, peer, tag),
                           peer);
  } catch (const std::exception& error) {
    fail(peer, error.what(), "");
  }
}

void MessageSet::wait() {
  for (const auto& [message, peer] : messages_) wait_for(message, peer);
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
    // Gloo closes all connections when one wait times out, which close() uses.
    why = "ended because another collective of this rank has failed";
  }
  throw Error(fmt::format("{}: {}", call_.text(), why));
}

}  // namespace zero::dist
