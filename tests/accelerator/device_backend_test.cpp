// The backend of GPUs over the emulated process group: results, what it holds and for how long, and
// what a rank is told when others are lost.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <future>

#include <tests/support/error_of.hpp>

#include "over_device.hpp"

namespace zero::dist {
namespace {

using testing::device_backend;
using testing::DeviceOptions;
using testing::Gate;
using testing::OverDevice;
using zero::testing::expect_error;
using zero::testing::on_ranks;
using zero::testing::TestFolder;

// Only the backend keeps buffers.
DeviceOptions behind(Gate& gate) {
  DeviceOptions options{.group = gate.options(), .order = ReductionOrder::kNative};
  options.group.keeps_buffers = false;
  return options;
}

// Until wait() an operation holds its tensors, afterwards nothing does: peaks do not depend on when
// the host looks.
TEST(DeviceBackend, HoldsTensorsUntilTheWaitAndNoLonger) {
  const TestFolder folder;
  on_ranks(2, [&](Communicator& c) {
    Gate gate;
    const OverDevice over(c, folder.path(), behind(gate));
    at::Tensor all = at::zeros({4}), mine = at::ones({2});
    const auto output = all.storage().getWeakStorageImpl(),
               input = mine.storage().getWeakStorageImpl();
    Work gathering = c.all_gather(all, mine, Purpose::kParameter);
    mine.reset();
    EXPECT_FALSE(input.expired());
    EXPECT_FALSE(output.expired());
    gate.open();
    at::Tensor later = at::ones({1});
    c.all_reduce(later, Purpose::kControl).wait();
    c.synchronize();  // the gather is complete, too
    EXPECT_FALSE(input.expired());
    gathering.wait();
    EXPECT_TRUE(input.expired());
    c.synchronize();
    all.reset();
    EXPECT_TRUE(output.expired());
  });
}

TEST(DeviceBackend, HoldsNothingOfAnOperationThatIsNotCompleteAfterItsWait) {
  const TestFolder folder;
  on_ranks(2, [&](Communicator& c) {
    Gate gate;
    const OverDevice over(c, folder.path(), behind(gate));
    at::Tensor all = at::zeros({4}), mine = at::ones({2});
    c.all_gather(all, mine, Purpose::kParameter).wait();
    EXPECT_EQ(all.use_count(), 1);  // freeing it is for the stream to order
    EXPECT_EQ(mine.use_count(), 1);
    gate.open();
    c.synchronize();
  });
}

TEST(DeviceBackend, HoldsWhatItLaunchedIfALaterPartThrows) {
  const TestFolder folder;
  on_ranks(2, [&](Communicator& c) {
    Gate gate;
    const OverDevice over(c, folder.path(), behind(gate));
    at::Tensor numbers = at::ones({4}, at::kInt);
    const auto storage = numbers.storage().getWeakStorageImpl();
    // Known only when the sum is divided.
    expect_error([&] { c.all_reduce(numbers, Purpose::kControl, ReduceOp::kAverage); },
                 {"integers cannot be averaged"});
    numbers.reset();
    EXPECT_FALSE(storage.expired()) << "the group writes into memory that was freed";
    gate.open();
    while (!storage.expired()) {
      at::Tensor other = at::ones({1});
      c.all_reduce(other, Purpose::kControl).wait();
    }
  });
}

// A parameter that is gathered early arrives while the gradients before it are on their way.
TEST(DeviceBackend, AGatherDoesNotWaitForAReduction) {
  const TestFolder folder;
  on_ranks(2, [&](Communicator& c) {
    Gate gate;
    DeviceOptions options = behind(gate);
    options.group.before = [wait = options.group.before](c10d::OpType type, std::uint64_t number) {
      if (type == c10d::OpType::_REDUCE_SCATTER_BASE) wait(type, number);
    };
    const OverDevice over(c, folder.path(), options);
    at::Tensor sum = at::zeros({2}), whole = at::zeros({4});
    Work reducing = c.reduce_scatter(sum, at::ones({4}), Purpose::kGradient, ReduceOp::kSum);
    c.all_gather(whole, at::ones({2}), Purpose::kParameter).wait();
    EXPECT_NO_THROW(c.synchronize());
    gate.open();
    EXPECT_TRUE(at::equal(whole, at::ones({4})));
    reducing.wait();
    c.synchronize();
    EXPECT_TRUE(at::equal(sum, at::full({2}, 2.0)));
  });
}

// A group whose operations are complete, and an error ended them.
class LostGroup final : public c10d::Backend {
 public:
  LostGroup() : Backend(/*rank=*/0, /*size=*/2) {}
  const std::string getBackendName() const override { return "lost"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    struct Done final : c10d::Work {
      bool wait(std::chrono::milliseconds) override { return true; }
    };
    return c10::make_intrusive<Done>();
  }
  c10d::ErrorType getError() override { return c10d::ErrorType::COMM_ERROR; }
  void abort() override { throw std::runtime_error("nothing to abort"); }
};

std::unique_ptr<Backend> lost_backend() {
  zero::testing::enable_host_tasks();
  const Place place{
      .size = 2,
      .log = std::make_shared<CallLog>(nullptr, /*rank=*/0, /*size=*/2),
      .options = {.timeout = std::chrono::milliseconds(300), .order = ReductionOrder::kNative}};
  return std::make_unique<DeviceBackend>(
      place, DeviceTransport{at::Device(at::kCPU), "lost", [](const auto&, int, int, auto) {
                               return c10::make_intrusive<LostGroup>();
                             }});
}

TEST(DeviceFault, AnAbortThatFailsDoesNotHideTheCall) {
  const auto backend = lost_backend();
  const Call call{.operation = Operation::kAllReduce,
                  .purpose = Purpose::kGradient,
                  .sequence = 7,
                  .bytes = 12,
                  .step = 2,
                  .public_call = {}};
  const at::Tensor tensor = at::ones({3});
  const auto work = backend->start(call, tensor, tensor);
  expect_error([&] { work->wait(); },
               {"all_reduce #7 (gradient, 12 bytes) in step 2", "the connection is lost"});
}

// The axes of a mesh are siblings: before the host reads, a rank asks about all of them.
TEST(DeviceFault, SynchronizeCoversAllGroupsOfOneCommunicator) {
  const TestFolder folder;
  on_ranks(2, [&](Communicator& world) {
    const auto data = world.split({0, 1}, "data"), tensor = world.split({0, 1}, "tensor");
    std::promise<void> loss;
    DeviceOptions options;
    options.group.before = [lost = loss.get_future().share()](c10d::OpType, std::uint64_t) {
      lost.wait();
      throw std::runtime_error("a peer is lost");
    };
    const OverDevice over(*tensor, folder.path(), options);
    at::Tensor t = at::ones({3});
    tensor->broadcast(t, 0, Purpose::kActivation).wait();
    loss.set_value();
    expect_error([&] { data->synchronize(); }, {"broadcast #0 (activation, 12 bytes)"});
  });
}

TEST(DeviceBackend, IsCalledByOneRankIfItWorksAlone) {
  const TestFolder folder;
  for (const bool works_alone : {false, true}) {
    int calls = 0;
    DeviceOptions options{.order = ReductionOrder::kNative, .works_alone = works_alone};
    options.group.before = [&](c10d::OpType, std::uint64_t) { ++calls; };
    Connection connection;
    connection.device = device_backend(0, 1, folder.path(), options);
    Communicator c(std::move(connection));
    const at::Tensor mine = at::arange(5).to(at::kFloat);
    at::Tensor sum = mine.clone(), piece = at::zeros({5}), whole = at::zeros({5});
    c.broadcast(sum, 0, Purpose::kParameter).wait();
    c.reduce(sum, 0, Purpose::kGradient).wait();
    c.all_reduce(sum, Purpose::kGradient, Reduction::average_of_sums(2, ReduceType::kOwn)).wait();
    c.reduce_scatter(piece, mine, Purpose::kGradient).wait();
    c.all_gather(whole, mine, Purpose::kParameter).wait();
    c.all_to_all(whole, mine, Purpose::kParameter).wait();
    EXPECT_TRUE(at::equal(sum, mine / 2));
    EXPECT_TRUE(at::equal(piece, mine));
    EXPECT_TRUE(at::equal(whole, mine));
    c.synchronize();
    EXPECT_EQ(calls, works_alone ? 6 : 0);
    EXPECT_EQ(c.traffic().bytes(), 0);
  }
}

TEST(DeviceOfRank, IsNoOthers) {
  verify_own_devices({"a, GPU 1", "a, GPU 2", "b, GPU 1"});
  expect_error(
      [] {
        verify_own_devices({"a, GPU 1", "a, GPU 2", "a, GPU 1"});
      },
      {"ranks 0 and 2 would both use a, GPU 1", "give each rank a GPU of its own"});
}

}  // namespace
}  // namespace zero::dist
