#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::dist {

/// What the bytes of a collective are for; traffic is counted by purpose.
enum class Purpose : std::uint8_t {
  kGradient,    ///< gradients on their way to being averaged
  kParameter,   ///< weights: gathers and owners' broadcasts in training steps
  kControl,     ///< flags, counts, norms: a few bytes a step
  kSetup,       ///< start-up: first values, agreement between ranks
  kActivation,  ///< activations and their gradients, between ranks that share a model's layers
};
inline constexpr std::size_t kPurposes = 5;
std::string_view name(Purpose purpose);

enum class Operation : std::uint8_t {
  kBroadcast,
  kReduce,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kSend,
  kRecv,
  kBarrier,
};
inline constexpr std::size_t kOperations = 9;
std::string_view name(Operation operation);
/// Whether it is a reduction.
bool adds_up(Operation operation);

/// Bytes that this rank handed to the backend to send, by operation and purpose.
struct Traffic {
  struct Entry {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;
    std::int64_t between_hosts = 0;  ///< of these, to ranks of other hosts
  };
  std::array<std::array<Entry, kPurposes>, kOperations> entries{};

  Entry& at(Operation operation, Purpose purpose);
  const Entry& at(Operation operation, Purpose purpose) const;
  // Over all operations.
  std::int64_t bytes(Purpose purpose) const { return total(&Entry::bytes, purpose); }
  std::int64_t between_hosts(Purpose purpose) const {
    return total(&Entry::between_hosts, purpose);
  }
  std::int64_t calls(Purpose purpose) const { return total(&Entry::calls, purpose); }
  // Over everything.
  std::int64_t bytes() const { return total(&Entry::bytes); }
  std::int64_t between_hosts() const { return total(&Entry::between_hosts); }
  /// This minus an earlier reading: the traffic between the two.
  Traffic since(const Traffic& earlier) const;

 private:
  std::int64_t total(std::int64_t Entry::*column, Purpose purpose) const;
  std::int64_t total(std::int64_t Entry::*column) const;
};

}  // namespace zero::dist
