// ZeRO-3 for a model of any shape. As autograd.cpp, but weights are gathered by unit, in hooks
// around a unit's forward and backward. The model has a unit inside a unit, a branch that rank 1
// skips, and a unit that runs twice. Plain DDP trains the same model, and ends with the same bits.

#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>

namespace {

using zero::dist::Communicator;
using zero::dist::Purpose;
using enum zero::memory::Category;

constexpr int kInputs = 12, kOutputs = 11, kLayers = 7, kBatch = 16, kSteps = 5;
// Rows and columns of each layer's weight: one row for each input, then the bias.
constexpr std::int64_t kShapes[][2] = {{kInputs + 1, 20}, {21, 24}, {25, 22},      {23, 22},
                                       {23, 18},          {19, 22}, {23, kOutputs}};

// The units and their layers. Inside a unit are those after it, up to its end.
enum { kRoot, kA, kB, kC, kUnits };
constexpr const char* kNames[] = {"root", "A", "B", "C"};
constexpr int kEnds[] = {kUnits, kC, kC, kUnits};
const std::vector<int> kLayersOf[] = {{0, 6}, {1, 3}, {2}, {4, 5}};

// The model. `Method` has the weights, and runs the body of a unit.
template <typename Method>
at::Tensor forward(Method& method, at::Tensor x, bool takes_branch) {
  const auto layer = [&](int i, const at::Tensor& x) {
    return at::cat({x, at::ones({x.size(0), 1})}, 1).mm(method.weights[i]).tanh();
  };
  return method.run(kRoot, [&] {
    x = layer(0, x);
    x = method.run(kA, [&] {
      x = layer(1, x);
      x = method.run(kB, [&] { return layer(2, x); });
      return takes_branch ? x + layer(3, x) : x;
    });
    for (int use = 0; use < 2; ++use) x = method.run(kC, [&] { return layer(5, layer(4, x)); });
    return layer(6, x);
  });
}

// Replaces the bytes under a tensor; what autograd has saved of it has the new ones, too.
void set_bytes(const at::Tensor& tensor, at::DataPtr bytes, std::size_t size) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(bytes));  // the old ones are freed
  storage->set_nbytes(size);
}
void release(const at::Tensor& tensor) { set_bytes(tensor, {nullptr, at::kCPU}, 0); }
void refill(const at::Tensor& tensor) {
  const std::size_t size = tensor.numel() * tensor.element_size();
  set_bytes(tensor, tensor.storage().allocator()->allocate(size), size);
  zero::memory::recharge(tensor, kParameters);  // the allocator counts bytes by category
}

// Another tensor with the same bytes, a write to which autograd does not see.
at::Tensor raw(const at::Tensor& tensor) { return tensor.variable_data(); }

std::vector<at::Tensor> first_weights() {
  std::vector<at::Tensor> weights;
  for (int layer = 0; layer < kLayers; ++layer) {
    at::manual_seed(layer);  // the same weights on every rank
    weights.push_back(at::randn(kShapes[layer]).mul_(0.2).requires_grad_());
    zero::memory::recharge(weights[layer], kParameters);
  }
  return weights;
}

// Decides when the weights of a unit are gathered, dropped and reduced.
struct Zero3 {
  explicit Zero3(Communicator& all) : ranks(all) {
    for (int unit = 0; unit < kUnits; ++unit) drop(unit);
  }

  at::Tensor run(int unit, const std::function<at::Tensor()>& body) {
    gather(unit);
    ++uses[unit];
    at::Tensor y = body();
    if (unit != kRoot) drop(unit);  // backward begins with the root
    // A view has an operation of its own: the unit's last in forward, and so the first in backward.
    y = y.view_as(y);
    y.register_hook([this, unit](const at::Tensor& /*gradient*/) { begin_backward(unit); });
    return y;
  }

  void end_backward() { leave_units_for(kUnits); }

  // The owners of a unit's weights send them to all, if the unit is not whole.
  void gather(int unit) {
    if (std::exchange(is_whole[unit], true)) return;
    calls += fmt::format(" gather {}", kNames[unit]);
    for (const int layer : kLayersOf[unit]) {
      if (!owns(layer)) refill(weights[layer]);
      ranks.broadcast(raw(weights[layer]), owner(layer), Purpose::kParameter).wait();
    }
  }

  int owner(int layer) const { return layer % ranks.size(); }
  bool owns(int layer) const { return owner(layer) == ranks.rank(); }

  void drop(int unit) {
    is_whole[unit] = false;
    for (const int layer : kLayersOf[unit]) {
      if (!owns(layer)) release(weights[layer]);
    }
  }

