#include "03h.hpp"

using exercise_03h::kRoot;
using exercise_03h::Method;
using exercise_03h::Units;
using zero::dist::Communicator;
using zero::dist::Purpose;

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
}

// Another tensor with the same bytes, a write to which autograd does not see.
at::Tensor raw(const at::Tensor& tensor) { return tensor.variable_data(); }

// How often a weight is registered, if these are the parameters of a module.
auto places(const at::Tensor& weight, const std::vector<at::Tensor>& in) {
  return std::count_if(in.begin(), in.end(), [&](auto& other) { return other.is_same(weight); });
}

// Decides when the weights of a unit are gathered, dropped and reduced.
struct Zero3 final : Method {
  Zero3(Communicator& all, const Units& modules)
      : ranks(all), units(modules), weights_of(size()), is_whole(size()), uses(size()) {
    for (const at::Tensor& weight : units[kRoot]->parameters()) {
      if (places(weight, weights) > 0) continue;  // tied, and known
      weights_of[unit_of(weight)].push_back(static_cast<int>(weights.size()));
      weights.push_back(weight);
    }
    for (int unit = 0; unit < size(); ++unit) drop(unit);
  }

  at::Tensor run(int unit, const std::function<at::Tensor()>& body) override {
    gather(unit);
    ++uses[unit];
    at::Tensor y = body();
    if (unit != kRoot) drop(unit);  // backward begins with the root
    // A view has an operation of its own: the unit's last in forward, and so the first in backward.
    y = y.view_as(y);
    y.register_hook([this, unit](const at::Tensor& /*gradient*/) { begin_backward(unit); });
    return y;
  }

  void end_backward() override {
    leave_units_for(kRoot);  // no unit is around the root
  }

  void update(double rate) override {
    for (int i = 0; i < static_cast<int>(weights.size()); ++i) {
      if (owns(i)) raw(weights[i]).sub_(weights[i].grad(), rate);
      weights[i].mutable_grad().reset();
    }
  }

  // The owners of a unit's weights send them to all, if the unit is not whole.
  void gather(int unit) {
    if (is_whole[unit]) return;
    is_whole[unit] = true;
    for (const int i : weights_of[unit]) {
      if (!owns(i)) refill(weights[i]);
      ranks.broadcast(raw(weights[i]), owner(i), Purpose::kParameter).wait();
    }
  }

  int owner(int weight) const { return weight % ranks.size(); }
  bool owns(int weight) const { return owner(weight) == ranks.rank(); }

  void drop(int unit) {
    is_whole[unit] = false;
    for (const int i : weights_of[unit]) {
      if (!owns(i)) release(weights[i]);
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
    for (const int i : weights_of[unit]) {
      at::Tensor& gradient = weights[i].mutable_grad();
      // This rank's batch has not used the weight. Other batches may have.
      if (!gradient.defined()) gradient = at::zeros(weights[i].sizes());
      ranks.reduce(gradient, owner(i), Purpose::kGradient).wait();
      if (!owns(i)) gradient.reset();  // only the owner will use it
    }
  }

  int size() const { return static_cast<int>(units.size()); }

  bool is_around(int outer, int unit) const {
    const auto inside = units[outer]->modules(/*include_self=*/false);
    return std::find(inside.begin(), inside.end(), units[unit]) != inside.end();
  }

  // The innermost unit in which a weight is registered as often as in the whole model.
  int unit_of(const at::Tensor& weight) const {
    int unit = size() - 1;
    const auto all = places(weight, units[kRoot]->parameters());
    while (places(weight, units[unit]->parameters()) < all) --unit;
    return unit;
  }

  Communicator& ranks;
  const Units units;
  std::vector<at::Tensor> weights = {};
  std::vector<std::vector<int>> weights_of;  // by unit
  std::vector<bool> is_whole;
  std::vector<int> uses;              // whose backward is not over
  std::vector<int> in_backward = {};  // units, each inside the one before
};

std::unique_ptr<Method> zero3(Communicator& ranks, const Units& units) {
  return std::make_unique<Zero3>(ranks, units);
}
