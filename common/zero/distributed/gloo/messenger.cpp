#include <fmt/format.h>

#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/gloo/messenger.hpp>

namespace zero::dist {

Messenger::WorkPtr Messenger::send(at::Tensor tensor, int to, int tag,
                                   const std::string& what) const {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  try {
    return group_->send(tensors, to, tag);
  } catch (const std::exception& error) {
    fail(what, to, error.what());
  }
}

Messenger::WorkPtr Messenger::recv(at::Tensor tensor, int from, int tag,
                                   const std::string& what) const {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  try {
    return group_->recv(tensors, from, tag);
  } catch (const std::exception& error) {
    fail(what, from, error.what());
  }
}

void Messenger::wait(const WorkPtr& work, const std::string& what, int peer) const {
  const CallLog::Waiting waiting(*log_, [&work] { work->abort(); });
  std::string cause = "given up";
  try {
    if (work->wait(timeout_)) return;
  } catch (const std::exception& error) {
    cause = error.what();
  }
  std::string why = waiting.found();
  // The peer may have left because it saw that its calls and this rank's differ.
  if (why.empty()) why = log_->disagreement();
  if (!why.empty()) throw Error(fmt::format("{}: {}", what, why));
  fail(what, peer, cause);
}

void Messenger::fail(const std::string& what, int peer, const std::string& cause) const {
  if (cause.find("Timed out") != std::string::npos) {
    throw Error(
        fmt::format("{}: nothing from rank {} within {} s; it is stopped, far behind, or in "
                    "another collective",
                    what, peer, timeout_.count() / 1000.0));
  }
  // Gloo closes all connections when one wait times out.
  if (cause.find("Application timeout") != std::string::npos) {
    throw Error(fmt::format("{}: given up after another collective has waited for {} s", what,
                            timeout_.count() / 1000.0));
  }
  throw Error(
      fmt::format("{}: the connection to rank {} is gone; it ended, or left after an error of "
                  "its own ({})",
                  what, peer, first_line(cause)));
}

}  // namespace zero::dist
