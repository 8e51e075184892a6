#pragma once

// Private to common/zero/distributed, and to the library zero::cuda.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include <zero/distributed/gloo/gloo_communicator.hpp>

namespace zero::dist {

using NcclGroup = c10::intrusive_ptr<c10d::Backend>;

/// A collective on a GPU, from its start until it is seen to be complete. It holds its buffers
/// until it is waited on, including those that the caller has dropped, such as a widened copy:
/// otherwise the allocator could reuse their memory on the computing stream, which is not yet
/// ordered behind the collective. After wait() the waiting stream runs behind `done`, so freeing
/// and reusing them is safe. (record_stream() would keep the memory until the host next checks, and
/// peaks would depend on timing.)
struct Flight {
  Communicator::Call call;
  std::vector<at::Tensor> buffers;  ///< what it reads and writes
  c10::Event done{c10::DeviceType::CUDA};
  std::vector<c10::intrusive_ptr<c10d::Work>> works;  ///< NCCL's operations, which notice errors
  bool waited_for = false;
};

/// CUDA tensors over NCCL, CPU tensors over Gloo. See enable_nccl() of nccl.hpp.
///
/// Gradients travel on one stream, everything else on another, beside the computing stream. The
/// host does not wait for them: a collective begins after earlier work of the calling thread's
/// stream, and wait() orders later work of that stream behind the collective.
class NcclCommunicator final : public GlooCommunicator {
 public:
  /// Called by all ranks. Makes GPU `device` the current one of this thread; NCCL connects in the
  /// first collective. `group` is null for one rank.
  NcclCommunicator(StoreExchange store, GroupPtr group, int device, const ConnectOptions& options);
  /// Ends NCCL's connections. After an error it does not wait for peers.
  ~NcclCommunicator() override;

  bool checks_gradients() const override { return false; }

 protected:
  WorkPtr do_broadcast(const Call&, at::Tensor tensor, int root) override;
  WorkPtr do_reduce(const Call&, at::Tensor tensor, int root, int divisor) override;
  WorkPtr do_all_reduce(const Call&, at::Tensor tensor, int divisor) override;
  WorkPtr do_reduce_scatter(const Call&, at::Tensor output, at::Tensor input, int divisor) override;
  WorkPtr do_all_gather(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_all_to_all(const Call&, at::Tensor output, at::Tensor input) override;
  WorkPtr do_message(const Call&, at::Tensor tensor, int peer) override;
  void do_synchronize() override;
  WorkPtr reduce_pieces(const Call&, at::Tensor input, std::vector<std::int64_t> bounds,
                        at::Tensor output, int divisor, bool gather) override;
  void check_device(const at::Tensor& tensor) const override;

  std::unique_ptr<Communicator> make_group(StoreExchange store, GroupPtr group) override;

 private:
  using C10dWork = c10::intrusive_ptr<c10d::Work>;

  class FlightWork;
  using NcclOperation = std::function<C10dWork(c10d::Backend&)>;

  /// Runs `body`, which calls launch() and tensor operations on `buffers`, on the stream for this
  /// call.
  WorkPtr fly(const Call& call, std::vector<at::Tensor> buffers,
              const std::function<void(Flight&)>& body);
  /// Runs one of NCCL's operations within fly(); later work of the stream is ordered behind it.
  void launch(Flight& flight, const NcclOperation& operation);
  /// fly() with launch(), for a collective that is one operation; `after` runs on its result.
  WorkPtr start(const Call& call, std::vector<at::Tensor> buffers, const NcclOperation& operation,
                const std::function<void()>& after = {});
  c10::Stream current_stream() const;
  void forget_completed();
  void check(const Flight& flight);
  /// Ends NCCL's operations, so that no rank waits forever, and throws.
  [[noreturn]] void fail(const Flight& flight, const std::string& cause);
  /// Whether both are on the CPU. Throws zero::Error if only one is.
  bool on_cpu(const at::Tensor& output, const at::Tensor& input) const;

  int device_;
  NcclGroup nccl_;
  c10::Stream gradients_;
  c10::Stream others_;
  std::deque<std::shared_ptr<Flight>> flights_;  // not yet seen to be complete, oldest first
  bool failed_ = false;
};

}  // namespace zero::dist
