// The engine under ThreadSanitizer: does anything touch a buffer while it travels, and what do
// threads of a process share?
//
//     race none      trains with every stage and lookahead: ThreadSanitizer must be silent
//
//     race gather    the same, but wait() of a gather returns before the bytes have come
//
//     race reduce    the same for a reduction
//
//     race disk      the same for a tile of optimizer states that is read from a file
//
//     race beside    another thread trains models of its own meanwhile: silent, and the same bits
//
//     race within    the other thread runs a unit of the first thread's model, too
//
// ThreadSanitizer sees only what was compiled for it, and LibTorch was not. So both sides are here:
// a network, a thread that copies byte by byte, a disk whose bytes are looked at, and layers that
// compute element by element. Between them is the real engine, compiled for ThreadSanitizer as
// well, whose calls are all that orders one after the other.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <05_prefetch_overlap/sharded_data_parallel.hpp>
#include <10_offload/offloaded.hpp>
#include <tests/support/deferred.hpp>
#include <tests/support/disk.hpp>
#include <tools/ladder/trainer.hpp>
#include <tools/plots/memory_timeline.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/nn/checkpoint.hpp>
#include <zero/nn/gradient_destination.hpp>
#include <zero/nn/parameters.hpp>
#include <zero/optim/adamw.hpp>

// What ThreadSanitizer was not compiled into it cannot follow either: leave it alone.
// NOLINTNEXTLINE(readability-identifier-naming): the name is ThreadSanitizer's.
extern "C" const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1 halt_on_error=1 exitcode=66";
}

namespace zero::testing {
namespace {

using dist::Purpose;

constexpr int kRanks = 3;
constexpr std::int64_t kWidth = 37;

// ---- the network
// ---------------------------------------------------------------------------------

/// Does jobs one after the other on a thread of its own, each after a random delay.
class Network {
 public:
  explicit Network(unsigned seed) : draw_(seed), thread_([this] { work(); }) {}
  ~Network() {
    enqueue({});
    thread_.join();
  }

  /// Gives the job's number.
  std::int64_t enqueue(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    return ++enqueued_;
  }

  /// Blocks until job number `number` is done. No condition variable: those wait inside the C++
  /// library, where ThreadSanitizer does not look.
  void wait(std::int64_t number) {
    while (true) {
      std::deque<std::function<void()>> done;
      {
        const std::lock_guard lock(mutex_);
        if (done_ >= number) {
          done.swap(done_jobs_);  // tensors are let go by the thread that made them
          return;
        }
      }
      ::usleep(20);
    }
  }

 private:
  void work() {
    while (true) {
      std::function<void()> job;
      {
        const std::lock_guard lock(mutex_);
        if (!jobs_.empty()) {
          job = std::move(jobs_.front());
          jobs_.pop_front();
          if (!job) return;
        }
      }
      ::usleep(draw_() % 200);
      if (!job) continue;
      job();
      const std::lock_guard lock(mutex_);
      done_jobs_.push_back(std::move(job));
      ++done_;
    }
  }

  std::mutex mutex_;
  std::deque<std::function<void()>> jobs_, done_jobs_;
  std::int64_t enqueued_ = 0;
  std::int64_t done_ = 0;
  std::minstd_rand draw_;
  std::thread thread_;
};

// The bytes of a tensor, or of one of its pieces. Found before the job begins: a tensor is not to
// be looked at from two threads.
struct Bytes {
  explicit Bytes(at::Tensor of)
      : tensor(std::move(of)),
        data(static_cast<volatile unsigned char*>(tensor.mutable_data_ptr())),
        size(tensor.nbytes()) {}
  volatile unsigned char* piece(int rank) const {
    return data + static_cast<std::size_t>(rank) * (size / kRanks);
  }

