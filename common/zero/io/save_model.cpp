#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>

#include <zero/base/atomic_file.hpp>
#include <zero/base/kept_error.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/save_model.hpp>
#include <zero/io/weights_fit.hpp>
#include <zero/io/whole_values.hpp>
#include <zero/safetensors/format.hpp>
#include <zero/safetensors/writer.hpp>

namespace zero::io {

void save_model(train::Strategy& strategy, const nlohmann::json& config,
                const std::filesystem::path& folder) {
  dist::Communicator& ranks = strategy.mesh().world();
  const dist::CallScope call(ranks, "io::save_model");
  const nn::ParameterList& whole = strategy.stage_of_model().whole();
  const std::string text = config.dump(2) + "\n";
  const auto length = static_cast<std::int64_t>(text.size());
  const bool writes = ranks.rank() == 0;
  std::optional<safetensors::Writer> weights;
  std::optional<base::AtomicFile> config_file;
  constexpr const char* kFailure = "the model could not be saved";
  dist::run_on_all_ranks(ranks, kFailure, [&] {
    check_weights(strategy);
    if (!writes) return;
    std::error_code ignored;  // the write that follows reports the error
    std::filesystem::create_directories(folder, ignored);
    weights.emplace(folder / safetensors::kSingleFile, specs_of(whole),
                    safetensors::Metadata{{"format", "pt"}});
    config_file.emplace(folder / "config.json", length);
    config_file->write(text.data(), length, /*offset=*/0);
  });
  base::KeptError problem;
  whole_values(strategy, WholeOn::kFirstRank, [&](std::size_t g, const at::Tensor& tensor) {
    if (problem.is_there()) return;
    problem.keep([&] { weights->write(whole.parameters[g].name, tensor); });
  });
  dist::run_on_all_ranks(ranks, kFailure, [&] {
    problem.rethrow();
    if (!writes) return;
    config_file->complete();
    weights->finish();
    config_file->publish();
  });
}

}  // namespace zero::io
