#include "parameters_in_file.hpp"

#include <ATen/ops/full.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <07_zero_plus_plus/finish_work.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/memory/storage.hpp>
#include <zero/optim/optimizer_around.hpp>

#include "tile_file.hpp"

namespace zero {
namespace {

constexpr const char* kInFile = "this shard of parameters is in a file (offload_parameters)";
constexpr const char* kNeeds =
    "offload_parameters needs stage 3, a model on the CPU and a mesh of the axis \"data\" alone";

at::Tensor values_in(const at::Tensor& bytes, const at::Tensor& shard) {
  return bytes.narrow(0, 0, static_cast<std::int64_t>(shard.nbytes())).view(shard.scalar_type());
}

struct Updated {
  at::Tensor parameter;
  at::Tensor held;  // the same
};

Updated as_it_is(const at::Tensor& parameter) { return {parameter, parameter}; }

// This rank's shards, each in a slot of a file, and the optimizer, which updates slot by slot.
// After an error the shards are lost until a checkpoint is loaded.
class ShardsInFile final : public optim::OptimizerAround<Updated> {
 public:
  ShardsInFile(const optim::OptimizerFactory& make, const std::vector<at::Tensor>& parameters,
               const optim::OffloadOptions& place)
      : OptimizerAround(make, parameters, &as_it_is), file_(place, memory::Category::kParameters) {}
  void belong_to(train::Strategy& strategy) { strategy_ = &strategy; }

  // Returns the slot. take() follows, in the same order: from then on the shard has bytes only
  // while it is shown.
  std::size_t add(std::int64_t bytes) {
    file_.add(bytes);
    return file_.size() - 1;
  }
  void take(std::size_t slot, const at::Tensor& shard) {
    put(slot, shard);
    memory::release_storage(shard, kInFile);
    shards_.push_back(shard);
  }
  // These two keep an error, because other ranks have not heard of it.
  void put(std::size_t slot, const at::Tensor& values) {
    or_lose([&] { values_in(file_.lend(slot), values).copy_(values); });
  }
  void get(std::size_t slot, const at::Tensor& values) {
    or_lose([&] { values.copy_(values_in(file_.read(slot), values)); });
  }
  // Gives the shard its bytes until the next call. Where weights are refused it is a load that
  // asks: it writes all of them.
  void show(std::size_t slot) {
    if (shown_.is_same(shards_[slot])) return;
    if (weights_are_refused()) problem_.clear();
    or_lose([&] { show(slot, file_.lend(slot)); });
    verify();
  }

  bool are_lost() const { return !problem_.empty(); }
  void verify() const {
    if (are_lost()) throw Error(problem_);
  }
  // Called by all ranks if one has lost its shards. Of several gathers in flight the first throws.
  void fail() {
    if (weights_are_refused()) return;
    strategy_->change_on_all_ranks("parameters in files are lost, load a checkpoint",
                                   [this] { verify(); });
  }

  void step() override {
    std::map<std::size_t, Gradients> due;  // by slot
    for (const Updated& u : slots_) {
      const at::Tensor gradient = std::exchange(u.parameter.mutable_grad(), at::Tensor());
      if (gradient.defined()) due[slot_of(u.parameter)].emplace_back(u.parameter, gradient);
    }
    const auto end = c10::make_scope_exit([&] {
      for (const auto& [slot, gradients] : due) give(gradients);
    });
    std::vector<std::size_t> slots;
    for (const auto& [slot, gradients] : due) {
      if (slot < shards_.size()) slots.push_back(slot);
    }
    or_lose([&] {
      file_.stream(slots, [&](std::size_t slot, const at::Tensor& bytes) {
        show(slot, bytes);
        update(due.at(slot));
        hide();
      });
      update(due[shards_.size()]);
    });
    verify();
  }

  bool is_offloaded() const override { return true; }
  optim::OffloadTraffic offload_traffic() const override {
    return inner_->offload_traffic() += file_.traffic();
  }
  std::int64_t buffer_bytes() const { return file_.resident_bytes(); }

 private:
  using Gradients = std::vector<std::pair<at::Tensor, at::Tensor>>;  // with their parameters

