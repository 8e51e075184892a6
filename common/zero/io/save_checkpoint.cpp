#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include <zero/base/atomic_file.hpp>
#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/checkpoint_files.hpp>
#include <zero/io/checkpoint_parts.hpp>
#include <zero/io/held_folders.hpp>
#include <zero/io/save_checkpoint.hpp>
#include <zero/memory/storage.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::io {

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

// By parameter of the whole model.
std::vector<Holding> holdings_of(train::Strategy& strategy) {
  const train::StageOfModel& stage = strategy.stage_of_model();
  std::vector<Holding> holdings(stage.whole().size());
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    if (stage.is_copy(i)) continue;  // the stage that trains it writes it
    const train::ParameterShard piece = strategy.piece(i);
    Holding h{range_of(piece),
              range_of(strategy.local_shard(i)),
              0,
              {},
              strategy.list().parameters[i].placement.part()};
    if (piece.tensor.defined()) {
      h.steps = strategy.optimizer().steps(piece.tensor);
      for (const auto& [name, dtype] : strategy.optimizer().state_types(piece.tensor)) {
        h.states[name] = c10::toString(dtype);
      }
    }
    holdings[stage.place(i)] = std::move(h);
  }
  return holdings;
}

// What to write; all ranks compute the same.
Manifest plan(train::Strategy& strategy, const CheckpointInfo& info,
              const std::vector<std::string>& holdings) {
  Manifest manifest{"", info, parameters_of(strategy), saved_buffers(buffers_of(strategy)), {}};
  manifest.info.world_size = strategy.mesh().world().size();
  manifest.info.optimizer = strategy.optimizer().settings();
  std::vector<std::vector<Holding>> by_rank;
  for (const std::string& text : holdings) by_rank.push_back(holdings_from(text));
  for (std::size_t i = 0; i < manifest.parameters.size(); ++i) {
    std::vector<Holding> of_this;
    for (const auto& all : by_rank) of_this.push_back(all.at(i));
    assign_runs(manifest.parameters[i], of_this);
  }
  return manifest;
}

using Visit = std::function<void(const std::string& name, const at::Tensor& tensor)>;

// The states of a parameter, or tensors of their sizes and dtypes without bytes.
std::map<std::string, at::Tensor> states_of(const optim::Optimizer& optimizer,
                                            const at::Tensor& parameter, bool with_bytes) {
  if (with_bytes) return optimizer.state(parameter);
  std::map<std::string, at::Tensor> states;
  for (const auto& [name, dtype] : optimizer.state_types(parameter)) {
    states[name] = memory::without_storage({parameter.numel()}, dtype);
  }
  return states;
}

// Visits the tensors of this rank's file. States that come from a disk live as long as their
// parameter is visited.
void visit_tensors(train::Strategy& strategy, const Manifest& manifest, bool with_bytes,
                   const Visit& visit) {
  const int rank = strategy.mesh().world().rank();
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const SavedParameter& p = manifest.parameters[strategy.stage_of_model().place(i)];
    for (const RankRange& run : p.runs) {
      if (run.rank != rank) continue;
      const train::ParameterShard piece = strategy.piece(i);
      const train::ParameterShard& values =
          piece.tensor.defined() ? piece : strategy.local_shard(i);
      visit(stored_name(kParameterKind, p.name), flat(values).tensor);
      if (!piece.tensor.defined()) continue;
      for (const auto& [name, state] : states_of(strategy.optimizer(), piece.tensor, with_bytes)) {
        visit(stored_name(name, p.name), state);
      }
    }
  }
  for (const auto& [name, buffer] : buffers_of(strategy)) {
    visit(stored_name(kBufferKind, name), buffer);
  }
}

// How far the thread of a PendingCheckpoint is.
constexpr double kWriting = 0;
constexpr double kWritten = 1;
constexpr double kFailed = 2;

