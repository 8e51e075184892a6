#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <zero/base/atomic_file.hpp>
#include <zero/base/error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/checkpoint_parts.hpp>
#include <zero/io/save_model.hpp>
#include <zero/io/whole_parameters.hpp>

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
    WholeParameters parameters(strategy, WholeOn::kFirstRank);
    for (const nn::UnitInfo& unit : whole.units) {
      for (const std::size_t g : unit.parameters) {
        const at::Tensor tensor = parameters.collect(g);
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
