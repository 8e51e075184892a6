#include "process_group.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include <zero/distributed/gloo/gloo_group.hpp>

#include "checker.hpp"
#include "host_views.hpp"

namespace zero::testing {
namespace {

using Clock = std::chrono::steady_clock;
using c10::impl::DeviceGuardImplInterface;

// Work that a thread of the host does for a stream.
class HostTask {
 public:
  bool done() const { return done_; }
  void finish() {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_.load(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> done_ = false;
};
using Tasks = std::vector<std::shared_ptr<HostTask>>;

bool all_done(const Tasks& tasks) {
  return std::ranges::all_of(tasks, [](const auto& task) { return task->done(); });
}

void wait_for(const Tasks& tasks) {
  for (const auto& task : tasks) task->wait();
}

// Streams and events for the CPU, which has neither, with tasks in them. It has one device.
class HostTaskGuard final : public DeviceGuardImplInterface {
 public:
  // Never freed, as guards must not be.
  static HostTaskGuard& get() {
    static auto* const guard = new HostTaskGuard;
    return *guard;
  }

  void add(const c10::Stream& stream, const Tasks& tasks) const {
    const std::lock_guard lock(mutex_);
    tasks_[stream].insert(tasks_[stream].end(), tasks.begin(), tasks.end());
  }
  Tasks tasks_of(const c10::Stream& stream) const {
    const std::lock_guard lock(mutex_);
    Tasks& tasks = tasks_[stream];
    std::erase_if(tasks, [](const auto& task) { return task->done(); });
    return tasks;
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new Tasks;
    *static_cast<Tasks*>(*event) = tasks_of(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) add(stream, *static_cast<Tasks*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || all_done(*static_cast<Tasks*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait_for(*static_cast<Tasks*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Tasks*>(event);
  }

  bool queryStream(const c10::Stream& stream) const override { return tasks_of(stream).empty(); }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(tasks_of(stream)); }
  void synchronizeDevice(c10::DeviceIndex) const override {
    for (Tasks all = all_tasks(); !all.empty(); all = all_tasks()) wait_for(all);
  }

  c10::Stream getStream(c10::Device) const override { return numbered(current_); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return numbered(std::exchange(current_, stream.id()));
  }
  c10::Stream getDefaultStream(c10::Device) const override { return numbered(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return numbered(++streams_);
  }
  c10::Stream getNewStream(c10::Device, int) const override { return numbered(++streams_); }

  c10::DeviceType type() const override { return at::kCPU; }
  c10::Device exchangeDevice(c10::Device) const override { return at::kCPU; }
  c10::Device getDevice() const override { return at::kCPU; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

 private:
  static c10::Stream numbered(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, at::kCPU, id);
  }
  Tasks all_tasks() const {
    const std::lock_guard lock(mutex_);
    Tasks all;
    for (auto& [stream, tasks] : tasks_) {
      std::erase_if(tasks, [](const auto& task) { return task->done(); });
      all.insert(all.end(), tasks.begin(), tasks.end());
    }
    return all;
  }

  static thread_local c10::StreamId current_;
  mutable std::atomic<c10::StreamId> streams_ = 0;
  mutable std::mutex mutex_;
  mutable std::unordered_map<c10::Stream, Tasks> tasks_;
};

thread_local c10::StreamId HostTaskGuard::current_ = 0;

// An operation runs at once, so the work that its stream waits for must be done.
std::unique_ptr<at::ObserverContext> finish_tasks(const at::RecordFunction&) {
  const HostTaskGuard& guard = HostTaskGuard::get();
  wait_for(guard.tasks_of(guard.getStream(at::kCPU)));
  return nullptr;
}

bool runs_at_once(at::Device device) { return !device.is_cpu(); }

// The same bytes for the CPU. Those of the emulated device are the host's as long as this lives.
at::Tensor on_host(const at::Tensor& tensor) {
  if (runs_at_once(tensor.device())) return emulated::HostViews().of(tensor, /*writes=*/true);
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : tensors) all.push_back(on_host(tensor));
  return all;
}

class EmulatedWork final : public c10d::Work {
 public:
  EmulatedWork(int rank, c10d::OpType type, at::Device device, std::vector<at::Tensor> inputs,
               std::vector<at::Tensor> outputs)
      : Work(rank, type),
        end(device.type()),
        task(std::make_shared<HostTask>()),
        device_(device),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)) {}

  // After an abort, too.
  bool isCompleted() override { return task->done() && end.query(); }
  // The thread that watches operations has a copy of the Work, and the exception is there.
  bool isSuccess() const override { return true; }
  std::exception_ptr exception() const override { return nullptr; }
  std::vector<at::Tensor> result() override { return outputs_; }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    end.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    inputs_.clear();
  }

  c10::Event end;
  std::shared_ptr<HostTask> task;

 private:
  at::Device device_;
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> outputs_;
};

// An internal stream, and the thread that does its work in order.
class InternalStream {
 public:
  explicit InternalStream(at::Device device)
      : stream(c10::impl::VirtualGuardImpl(device.type())
                   .getStreamFromGlobalPool(device, /*isHighPriority=*/false)),
        thread_([this] { run(); }) {}
  ~InternalStream() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  InternalStream(const InternalStream&) = delete;
  InternalStream& operator=(const InternalStream&) = delete;