  at::Tensor tensor;  // keeps them
  volatile unsigned char* data;
  std::size_t size;
};

// Byte by byte, where ThreadSanitizer sees it.
void move_bytes(volatile unsigned char* to, const volatile unsigned char* from, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) to[i] = from[i];
}

/// A disk with random delays, whose reads may end before their bytes have come, and whose transfers
/// ThreadSanitizer sees. Each has a thread of its own: the library's threads (std::async) run
/// inside a call of the C++ library, where it does not look.
class SlowDisk {
 public:
  explicit SlowDisk(bool broken)
      : disk_([this, broken](const Transfer& transfer) -> ssize_t {
          ::usleep(static_cast<unsigned>(++transfers_) * 7919 % 100);
          const auto done = std::make_shared<std::atomic<ssize_t>>(0);
          std::thread thread([done, transfer] { *done = move(transfer); });
          if (!broken || transfer.writes) {
            thread.join();
            return *done;
          }
          {
            const std::lock_guard lock(mutex_);
            late_.push_back(std::move(thread));
          }
          ::usleep(500);  // orders nothing
          return static_cast<ssize_t>(transfer.bytes);
        }) {}
  ~SlowDisk() {
    for (std::thread& thread : late_) thread.join();
  }
  SlowDisk(const SlowDisk&) = delete;
  SlowDisk& operator=(const SlowDisk&) = delete;

 private:
  static ssize_t move(const Transfer& transfer) {
    auto* const data = static_cast<volatile unsigned char*>(const_cast<void*>(transfer.data));
    for (std::size_t i = 0; transfer.writes && i < transfer.bytes; ++i) static_cast<void>(data[i]);
    const ssize_t done = transfer.as_asked();
    for (std::size_t i = 0; !transfer.writes && i < transfer.bytes; ++i) data[i] = data[i];
    return done;
  }

  std::atomic<int> transfers_ = 0;
  std::mutex mutex_;
  std::vector<std::thread> late_;
  Disk disk_;
};

/// Rank 0 of three that all have the same: an average is what this rank gave, and the others'
/// shards are like its own. What a collective would read and write is read and written, by the
/// network, after the call has returned.
class TwinBackend final : public dist::Backend {
 public:
  using Call = dist::Call;

  /// wait() of an operation for `broken` returns at once.
  TwinBackend(unsigned seed, const Purpose* broken) : network_(seed), broken_(broken) {}

  std::string transport() const override { return "a thread"; }

  WorkPtr start(const Call& call, at::Tensor output, at::Tensor input) override {
    switch (call.operation) {
      case dist::Operation::kReduceScatter:
        return travel(call, [to = Bytes(output), from = Bytes(input)] {
          // The others' pieces are read, to be sent; this rank's is what stays.
          for (std::size_t i = from.size / kRanks; i < from.size; ++i) {
            static_cast<void>(from.data[i]);
          }
          move_bytes(to.data, from.piece(0), to.size);
        });
      case dist::Operation::kAllGather:
      case dist::Operation::kBarrier:
        return travel(call, [to = Bytes(output), from = Bytes(input), call] {
          for (int r = 0; r < kRanks; ++r) {
            if (r == 0 && !call.copy_own_chunk) continue;
            move_bytes(to.piece(r), from.data, from.size);
          }
        });
      case dist::Operation::kAllToAll:
      case dist::Operation::kSend:
      case dist::Operation::kRecv:
        return nullptr;
      default:
        return travel(call, [all = Bytes(input)] { move_bytes(all.data, all.data, all.size); });
    }
  }

 private:
  class Travelling final : public dist::Work::Pending {
   public:
    Travelling(Network& network, std::int64_t job) : network_(network), job_(job) {}
    void wait() override { network_.wait(job_); }

   private:
    Network& network_;
    std::int64_t job_;
  };
  class NotWaitedFor final : public dist::Work::Pending {
   public:
    void wait() override {}
  };

  WorkPtr travel(const Call& call, std::function<void()> job) {
    const std::int64_t number = network_.enqueue(std::move(job));
    if (broken_ != nullptr && call.purpose == *broken_) return std::make_unique<NotWaitedFor>();
    return std::make_unique<Travelling>(network_, number);
  }