  static void give(const Gradients& gradients) {
    for (const auto& [parameter, gradient] : gradients) parameter.mutable_grad() = gradient;
  }
  void update(const Gradients& gradients) {
    give(gradients);
    inner_->step();
    for (const auto& [parameter, gradient] : gradients) parameter.mutable_grad().reset();
  }
  // The number of slots if its shard is in memory.
  std::size_t slot_of(const at::Tensor& part) const {
    const auto of = [](const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); };
    return static_cast<std::size_t>(std::ranges::find(shards_, of(part), of) - shards_.begin());
  }
  void or_lose(const std::function<void()>& work) {
    if (are_lost()) return;
    hide();
    try {
      work();
    } catch (const std::exception& error) {
      problem_ = message_of(error);
      hide();
      file_.forget();
    }
  }
  void show(std::size_t slot, const at::Tensor& bytes) {
    memory::borrow_storage(shards_[slot], values_in(bytes, shards_[slot]));
    shown_ = shards_[slot];
  }
  void hide() {
    if (shown_.defined()) memory::release_storage(std::exchange(shown_, at::Tensor()), kInFile);
  }
  bool weights_are_refused() const {
    const auto verifies = [this] { return strategy_->verify_weights(), std::string(); };
    return dist::is_error(dist::answer_of(verifies));
  }

  optim::TileFile file_;
  std::vector<at::Tensor> shards_;  // by slot
  at::Tensor shown_;
  std::string problem_;
  train::Strategy* strategy_ = nullptr;
};

// An all-gather from the slots of all ranks.
class ParametersInFile final : public train::ParameterTransfer {
 public:
  ParametersInFile(ShardsInFile& shards, dist::Communicator& ranks, std::int64_t shard_bytes)
      : shards_(shards),
        ranks_(ranks),
        values_(ranks, shard_bytes, /*ranks_outside=*/0, /*fills_own_part=*/false),
        slot_(shards.add(shard_bytes)) {}

  dist::Work gather(const at::Tensor& full, const at::Tensor& /*shard*/) override {
    shards_.get(slot_, mine_of(full));
    const at::Tensor lost = at::full({ranks_.size()}, shards_.are_lost(), at::kByte);
    const auto told = std::make_shared<dist::Work>(
        ranks_.all_gather(lost, mine_of(lost), dist::Purpose::kControl));
    return finish_with(values_.gather(full, mine_of(full)), [this, told, lost] {
      told->wait();
      if (lost.any().item<bool>()) shards_.fail();
    });
  }
  bool takes(const at::Tensor& shard) override {
    shards_.take(slot_, shard);
    return true;
  }
  void bring(const at::Tensor& /*shard*/) override { shards_.show(slot_); }
  void written(const at::Tensor& full) override { shards_.put(slot_, mine_of(full)); }
  // The first slot answers for the file.
  std::int64_t held_bytes() const override { return slot_ == 0 ? shards_.buffer_bytes() : 0; }
  train::SentBytes sent(std::int64_t gathers) const override { return values_.sent(gathers); }

 private:
  at::Tensor mine_of(const at::Tensor& full) const {
    return full.view({ranks_.size(), -1})[ranks_.rank()];
  }

  ShardsInFile& shards_;
  dist::Communicator& ranks_;
  train::AllGather values_;
  std::size_t slot_;
};

}  // namespace

std::unique_ptr<ShardedDataParallel> make_parameters_in_file(train::StrategyArguments arguments,
                                                             const ShardingOptions& options,
                                                             const optim::OffloadOptions& place) {
  dist::Communicator& ranks = arguments.mesh.data();
  if (options.stage != 3 || arguments.mesh.world().size() != ranks.size()) throw Error(kNeeds);
  const auto shards = std::make_shared<ShardsInFile*>();  // the strategy's optimizer
  arguments.optimizer = [shards, place, make = arguments.optimizer](const auto& parameters) {
    auto made = std::make_unique<ShardsInFile>(make, parameters, place);
    *shards = made.get();
    return made;
  };
  train::Transfers transfers;
  transfers.parameters = [shards, &ranks](const train::FlatBuffer& buffer) {
    if (!buffer.options.device().is_cpu()) throw Error(kNeeds);
    return std::make_unique<ParametersInFile>(
        **shards, ranks, buffer.layout.shard() * buffer.options.dtype().itemsize());
  };
  auto strategy = std::make_unique<ShardedDataParallel>(arguments, options, std::move(transfers));
  dist::run_on_all_ranks(ranks, "parameters cannot be offloaded", [&] { (*shards)->verify(); });
  (*shards)->belong_to(*strategy);
  return strategy;
}

}  // namespace zero