// `visit_all(with_bytes, visit)` shows what goes into the file. Returns "LENGTH SHA-256", or "" if
// this rank has nothing to write.
std::string write_file(const fs::path& path,
                       const std::function<void(bool with_bytes, const Visit&)>& visit_all) {
  std::vector<safetensors::Spec> specs;
  visit_all(false, [&](const std::string& name, const at::Tensor& tensor) {
    specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  });
  if (specs.empty()) return "";
  safetensors::Writer writer(path, specs, {{"format", "zero checkpoint"}});
  visit_all(true,
            [&](const std::string& name, const at::Tensor& tensor) { writer.write(name, tensor); });
  writer.finish();
  const Fingerprint written = fingerprint(path);
  return fmt::format("{} {}", written.bytes, written.sha256);
}

void note_files(Manifest& manifest, const std::vector<std::string>& written) {
  for (std::size_t rank = 0; rank < written.size(); ++rank) {
    SavedFile file{static_cast<int>(rank), "", 0, ""};
    file.name = rank_file_name(file.rank, manifest.info.world_size);
    std::istringstream text(written[rank]);
    if (text >> file.bytes >> file.sha256) manifest.files.push_back(file);
  }
}

// Rank 0, before anything is created: a manifest.json of another program must not be lost.
void check_place(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  if (!fs::exists(fs::symlink_status(path))) return;
  const std::string text = base::read_file(path, path.string());
  if (text.find("\"zero checkpoint\"") == std::string::npos) {
    throw Error(fmt::format("{}: is not of a checkpoint; choose another folder", path.string()));
  }
}