  Network network_;
  const Purpose* broken_;
};

dist::Connection twins(unsigned seed, const Purpose* broken) {
  return {.place = {.size = kRanks}, .cpu = std::make_unique<TwinBackend>(seed, broken)};
}

// ---- the model
// -----------------------------------------------------------------------------------

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// y[i] = x[i] w[i] + b[i], element by element. Gradients are written where the engine says.
struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias) {
    context->save_for_backward({x, weight, bias});
    at::Tensor y = at::empty_like(x);
    const float *in = x.const_data_ptr<float>(), *w = weight.const_data_ptr<float>(),
                *b = bias.const_data_ptr<float>();
    auto* out = y.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < kWidth; ++i) out[i] = in[i] * w[i] + b[i];
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor gradient = gradients[0].contiguous();
    at::Tensor to_x = at::empty_like(saved[0]);
    const float *g = gradient.const_data_ptr<float>(), *in = saved[0].const_data_ptr<float>(),
                *w = saved[1].const_data_ptr<float>();
    auto* out = to_x.mutable_data_ptr<float>();
    auto* of_w = nn::gradient_destination(saved[1]).tensor.mutable_data_ptr<float>();
    auto* of_b = nn::gradient_destination(saved[2]).tensor.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < kWidth; ++i) {
      out[i] = g[i] * w[i];
      of_w[i] = g[i] * in[i];
      of_b[i] = g[i];
    }
    return {to_x, at::Tensor(), at::Tensor()};
  }
};

class ScaleUnit : public nn::Unit {
 public:
  ScaleUnit() {
    weight_ = add_parameter("weight", {kWidth}, nn::Initializer::normal(0.5));
    bias_ = add_parameter("bias", {kWidth}, nn::Initializer::uniform(0.5));
  }
  at::Tensor forward(const at::Tensor& x) {
    return run([&] { return Scale::apply(x, weight_, bias_).tanh(); });
  }

 private:
  at::Tensor weight_, bias_;
};

class ScaleModel : public nn::Unit {
 public:
  ScaleModel() {
    weight_ = add_parameter("weight", {kWidth}, nn::Initializer::normal(0.5));
    bias_ = add_parameter("bias", {kWidth}, nn::Initializer::uniform(0.5));
    for (int u = 0; u < 5; ++u) {
      units_.push_back(register_module(std::to_string(u), std::make_shared<ScaleUnit>()));
    }
  }
  at::Tensor loss(const data::Batch& batch) {
    return run([&] { return outputs(batch).square().mean(); });
  }
  ScaleUnit& first_unit() { return *units_.front(); }

 private:
  at::Tensor outputs(const data::Batch& batch) {
    at::Tensor x = batch.inputs;
    for (const auto& unit : units_) {
      const auto run_unit = [&](const std::vector<at::Tensor>& in) {
        return unit->forward(in.front());
      };
      x = unit == units_[2] ? nn::checkpoint(run_unit, {x}) : run_unit({x});
    }
    return Scale::apply(x, weight_, bias_);
  }

  at::Tensor weight_, bias_;
  std::vector<std::shared_ptr<ScaleUnit>> units_;
};

// ---- the runs
// ------------------------------------------------------------------------------------

data::Batch batch() { return {.inputs = at::ones({kWidth}), .loss_terms = 1}; }

/// What the other thread does.
enum class Other : std::uint8_t { kNothing, kTrainsItsOwn, kUsesThisModel };

/// Another thread, from the constructor to the destructor.
class OtherThread {
 public:
  OtherThread(Other does, ScaleModel& model) {
    if (does == Other::kNothing) return;
    thread_ = std::thread([this, does, &model] {
      for (int n = 0; !ends_; ++n) {
        does == Other::kTrainsItsOwn ? train_alone(n) : use(model.first_unit());
      }
    });
  }
  ~OtherThread() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }
  OtherThread(const OtherThread&) = delete;
  OtherThread& operator=(const OtherThread&) = delete;

 private:
  static void train_alone(int number);
  static void use(ScaleUnit& unit) {
    const at::NoGradGuard no_graph;
    unit.forward(at::ones({kWidth}));
  }

  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

