#include <ATen/ops/empty.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <zero/base/atomic_file.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/checkpoint_parts.hpp>
#include <zero/io/save_model.hpp>
#include <zero/memory/charge.hpp>
#include <zero/train/unsharded_parameters.hpp>

namespace zero::io {
namespace {

// The files of one save, on rank 0 only. An error is kept for later: the other ranks are in the
// middle of collectives and would wait forever.
class Files {
 public:
  Files(bool writes, const std::filesystem::path& folder, const nn::ParameterList& list,
        std::int64_t max_bytes, const std::string& config)
      : writes_(writes) {
    attempt([&] {
      std::vector<safetensors::Spec> specs;
      for (const nn::Parameter& p : list.parameters) {
        specs.push_back({p.name, p.tensor.scalar_type(), p.whole_sizes()});
      }
      weights_.emplace(folder, specs, max_bytes);
      config_.emplace(folder / "config.json", static_cast<std::int64_t>(config.size()));
      config_->write(config.data(), static_cast<std::int64_t>(config.size()), /*offset=*/0);
    });
  }

  void write(const std::string& name, const at::Tensor& tensor) {
    attempt([&] { weights_->write(name, tensor); });
  }

  void finish() {
    attempt([&] {
      config_->complete();
      weights_->finish();
      config_->publish();
    });
  }

  /// Throws the error of rank 0, if any, on all ranks.
  void throw_same_error_everywhere(dist::Communicator& ranks) const {
    const std::string problem = ranks.exchange(problem_).front();
    if (!problem.empty()) throw Error("the model could not be saved: " + problem);
  }

 private:
  void attempt(const std::function<void()>& action) {
    if (!writes_ || !problem_.empty()) return;
    try {
      action();
    } catch (const std::exception& error) {
      problem_ = message_of(error);
    }
  }

  bool writes_;
  std::string problem_;
  std::optional<safetensors::FolderWriter> weights_;
  std::optional<base::AtomicFile> config_;
};

// Brings the whole model to rank 0, one parameter at a time.
class Collector {
 public:
  explicit Collector(train::Strategy& strategy)
      : strategy_(strategy),
        stage_(strategy.stage_of_model()),
        pipeline_(strategy.mesh().pipeline()),
        index_(stage_.whole().size(), kNone),
        owner_(stage_.whole().size(), 0) {
    std::vector<double> has(index_.size(), 0);
    for (std::size_t i = 0; i < strategy.list().size(); ++i) {
      if (stage_.is_copy(i)) continue;
      index_[stage_.place(i)] = i;
      has[stage_.place(i)] = 1;
    }
    const std::vector<double> all = dist::all_gather_scalars(pipeline_, has);
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k] != 0) owner_[k % has.size()] = static_cast<int>(k / has.size());
    }
  }

  /// Parameter `g` of the whole model, on rank 0; undefined on others. Called by all ranks, unit by
  /// unit.
  at::Tensor collect(std::size_t g) {
    const bool has = index_[g] != kNone;
    if (has) unshard(strategy_.list().parameters[index_[g]].unit);
    if (strategy_.communicator().rank() != 0) return {};
    at::Tensor whole;
    if (has) {
      // The tensor axis of rank 0 has the same as the others.
      const nn::Parameter& p = strategy_.list().parameters[index_[g]];
      whole = p.placement.whole_of(p.tensor);
    }
    if (owner_[g] == 0) return whole;
    if (strategy_.mesh().tensor().rank() != 0) return {};
    if (has) pipeline_.send(whole, 0, dist::Purpose::kParameter).wait();
    return pipeline_.rank() == 0 ? receive(g) : at::Tensor();
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  void unshard(std::size_t unit) {
    if (unit == unit_) return;
    unsharded_.reset();
    unsharded_ = std::make_unique<train::UnshardedParameters>(strategy_, unit);
    unit_ = unit;
  }

  at::Tensor receive(std::size_t g) const {
    const memory::Charge charge(memory::Category::kCommunication);
    const nn::Parameter& p = stage_.whole().parameters[g];
    const at::Device device = strategy_.list().parameters.front().tensor.device();
    at::Tensor whole = at::empty(p.whole_sizes(), p.tensor.options().device(device));
    pipeline_.recv(whole, owner_[g], dist::Purpose::kParameter).wait();
    return whole;
  }

  train::Strategy& strategy_;
  const train::StageOfModel& stage_;
  dist::Communicator& pipeline_;
  std::vector<std::size_t> index_;  // by parameter of the whole model: in this rank's list
  std::vector<int> owner_;          // the same: the stage that has it
  std::unique_ptr<train::UnshardedParameters> unsharded_;
  std::size_t unit_ = kNone;
};

}  // namespace

void save_model(train::Strategy& strategy, const nlohmann::json& config,
                const std::filesystem::path& folder, std::int64_t max_bytes) {
  const dist::CallScope call(strategy.mesh().world(), "io::save_model");
  dist::Communicator& ranks = strategy.mesh().world();
  const nn::ParameterList& whole = strategy.stage_of_model().whole();
  Files files(ranks.rank() == 0, folder, whole, max_bytes, config.dump(2) + "\n");
  files.throw_same_error_everywhere(ranks);
  dist::on_all_ranks(ranks, "the model is not saved", [&] {
    checkpoint::check_weights(strategy);
    return std::string();
  });
  {
    Collector collector(strategy);
    for (const nn::UnitInfo& unit : whole.units) {
      for (const std::size_t g : unit.parameters) {
        const at::Tensor tensor = collector.collect(g);
        files.write(whole.parameters[g].name, tensor);
      }
      // No rank waits for longer than one unit takes to be written.
      if (strategy.mesh().pipeline().size() > 1) ranks.barrier();
    }
  }
  files.finish();
  files.throw_same_error_everywhere(ranks);
}

}  // namespace zero::io
