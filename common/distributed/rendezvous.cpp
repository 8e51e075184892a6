#include "zero/distributed/rendezvous.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "zero/error.hpp"

namespace zero::dist {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kFailed = "zero/failed";
constexpr auto kLookAgain = std::chrono::milliseconds(250);
constexpr auto kStart = std::chrono::minutes(1);

[[noreturn]] void no_port(const char* step) {
  throw Error(
      fmt::format("ranks on this machine meet at a port of {}, and {} failed: {}; is the loopback "
                  "interface up?",
                  kLoopback, step, std::strerror(errno)));
}

}  // namespace

Rendezvous::Rendezvous() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (socket_ < 0) no_port("socket()");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, kLoopback, &address.sin_addr);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket_, any, size) != 0) no_port("bind()");
  if (::listen(socket_, SOMAXCONN) != 0) no_port("listen()");
  if (::getsockname(socket_, any, &size) != 0) no_port("getsockname()");
  port_ = ntohs(address.sin_port);
}

Rendezvous::~Rendezvous() {
  if (socket_ >= 0) ::close(socket_);
}

void Rendezvous::serve(std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port_);
  options.isServer = true;
  options.waitWorkers = false;
  // Its own first connection to itself is under the same limit, on a machine that is busy with the
  // start of all ranks.
  options.timeout = std::max<std::chrono::milliseconds>(timeout, kStart);
  options.masterListenFd = std::exchange(socket_, -1);  // the store's from now on
  try {
    store_ = c10::make_intrusive<c10d::TCPStore>(kLoopback, options);
  } catch (const std::exception& error) {
    throw Error(fmt::format("the store for ranks on this machine cannot be served at port {}: {}",
                            port_, first_line(error.what())));
  }
}

void Rendezvous::say_failed(const std::string& how) {
  store_->set(kFailed, std::vector<std::uint8_t>(how.begin(), how.end()));
}

StorePtr meet_at(int port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(kLoopback, options);
  } catch (const std::exception& error) {
    throw Error(fmt::format("the process that started the ranks does not answer: {}",
                            first_line(error.what())));
  }
}

std::vector<std::uint8_t> WatchedStore::get(const std::string& key) {
  wait({key});
  return c10d::PrefixStore::get(key);
}

void WatchedStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void WatchedStore::wait(const std::vector<std::string>& keys,
                        const std::chrono::milliseconds& timeout) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  const auto deadline = Clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    try {
      // Not 0, which some stores take for no limit.
      c10d::PrefixStore::wait(keys, std::clamp<milliseconds>(left, milliseconds(1), kLookAgain));
      return;
    } catch (const std::exception&) {
      if (left <= kLookAgain) throw;
      if (check(keys)) return;  // throws where the store is gone
    }
    if (!base_->check({kFailed})) continue;
    const std::vector<std::uint8_t> how = base_->get(kFailed);
    throw Error(std::string(how.begin(), how.end()));
  }
}

}  // namespace zero::dist
