#pragma once

#include <ATen/record_function.h>
#include <torch/types.h>

#include <exception>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <zero/base/scoped.hpp>
#include <zero/nn/unit.hpp>

namespace zero::nn {

/// While it lives, operations on this thread are not the model's, such as the copies of a gather.
using Unwatched = ScopedFlag<struct UnwatchedTag>;

/// Calls the hooks of units whose modules do not call them. It sees each operation of LibTorch
/// before it runs (at::RecordFunction), and which parameters it reads.
///
/// In forward a unit begins before the first operation that reads one of its parameters, or a
/// tensor that shares their storage. It ends before the first that reads another unit's. So a unit
/// may be used several times. Its backward begins before that of one of these operations.
///
/// It does not notice what passes LibTorch's dispatcher by, such as a loop over data_ptr(): there a
/// released parameter has its error (memory/storage.hpp).
class ReadWatch {
 public:
  /// A unit whose hooks are called, and the parameters that it is gathered for.
  struct Watched {
    std::shared_ptr<Unit> unit;
    std::vector<at::Tensor> parameters = {};
  };

  explicit ReadWatch(std::vector<Watched> watched) : watched_(std::move(watched)) {}
  ReadWatch(const ReadWatch&) = delete;
  ReadWatch& operator=(const ReadWatch&) = delete;

  /// While it lives, a checkpoint's body runs for the first time. In backward it runs again, with a
  /// backward of its own for each unit in it.
  class Part {
   public:
    Part();
    ~Part();
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    std::pair<std::int64_t, bool> around_;
  };

  /// Runs a forward on this thread and calls hooks in it. What a hook throws leaves this function.
  /// @throws zero::Error in a forward with a graph if one operation reads parameters of two units.
  at::Tensor forward(const std::function<at::Tensor()>& body);
  /// The same without a result, for a backward too. Its graph calls pre_backward() by itself; this
  /// adds what an operation of a function of the program's own (torch::autograd::Function) reads.
  void run(const std::function<void()>& pass);

 private:
  using Units = std::vector<const Watched*>;
  using Running = std::pair<int, const Unit*>;
  struct Use;
  struct Reads;
  class Active;

  static std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& operation);
  static void after(const at::RecordFunction& operation, at::ObserverContext* reads);

  void add_units_of(const c10::IValue& value, Units& units) const;
  void run_forward(const Units& units, const at::RecordFunction& operation);
  static void read_on(Use& use);
  void run_in_backward(const Units& units);
  static void pre_backward(const std::shared_ptr<Unit>& unit);
  void begin(const std::shared_ptr<Unit>& unit, bool runs_forward);
  void end_uses();
  static void watch(const c10::IValue& output, const std::vector<std::shared_ptr<Use>>& uses);

  const std::vector<Watched> watched_;
  std::unordered_map<const void*, const Watched*> unit_of_;  // by storage
  std::vector<std::shared_ptr<Use>> uses_;                   // of units that run now
  Running running_;           // number of a pass of autograd, and the unit whose backward runs
  std::exception_ptr error_;  // of a hook
};

}  // namespace zero::nn
