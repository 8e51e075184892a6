// Wrong offloads, each the library's own with one line changed (wrong_offloads.cmake): AdamW beside
// AdamW in memory must notice every one.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include <10_offload/offloaded.hpp>
#include <tests/support/disk.hpp>
#include <tests/support/offload.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/optim/adamw.hpp>

namespace zero {
namespace wrong {

using optim::OffloadOptions, optim::OptimizerFactory;

namespace read_not_waited_for {
OptimizerFactory with_offload(OptimizerFactory optimizer, OffloadOptions options);
}
namespace write_dropped {
OptimizerFactory with_offload(OptimizerFactory optimizer, OffloadOptions options);
}
namespace committed_before_the_last_tile {
OptimizerFactory with_offload(OptimizerFactory optimizer, OffloadOptions options);
}
namespace stale_checksum {
OptimizerFactory with_offload(OptimizerFactory optimizer, OffloadOptions options);
}
namespace wrong_tile_at_the_end {
OptimizerFactory with_offload(OptimizerFactory optimizer, OffloadOptions options);
}

}  // namespace wrong

namespace testing {
namespace {

using ::testing::AnyOf, ::testing::HasSubstr;
using Offload = optim::OptimizerFactory (*)(optim::OptimizerFactory, optim::OffloadOptions);

constexpr std::int64_t kTile = 4096;
constexpr std::int64_t kElements = 1700;  // of 8 bytes: three tiles and an odd end

at::Tensor random(std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn({kElements}, generator);
}

// What is wrong with it; empty if nothing is.
std::string fault_of(Offload offload) {
  const TestFolder folder;
  const at::Tensor ours = random(1), theirs = ours.clone();
  const auto offloaded = offload(optim::adamw(), {folder.path(), kTile, false})({ours});
  const auto resident = optim::adamw()({theirs});
  const Disk slow([](const Transfer& transfer) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return transfer.as_asked();
  });
  const auto step = [&](std::uint64_t seed) {
    ours.mutable_grad() = theirs.mutable_grad() = random(seed);
    offloaded->step();
    resident->step();
  };
  try {
    for (std::uint64_t seed = 2; seed < 6; ++seed) {
      step(seed);
      if (!at::equal(ours, theirs)) return "other weights than in memory";
    }
    const auto a = offloaded->state(ours), b = resident->state(theirs);
    for (const auto& [name, state] : b) {
      if (!at::equal(a.at(name), state)) return "other states than in memory";
    }
  } catch (const Error& error) {
    return error.what();
  }
  // Tile 2 is bad: the tiles before it are updated. That must not count.
  offloaded->step();
  spoil_offloaded_file(folder.path(), 2 * kTile);
  try {
    offloaded->step();
    return "a bad byte is not noticed";
  } catch (const Error&) {
  }
  try {
    offloaded->step();
    return "after a failed step another one goes on";
  } catch (const Error&) {
  }
  return "";
}

TEST(WrongOffloads, AreNoticed) {
  EXPECT_EQ(fault_of(optim::with_offload), "");
  // What the read finds and leaves is a matter of time.
  EXPECT_THAT(fault_of(wrong::read_not_waited_for::with_offload),
              AnyOf(HasSubstr("other weights"), HasSubstr("has other bytes")));
  EXPECT_THAT(fault_of(wrong::write_dropped::with_offload), HasSubstr("other weights"));
  EXPECT_THAT(fault_of(wrong::committed_before_the_last_tile::with_offload),
              HasSubstr("after a failed step another one goes on"));
  EXPECT_THAT(fault_of(wrong::stale_checksum::with_offload), HasSubstr("has other bytes"));
  EXPECT_THAT(fault_of(wrong::wrong_tile_at_the_end::with_offload), HasSubstr("other weights"));
}

}  // namespace
}  // namespace testing
}  // namespace zero