  void add(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }

  const c10::Stream stream;

 private:
  // Until it ends and nothing is left to do.
  void run() {
    const at::DisableRecordFunctionGuard no_tasks;
    const at::NoGradGuard no_grad;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ends_ = false;
  std::thread thread_;
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class EmulatedGroup final : public c10d::Backend {
 public:
  EmulatedGroup(const dist::StorePtr& store, int rank, int size, std::chrono::milliseconds timeout,
                const ProcessGroupOptions& options)
      : Backend(rank, size), store_(store), timeout_(timeout), options_(options) {}
  ~EmulatedGroup() override {
    if (!channels_.empty()) end(c10d::ErrorType::SUCCESS);
    channels_.clear();
  }

  const std::string getBackendName() const override { return "emulated"; }
  c10d::ErrorType getError() override { return error_; }
  void abort() override { end(c10d::ErrorType::SUCCESS); }
  // Finishes what was started.
  void shutdown() override { channels_.clear(); }

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& o) override {
    const int root = static_cast<int>(o.rootRank);
    return launch(c10d::OpType::BROADCAST, kCollectives, tensors, tensors,
                  [this, root, t = on_host(tensors.front())](Transfers& transfers) {
                    for (int p = 0; p < size_ && rank_ == root; ++p) transfers.send(t, p);
                    if (rank_ != root) transfers.receive(t, root);
                    transfers.wait();
                  });
  }
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& o) override {
    return add_up(c10d::OpType::ALLREDUCE, o.reduceOp, tensors, {tensors.front()}, tensors, kAll);
  }
  WorkPtr reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& o) override {
    return add_up(c10d::OpType::REDUCE, o.reduceOp, tensors, {tensors.front()}, tensors,
                  static_cast<int>(o.rootRank));
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& o) override {
    return add_up(c10d::OpType::_REDUCE_SCATTER_BASE, o.reduceOp, {input},
                  input.flatten().chunk(size_), {output}, kAll);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions&) override {
    return exchange(c10d::OpType::_ALLGATHER_BASE, {input}, {output},
                    std::vector<at::Tensor>(static_cast<std::size_t>(size_), input),
                    output.flatten().chunk(size_));
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>&,
                        std::vector<std::int64_t>&, const c10d::AllToAllOptions&) override {
    return exchange(c10d::OpType::ALLTOALL_BASE, {input}, {output}, input.flatten().chunk(size_),
                    output.flatten().chunk(size_));
  }
  WorkPtr alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                   const c10d::AllToAllOptions&) override {
    return exchange(c10d::OpType::ALLTOALL, inputs, outputs, inputs, outputs);
  }
  WorkPtr send(std::vector<at::Tensor>& tensors, int peer, int) override {
    const at::Tensor& tensor = tensors.front();
    const bool eager = runs_at_once(tensor.device()) ||
                       static_cast<std::int64_t>(tensor.nbytes()) <= options_.eager_bytes;
    return launch(c10d::OpType::SEND, peer, tensors, {},
                  [peer, eager, t = on_host(tensor)](Transfers& transfers) {
                    transfers.send(eager ? t.clone() : t, peer);
                    if (!eager) transfers.wait();
                  });
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int peer, int) override {
    return launch(c10d::OpType::RECV, peer, {}, tensors,
                  [peer, t = on_host(tensors.front())](Transfers& transfers) {
                    transfers.receive(t, peer);
                    transfers.wait();
                  });
  }

 private:
  static constexpr int kCollectives = -1;  // the channel that is none of a pair's
  static constexpr int kAll = -1;

  // What NCCL calls a communicator: of all ranks, or of this one and another.
  struct Channel {
    dist::GroupPtr gloo;  // null for one rank
    std::unique_ptr<InternalStream> stream;
    int operations = 0;
  };

