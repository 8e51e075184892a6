#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <ostream>
#include <string>

#include <zero/distributed/communicator.hpp>

/// Tests that run on each kind of device: the CPU, GPUs and the emulated accelerator. A program
/// that links zero_on_device_tests instantiates the suites for its kinds.
namespace zero::testing {

/// A kind of device, and how tests run there.
struct DeviceKind {
  std::string name;
  at::DeviceType type;
  /// Why this many ranks cannot run; empty if they can.
  std::function<std::string(int ranks)> why_not;
  /// Runs `body` on the ranks and fails the test if one fails.
  std::function<void(int ranks, dist::ReductionOrder order,
                     const std::function<void(dist::Communicator&)>& body)>
      on_ranks;
  /// Makes accounting.hpp count the device's blocks, in a process of its own.
  std::function<void()> count_blocks = {};
  /// How often the host waits for the device in `action`.
  std::function<int(const std::function<void()>& action)> host_waits_in = {};
};

inline void PrintTo(const DeviceKind& kind, std::ostream* out) { *out << kind.name; }

/// Some ranks on such devices.
struct Where {
  DeviceKind kind;
  int ranks;
};

inline void PrintTo(const Where& where, std::ostream* out) {
  *out << where.ranks << " ranks on " << where.kind.name;
}

inline std::string name_of_where(const ::testing::TestParamInfo<Where>& info) {
  return "N" + std::to_string(info.param.ranks);
}

/// One device and one process: what its allocator counts, tensors whose storage was released, and
/// host waits.
class OneDevice : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    const std::string reason = GetParam().why_not(1);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

/// Ranks that have a device each.
class RanksOn : public ::testing::TestWithParam<Where> {
 protected:
  void SetUp() override {
    const std::string reason = GetParam().kind.why_not(GetParam().ranks);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  static at::DeviceType device() { return GetParam().kind.type; }
  static void on_each_rank(const std::function<void(dist::Communicator&)>& body) {
    on_each_rank(dist::ReductionOrder::kRankOrdered, body);
  }
  static void on_each_rank(dist::ReductionOrder order,
                           const std::function<void(dist::Communicator&)>& body) {
    GetParam().kind.on_ranks(GetParam().ranks, order, body);
  }
};

class EngineOn : public RanksOn {};

/// Also on one rank that calls the device's collectives.
class StreamsOn : public RanksOn {};

/// On three ranks: two do not show in which order a sum is taken.
class CollectivesOn : public RanksOn {};

}  // namespace zero::testing