/// Trains some steps and gives the sum of the last losses, which no delay may change.
double train(dist::Communicator& communicator, const ShardingOptions& options,
             Other other = Other::kNothing, const std::string& states = "") {
  nn::SeededValues values(5);
  const auto model = make_deferred<ScaleModel>();
  optim::OptimizerFactory optimizer = optim::adamw();
  if (!states.empty())
    optimizer = optim::with_offload(optimizer, {.folder = states, .tile_bytes = 1});
  ShardedDataParallel strategy({*model, communicator, optimizer, &values, ""}, options);
  const OtherThread beside(other, *model);
  tools::Trainer trainer(strategy, tools::losses_of(*model));
  double loss = 0;
  for (int s = 0; s < 5; ++s) loss = trainer.step({batch()}).loss;
  return loss + trainer.evaluate({batch()});
}

/// A plain model, without a strategy; then one with a strategy and a network of its own.
void OtherThread::train_alone(int number) {
  ScaleModel model;
  nn::SeededValues values(7);
  nn::initialize_parameters(model, values);
  const std::vector<at::Tensor> parameters = model.parameters();
  const auto optimizer = optim::adamw()(parameters);
  plots::start_timeline(/*resolution=*/1000);
  for (int s = 0; s < 3; ++s) {
    model.loss(batch()).backward();
    optimizer->step();
    model.zero_grad();
  }
  dist::Communicator communicator(twins(100, nullptr));
  train(communicator, {.stage = number % 4, .whole_below = number % 3 * kWidth});
  plots::stop_timeline();
}

int run(const std::string& planted) {
  const Purpose gather = Purpose::kParameter, reduce = Purpose::kGradient;
  const Purpose* const broken = planted == "gather"   ? &gather
                                : planted == "reduce" ? &reduce
                                                      : nullptr;
  const Other other = planted == "beside"   ? Other::kTrainsItsOwn
                      : planted == "within" ? Other::kUsesThisModel
                                            : Other::kNothing;
  const SlowDisk disk(/*broken=*/planted == "disk");
  int runs = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    // Twins repeat their own shard: by cut.
    std::map<std::vector<std::int64_t>, double> expected;
    for (unsigned seed = 0; seed < 10; ++seed, ++runs) {
      const std::int64_t bucket = seed % 2 == 0 ? 1 << 20 : 4 * kWidth;  // one for each parameter
      const std::int64_t whole_below = seed % 3 == 2 ? 2 * kWidth + 1 : 0;
      const std::vector key{bucket, whole_below};
      const bool is_first = expected.count(key) == 0;
      dist::Communicator communicator(twins(seed + 1, broken));
      const double loss = train(communicator,
                                {.stage = stage,
                                 .bucket_bytes = bucket,
                                 .in_flight_bytes = 1 << (seed + 6),
                                 .lookahead = seed % 4,
                                 .whole_below = whole_below},
                                is_first ? Other::kNothing : other, seed % 4 == 3 ? "/tmp" : "");
      const double first = expected.emplace(key, loss).first->second;
      if (loss != first && broken == nullptr) {
        fmt::print(stderr, "stage {}, seed {}: the loss is {} and not {}\n", stage, seed, loss,
                   first);
        return 1;
      }
    }
  }
  fmt::print("{} runs\n", runs);
  return 0;
}

}  // namespace
}  // namespace zero::testing

int main(int argc, char** argv) {
  const std::vector<std::string> known = {"none", "gather", "reduce", "disk", "beside", "within"};
  const std::string planted = argc == 2 ? argv[1] : "";
  if (std::ranges::find(known, planted) == known.end()) {
    fmt::print(stderr, "usage: {} {}\n", argv[0], fmt::join(known, "|"));
    return 2;
  }
  zero::memory::install();
  try {
    return zero::testing::run(planted);
  } catch (const zero::Error& error) {  // of bytes that have not come yet
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