// Rank 0: the checkpoint in the folder, if it is one that can be loaded.
std::optional<Manifest> current(const fs::path& folder) {
  if (!fs::exists(folder / kManifestFile)) return std::nullopt;
  const std::string text = base::read_file(folder / kManifestFile, "");
  try {
    return manifest_from(text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Rank 0: makes the new checkpoint the current one.
void commit(const fs::path& folder, const Manifest& manifest, int keep) {
  base::sync_folder(folder / manifest.folder);
  base::sync_folder(folder);
  // A manifest that the new one does not replace.
  if (const auto before = keep > 1 ? current(folder) : std::nullopt) {
    base::write_file(folder / older_manifest_name(before->folder), to_text(*before));
  }
  base::write_file(folder / kManifestFile, to_text(manifest));
}

// Rank 0, after a commit: removes all but the last `keep` checkpoints.
void remove_older(const fs::path& folder, const std::string& newest, int keep) {
  std::vector<std::string> older = older_checkpoints(folder);
  older.resize(std::min(older.size(), static_cast<std::size_t>(keep - 1)));
  std::set<std::string> kept(older.begin(), older.end());
  kept.insert(newest);
  remove_step_folders(folder, kept);
}

// Rank 0, after a failure: removes the unfinished step folder, unless the manifest that names it is
// there and only a later action failed.
void give_up(const fs::path& folder, const std::string& step_folder) {
  const auto now = current(folder);
  if (!now || now->folder != step_folder) remove_step_folder(folder / step_folder);
}

std::string described(const CheckpointInfo& info) {
  Manifest manifest;
  manifest.info = info;
  manifest.info.optimizer = {};
  return to_text(manifest);
}

std::string failure(const fs::path& folder) {
  return fmt::format("the checkpoint {} cannot be saved", folder.string());
}

// Everything before a file is written: makes the manifest, which says what each rank's file will
// hold, and the folder for the files.
Manifest prepare(train::Strategy& strategy, const fs::path& folder, const CheckpointInfo& info,
                 int keep, const std::string& when) {
  dist::Communicator& ranks = strategy.mesh().world();
  const auto holdings = on_all_ranks(ranks, failure(folder), [&] {
    check_info(info);
    if (keep < 1) throw Error(fmt::format("keep the last {} checkpoints: 1 is the least", keep));
    if (strategy.optimizer().settings().kind.empty()) {
      throw Error(
          "this optimizer does not show all of its state; our own and those of optim::wrap() do");
    }
    check_weights(strategy);
    return to_text(holdings_of(strategy));
  });
  dist::verify_same(ranks, "what the checkpoint notes of the run",
                    fmt::format("{}{}, keep {}", described(info), when, keep));
  strategy.verify_writes();
  Manifest manifest;
  manifest.folder = on_all_ranks(ranks, failure(folder), [&] {
                      manifest = plan(strategy, info, holdings);
                      if (ranks.rank() != 0) return std::string();
                      check_place(folder);
                      hold_folder(folder, strategy);
                      return make_step_folder(folder, info.step);
                    }).front();
  return manifest;
}

// The rest: `write` gives what write_file() returns.
void complete(dist::Communicator& ranks, const fs::path& folder, Manifest manifest, int keep,
              const std::function<std::string()>& write) {
  const bool first = ranks.rank() == 0;
  try {
    note_files(manifest, on_all_ranks(ranks, failure(folder), write));
    run_on_all_ranks(ranks, failure(folder), [&] {
      if (first) commit(folder, manifest, keep);
    });
  } catch (...) {
    if (first) give_up(folder, manifest.folder);
    throw;
  }
  if (first) remove_older(folder, manifest.folder, keep);
  ranks.barrier();
}

fs::path file_of(dist::Communicator& ranks, const fs::path& folder, const Manifest& manifest) {
  return folder / manifest.folder / rank_file_name(ranks.rank(), ranks.size());
}

}  // namespace

void save_checkpoint(train::Strategy& strategy, const fs::path& folder, const CheckpointInfo& info,
                     int keep) {
  dist::Communicator& ranks = strategy.mesh().world();
  const dist::CallScope call(ranks, "io::save_checkpoint");
  const Manifest manifest = prepare(strategy, folder, info, keep, "");
  complete(ranks, folder, manifest, keep, [&] {
    return write_file(file_of(ranks, folder, manifest), [&](bool with_bytes, const Visit& visit) {
      visit_tensors(strategy, manifest, with_bytes, visit);
    });
  });
}

struct PendingCheckpoint::State {
  fs::path folder;
  int keep;
  Manifest manifest;
  safetensors::NamedTensors tensors;
  std::string answer;  // of the thread
  std::atomic<double> progress = kWriting;
  std::string lost;                        // what is to be said if finish() is not called
  std::unique_ptr<Unfinished> unfinished;  // until then
};

PendingCheckpoint::PendingCheckpoint(train::Strategy& strategy, const fs::path& folder,
                                     const CheckpointInfo& info, int keep)
    : ranks_(strategy.mesh().world()), state_(std::make_unique<State>()) {
  const dist::CallScope call(ranks_, "io::PendingCheckpoint");
  State& state = *state_;
  state.folder = folder;
  state.keep = keep;
  state.manifest = prepare(strategy, folder, info, keep, "while training goes on");
  run_on_all_ranks(ranks_, failure(folder), [&] {
    visit_tensors(strategy, state.manifest, /*with_bytes=*/true,
                  [&](const std::string& name, const at::Tensor& tensor) {
                    state.tensors.emplace_back(name, tensor.cpu().clone());
                  });
  });
  state.lost = fmt::format(
      "rank {}: the checkpoint {} that is written behind is lost: neither step() nor finish_save() "
      "has completed it on all ranks before the end",
      ranks_.rank(), folder.string());
  state.unfinished = std::make_unique<Unfinished>([this] {
    thread_.join();
    return state_->lost;
  });
  thread_ = std::thread([&state, path = file_of(ranks_, folder, state.manifest)] {
    state.answer = dist::answer_of([&] {
      return write_file(path, [&](bool, const Visit& visit) {
        for (const auto& [name, tensor] : state.tensors) visit(name, tensor);
      });
    });
    state.tensors.clear();
    state.progress = dist::is_error(state.answer) ? kFailed : kWritten;
  });
}

PendingCheckpoint::~PendingCheckpoint() {
  if (!thread_.joinable()) return;
  thread_.join();
  log_error(state_->lost);
}

bool PendingCheckpoint::is_written() {
  const std::vector<double> all = dist::all_gather_scalars(ranks_, {state_->progress});
  return std::ranges::count(all, kFailed) > 0 || std::ranges::count(all, kWriting) == 0;
}

void PendingCheckpoint::finish() {
  const dist::CallScope call(ranks_, "io::PendingCheckpoint::finish");
  if (!thread_.joinable()) return;  // given up at the end of the program
  const auto until_here = std::move(state_->unfinished);
  thread_.join();
  complete(ranks_, state_->folder, state_->manifest, state_->keep,
           [&] { return dist::content_of(state_->answer); });
}

}  // namespace zero::io