  // Messages of one operation.
  class Transfers {
   public:
    Transfers(EmulatedGroup& group, const Channel& channel, int tag)
        : group_(group), channel_(channel), tag_(tag) {}
    void wait() {
      for (const WorkPtr& work : works_) group_.finish(work);
    }
    void send(const at::Tensor& tensor, int peer) { start(true, tensor, peer); }
    void receive(const at::Tensor& tensor, int peer) { start(false, tensor, peer); }

   private:
    void start(bool sends, const at::Tensor& tensor, int peer) {
      if (peer == group_.rank_ || tensor.numel() == 0) return;
      const bool is_pair = channel_.gloo->getSize() < group_.size_;
      const int to = is_pair ? 1 - channel_.gloo->getRank() : peer;
      works_.push_back(group_.start(*channel_.gloo, sends, tensor, to, tag_));
    }

    EmulatedGroup& group_;
    const Channel& channel_;
    int tag_;
    std::vector<WorkPtr> works_;
  };

  using Body = std::function<void(Transfers&)>;

  // `tensors` of all ranks, in rank order: pieces[p] goes to rank p, or the only piece to all; the
  // sum is `root`'s, or every rank's.
  WorkPtr add_up(c10d::OpType type, const c10d::ReduceOp& op, const std::vector<at::Tensor>& inputs,
                 const std::vector<at::Tensor>& pieces, const std::vector<at::Tensor>& outputs,
                 int root) {
    TORCH_CHECK(op == c10d::ReduceOp::SUM, "the emulated group adds up, and nothing else");
    return launch(
        type, kCollectives, inputs, outputs,
        [this, root, mine = on_host(pieces), out = on_host(outputs.front())](Transfers& transfers) {
          const auto piece = [&](int p) {
            return mine[mine.size() == 1 ? 0 : static_cast<std::size_t>(p)];
          };
          const bool gets = root == kAll || root == rank_;
          std::vector<at::Tensor> of_rank(static_cast<std::size_t>(size_));
          for (int p = 0; p < size_; ++p) {
            at::Tensor& theirs = of_rank[static_cast<std::size_t>(p)];
            theirs = p == rank_ ? piece(p) : at::empty_like(piece(rank_));
            if (gets) transfers.receive(theirs, p);
            if (root == kAll || p == root) transfers.send(piece(p), p);
          }
          transfers.wait();
          if (!gets) return;
          at::Tensor sum = of_rank.front().clone();
          for (int p = 1; p < size_; ++p) sum.add_(of_rank[static_cast<std::size_t>(p)]);
          out.copy_(sum.view_as(out));
        });
  }

  // to[p] goes to rank p, from[p] comes from there.
  WorkPtr exchange(c10d::OpType type, const std::vector<at::Tensor>& inputs,
                   const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& to,
                   const std::vector<at::Tensor>& from) {
    return launch(type, kCollectives, inputs, outputs,
                  [this, to = on_host(to), from = on_host(from)](Transfers& transfers) {
                    for (int p = 0; p < size_; ++p) {
                      const auto i = static_cast<std::size_t>(p);
                      transfers.receive(from[i], p);
                      transfers.send(to[i], p);
                      const bool is_own = p == rank_ && from[i].data_ptr() != to[i].data_ptr();
                      if (is_own && to[i].numel() > 0) from[i].copy_(to[i].view_as(from[i]));
                    }
                    transfers.wait();
                  });
  }

  // Runs `body` on the internal stream of `pair`, behind the current stream.
  WorkPtr launch(c10d::OpType type, int pair, const std::vector<at::Tensor>& inputs,
                 const std::vector<at::Tensor>& outputs, Body body) {
    TORCH_CHECK(!aborted_, "the emulated group was aborted");
    const at::Device device = (inputs.empty() ? outputs : inputs).front().device();
    const HostTaskGuard& tasks = HostTaskGuard::get();
    Channel& channel = channel_of(pair, device);
    const c10::Stream& internal = channel.stream->stream;
    auto work = c10::make_intrusive<EmulatedWork>(rank_, type, device, inputs, outputs);
    c10::Event before(device.type());
    before.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    before.block(internal);
    const bool at_once = runs_at_once(device);
    Tasks earlier;
    if (at_once) {
      tell_checker(type, internal, inputs, outputs);
    } else {
      earlier = tasks.tasks_of(internal);
      tasks.add(internal, {work->task});
    }
    work->end.record(internal);
    // Messages of a pair match in their order.
    const int tag = pair == kCollectives ? ++channel.operations : 0;
    // Not the Work: it keeps its outputs only as long as the caller has it.
    std::vector<at::Tensor> kept;
    if (options_.keeps_buffers) {
      kept = inputs;
      kept.insert(kept.end(), outputs.begin(), outputs.end());
    }
    channel.stream->add([this, type, tag, earlier, &channel, task = work->task,
                         number = launched_++, body = std::move(body), out = on_host(outputs),
                         kept = std::move(kept)]() mutable {
      wait_for(earlier);
      run(
          type, number,
          [&] {
            Transfers transfers(*this, channel, tag);
            body(transfers);
          },
          out);
      // Before the task is done: the caller may then free them, and the host has lost them.
      body = nullptr;
      out.clear();
      kept.clear();
      task->finish();
    });
    if (at_once) work->task->wait();
    return work;
  }

