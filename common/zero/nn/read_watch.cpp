#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <ranges>
#include <tuple>

#include <zero/base/error.hpp>
#include <zero/base/scoped.hpp>
#include <zero/memory/storage.hpp>
#include <zero/nn/before_backward.hpp>
#include <zero/nn/read_watch.hpp>

namespace zero::nn {
namespace {

thread_local ReadWatch* active = nullptr;
// Of the checkpoint whose body runs for the first time, by number, or 0 outside of all; and whether
// a unit has begun in it.
thread_local std::int64_t part = 0, parts = 0;
thread_local bool part_has_unit = false;

bool in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

}  // namespace

// One use of a unit: its backward begins once in a pass of autograd.
struct ReadWatch::Use {
  std::shared_ptr<Unit> unit;
  bool runs_forward = true;  // else it is of a part that runs again in backward
  OnceInAPass pass = {};
  std::int64_t part = nn::part;
  bool follows = std::exchange(part_has_unit, nn::part != 0);  // another unit in one of its parts

  void begin_backward() {
    if (pass.first()) pre_backward(unit);
  }
};

// What before() tells after(): the uses that this operation is a part of.
struct ReadWatch::Reads final : at::ObserverContext {
  explicit Reads(std::vector<std::shared_ptr<Use>> uses) : uses(std::move(uses)) {}
  std::vector<std::shared_ptr<Use>> uses;
};

// While it lives, this thread's operations are seen by `watch`. Autograd runs backward on it, also
// that of a device, in which a checkpoint reads parameters.
class ReadWatch::Active {
 public:
  explicit Active(ReadWatch& watch)
      : before_(active, &watch),
        handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&before, &after)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))),
        multithreading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    watch.unit_of_.clear();
    for (const Watched& watched : watch.watched_) {
      for (const at::Tensor& parameter : watched.parameters) {
        watch.unit_of_[parameter.storage().unsafeGetStorageImpl()] = &watched;
      }
    }
  }
  ~Active() {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(multithreading_);
    at::removeCallback(handle_);
  }
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

 private:
  ScopedValue<ReadWatch*> before_;
  at::CallbackHandle handle_;
  bool multithreading_;
};

at::Tensor ReadWatch::forward(const std::function<at::Tensor()>& body) {
  at::Tensor result;
  run([&] { result = body(); });
  return result;
}

void ReadWatch::run(const std::function<void()>& pass) {
  if (active == this) return pass();  // a model that evaluates inside its loss
  const Active here(*this);
  uses_.clear();
  running_ = {};
  error_ = nullptr;
  try {
    pass();
    end_uses();
  } catch (...) {
    if (!error_) throw;  // else it is what followed from the error of a hook
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// LibTorch turns an exception of a callback into a warning. So the exception is kept, and nothing
// more is gathered.
std::unique_ptr<at::ObserverContext> ReadWatch::before(const at::RecordFunction& operation) {
  if (active == nullptr || active->error_ || Unwatched::active()) return nullptr;
  Units units;
  for (const c10::IValue& input : operation.inputs()) active->add_units_of(input, units);
  if (units.empty()) return nullptr;
  try {
    in_backward() ? active->run_in_backward(units) : active->run_forward(units, operation);
  } catch (...) {
    active->error_ = std::current_exception();
    return nullptr;
  }
  return c10::GradMode::is_enabled() ? std::make_unique<Reads>(active->uses_) : nullptr;
}

void ReadWatch::after(const at::RecordFunction& operation, at::ObserverContext* reads) {
  if (reads == nullptr || active == nullptr) return;
  const auto& uses = static_cast<const Reads*>(reads)->uses;
  for (const c10::IValue& output : operation.outputs()) active->watch(output, uses);
}

void ReadWatch::add_units_of(const c10::IValue& value, Units& units) const {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = unit_of_.find(tensor.storage().unsafeGetStorageImpl());
    if (found != unit_of_.end() && !std::ranges::count(units, found->second)) {
      units.push_back(found->second);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) add_units_of(element, units);
  }
}

void ReadWatch::run_forward(const Units& units, const at::RecordFunction& operation) {
  const auto runs = [this](const Watched* watched) {
    return std::ranges::count(uses_, watched->unit, &Use::unit) > 0;
  };
  if (std::ranges::all_of(units, runs)) return read_on(*uses_.front());
  if (units.size() > 1 && c10::GradMode::is_enabled()) {
    throw Error(fmt::format(
        "{} reads parameters of {} units at once, and in backward only one is whole at a time: put "
        "them in one unit",
        operation.name(), units.size()));
  }
  end_uses();
  running_ = {};
  for (const Watched* watched : units) begin(watched->unit, /*runs_forward=*/true);
}

// A checkpoint in which another unit comes first runs that one between the backward of this one
// outside of it and that within.
void ReadWatch::read_on(Use& use) {
  if (use.part == part) return;
  UnitHooks* const hooks = use.unit->hooks();
  if (use.follows && hooks != nullptr && c10::GradMode::is_enabled()) hooks->runs_again(*use.unit);
  use.part = part;
  use.follows = std::exchange(part_has_unit, part != 0) || use.follows;
}

ReadWatch::Part::Part() : around_(part, part_has_unit) {
  part = ++parts;
  part_has_unit = false;
}

ReadWatch::Part::~Part() { std::tie(part, part_has_unit) = around_; }

// Nothing announces the backward of a function of the program's own, nor another part of a use
// after that of another unit. An operation that reads a unit whose backward does not run now begins
// it.
void ReadWatch::run_in_backward(const Units& units) {
  for (const Watched* watched : units) {
    const std::shared_ptr<Unit>& unit = watched->unit;
    const Running now = {torch::autograd::get_current_graph_task_id(), unit.get()};
    if (running_ != now || std::ranges::any_of(watched->parameters, memory::is_released)) {
      end_uses();
      const c10::NoGradGuard not_this_pass;  // a part that runs again records its graph, not this
      pre_backward(unit);
    }
    // A graph that is recorded here, of a checkpoint that runs again, has a backward of its own.
    const bool begins = !std::ranges::count(uses_, unit, &Use::unit);
    if (c10::GradMode::is_enabled() && begins) begin(unit, /*runs_forward=*/false);
  }
}

void ReadWatch::pre_backward(const std::shared_ptr<Unit>& unit) {
  if (active != nullptr) {
    active->end_uses();
    active->running_ = {torch::autograd::get_current_graph_task_id(), unit.get()};
  }
  if (unit->hooks() != nullptr) unit->hooks()->pre_backward(*unit);
}

void ReadWatch::begin(const std::shared_ptr<Unit>& unit, bool runs_forward) {
  if (UnitHooks* const hooks = unit->hooks()) {
    runs_forward ? hooks->pre_forward(*unit) : hooks->runs_again(*unit);
  }
  uses_.push_back(std::make_shared<Use>(Use{unit, runs_forward}));
}

void ReadWatch::end_uses() {
  for (const auto& use : std::exchange(uses_, {})) {
    UnitHooks* const hooks = use->unit->hooks();
    if (use->runs_forward && hooks != nullptr) hooks->post_forward(*use->unit);
  }
}

void ReadWatch::watch(const c10::IValue& output, const std::vector<std::shared_ptr<Use>>& uses) {
  if (output.isList()) {
    for (const c10::IValue& element : output.toListRef()) watch(element, uses);
    return;
  }
  if (!output.isTensor() || !output.toTensor().defined() || !output.toTensor().grad_fn()) return;
  before_backward(output.toTensor(), [uses] {
    for (const auto& use : uses) use->begin_backward();
  });
}

}  // namespace zero::nn