  // Called for each use of a unit, before the first operation of its backward.
  void begin_backward(int unit) {
    leave_units_for(unit);
    gather(unit);
    in_backward.push_back(unit);
  }

  // The backward of the units that are not around `unit` is over.
  void leave_units_for(int unit) {
    while (!in_backward.empty() && !is_around(in_backward.back(), unit)) {
      const int over = in_backward.back();
      in_backward.pop_back();
      if (--uses[over] > 0) continue;  // another use reads the weights, and adds to the gradients
      drop(over);
      reduce(over);
    }
  }

  // Sends the gradients of a unit to their owners.
  void reduce(int unit) {
    calls += fmt::format(" reduce {}", kNames[unit]);
    for (const int layer : kLayersOf[unit]) {
      at::Tensor& gradient = weights[layer].mutable_grad();
      // This rank's batch has not used the weight. Other batches may have.
      if (!gradient.defined()) gradient = at::zeros(kShapes[layer]);
      ranks.reduce(gradient, owner(layer), Purpose::kGradient).wait();
      if (!owns(layer)) gradient.reset();  // only the owner will use it
    }
  }

  static bool is_around(int outer, int unit) { return outer < unit && unit < kEnds[outer]; }

  Communicator& ranks;
  std::vector<at::Tensor> weights = first_weights();
  std::string calls = {};  // the collectives, by unit
  bool is_whole[kUnits] = {};
  int uses[kUnits] = {};              // whose backward is not over
  std::vector<int> in_backward = {};  // units, each inside the one before
};

// Plain DDP: every rank holds everything.
struct Ddp {
  at::Tensor run(int /*unit*/, const std::function<at::Tensor()>& body) { return body(); }
  void end_backward() {
    for (const at::Tensor& weight : weights) {
      at::Tensor& gradient = weight.mutable_grad();
      if (!gradient.defined()) gradient = at::zeros_like(weight);
      ranks.all_reduce(gradient, Purpose::kGradient).wait();
      calls += " all-reduce";
    }
  }
  void gather(int /*unit*/) {}
  bool owns(int /*layer*/) const { return true; }

  Communicator& ranks;
  std::vector<at::Tensor> weights = first_weights();
  std::string calls = {};
};

// What each rank runs. Returns its rows of the table that main() prints.
template <typename Method>
std::string train(Communicator& ranks, const std::string& name) {
  Method method{ranks};
  const int rank = ranks.rank();
  std::string rows;
  for (int step = 1; step <= kSteps; ++step) {
    zero::memory::reset_peaks();
    method.calls.clear();
    at::manual_seed(1000 * step + rank);  // another batch on every rank
    const at::Tensor x = at::randn({kBatch, kInputs}), targets = x.narrow(1, 0, kOutputs).sin();
    const at::Tensor loss = (forward(method, x, rank != 1) - targets).square().mean();
    loss.backward();
    method.end_backward();
    for (int layer = 0; layer < kLayers; ++layer) {  // the next gather brings the new weight
      const at::Tensor& weight = method.weights[layer];
      if (method.owns(layer)) raw(weight).sub_(weight.grad(), /*alpha=*/0.3);
      weight.mutable_grad().reset();
    }
    const auto held = zero::memory::snapshot();
    rows += fmt::format("{:4} {:5} {:5} {:9.6f} {:11} {:7}\n", rank, name, step,
                        loss.item<double>(), held[kParameters], held.peak_of(kParameters));
  }
  rows += fmt::format("{:4} {:5} calls{}\n", rank, name, method.calls);
  for (int unit = 0; unit < kUnits; ++unit) method.gather(unit);
  std::size_t digest = 0;
  for (const at::Tensor& weight : method.weights) {
    const auto* const bits = static_cast<const char*>(weight.const_data_ptr());
    digest = 31 * digest + std::hash<std::string_view>()({bits, weight.nbytes()});
  }
  return rows + fmt::format("{:4} {:5} digest of the weights {:016x}\n", rank, name, digest);
}

}  // namespace

int main(int argc, char** argv) {
  zero::memory::install();  // the allocator that counts, before there is a tensor
  zero::dist::LaunchOptions options;
  if (argc > 1 && std::atoi(argv[1]) > 0) options.world_size = std::atoi(argv[1]);  // else 2
  const auto exits = zero::dist::launch_ranks(options, [](Communicator& ranks) {
    return train<Zero3>(ranks, "zero3") + train<Ddp>(ranks, "ddp");
  });
  zero::dist::check_all_well(exits);
  fmt::print("rank        step      loss  parameters    peak (bytes)\n");
  for (const auto& exit : exits) fmt::print("{}", exit.result);
}