  static void tell_checker(c10d::OpType type, const c10::Stream& stream,
                           const std::vector<at::Tensor>& reads,
                           const std::vector<at::Tensor>& writes) {
    std::vector<emulated::Access> accesses;
    for (const at::Tensor& t : reads) accesses.push_back(emulated::access_to(t, false));
    for (const at::Tensor& t : writes) accesses.push_back(emulated::access_to(t, true));
    emulated::Checker::get().launch(stream.id(), accesses, c10d::opTypeToString(type));
  }

  // The first operation connects its ranks: blocks until all of them are there.
  Channel& channel_of(int pair, at::Device device) {
    Channel& channel = channels_[pair];
    if (channel.stream != nullptr) return channel;
    channel.stream = std::make_unique<InternalStream>(device);
    if (size_ == 1) return channel;
    const bool all = pair == kCollectives;
    const std::string name =
        all ? "all" : fmt::format("{} {}", std::min(rank_, pair), std::max(rank_, pair));
    // Not Gloo's own limit: this group sees first that the time is over.
    channel.gloo = dist::make_gloo_group(c10::make_intrusive<c10d::PrefixStore>(name, store_),
                                         all ? rank_ : rank_ > pair, all ? size_ : 2, rank_,
                                         /*loopback=*/true, 2 * timeout_);
    return channel;
  }

  void run(c10d::OpType type, std::uint64_t number, const std::function<void()>& body,
           const std::vector<at::Tensor>& outputs) {
    const auto begun = Clock::now();
    try {
      TORCH_CHECK(!aborted_, "aborted");
      if (options_.before) options_.before(type, number);
      body();
      return;
    } catch (const std::exception&) {
      // Known before operations end, as it is to NCCL's watchdog.
      end(Clock::now() - begun < timeout_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::TIMEOUT);
    }
    for (const at::Tensor& output : outputs) {
      if (output.numel() > 0) std::memset(output.data_ptr(), 0xFF, output.nbytes());
    }
  }

  WorkPtr start(c10d::Backend& gloo, bool sends, const at::Tensor& tensor, int peer, int tag) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!aborted_, "aborted");
    std::vector<at::Tensor> tensors{tensor.view(-1)};
    WorkPtr work = sends ? gloo.send(tensors, peer, tag) : gloo.recv(tensors, peer, tag);
    running_.push_back(work);
    return work;
  }
  void finish(const WorkPtr& work) {
    const bool in_time = work->wait(timeout_);
    const std::lock_guard lock(mutex_);
    std::erase(running_, work);
    TORCH_CHECK(in_time && !aborted_, "aborted");
  }
  // Ends all operations, because of `error` if this is the first call.
  void end(c10d::ErrorType error) {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    error_ = error;
    aborted_ = true;
    for (const WorkPtr& work : running_) work->abort();
  }

  dist::StorePtr store_;
  std::chrono::milliseconds timeout_;
  ProcessGroupOptions options_;
  std::mutex mutex_;              // of the next three, which threads of streams use
  std::vector<WorkPtr> running_;  // a small send as long as the group: nothing waits for it
  std::atomic<c10d::ErrorType> error_ = c10d::ErrorType::SUCCESS;
  std::atomic<bool> aborted_ = false;
  std::uint64_t launched_ = 0;
  std::map<int, Channel> channels_;
};

}  // namespace

void enable_host_tasks() {
  static const bool done = [] {
    at::addGlobalCallback(
        at::RecordFunctionCallback(&finish_tasks).scopes({at::RecordScope::FUNCTION}));
    c10::impl::registerDeviceGuard(at::kCPU, &HostTaskGuard::get());
    return true;
  }();
  (void)done;
}

c10::intrusive_ptr<c10d::Backend> make_process_group(const dist::StorePtr& store, int rank,
                                                     int size, std::chrono::milliseconds timeout,
                                                     const ProcessGroupOptions& options) {
  return c10::make_intrusive<EmulatedGroup>(store, rank, size, timeout, options);
}

}  // namespace zero::testing
