#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

#include <zero/base/atomic_file.hpp>
#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/base/program.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/checkpoint_files.hpp>
#include <zero/io/checkpoint_pieces.hpp>
#include <zero/io/save_checkpoint.hpp>
#include <zero/io/whole_values.hpp>
#include <zero/safetensors/format.hpp>
#include <zero/safetensors/writer.hpp>

namespace zero::io {

namespace fs = std::filesystem;
using namespace checkpoint;

// Tensors that are read together, because they may come from a disk: those of a parameter, or the
// buffers.
struct Group {
  std::vector<safetensors::Spec> specs;
  std::function<safetensors::NamedTensors()> read;
};

struct Contents {
  std::vector<Group> groups;
  safetensors::Metadata metadata = {{"format", kFormat}};
};

namespace {

// Of ranks that hold the same elements the first one on each axis writes them; no rank need ask.
bool writes(const train::Strategy& strategy, std::size_t i) {
  const dist::Mesh& mesh = strategy.mesh();
  const int parts = strategy.placements().parts();
  return mesh.place(mesh.world().rank(), {"data"}) < parts &&
         (strategy.list().parameters[i].placement.is_cut() || mesh.tensor().rank() == 0) &&
         !strategy.stage_of_model().is_copy(i);  // the stage that trains it does
}

// What goes into this rank's file.
Contents contents_of(train::Strategy& strategy) {
  Contents all;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const nn::Parameter& p = strategy.list().parameters[i];
    const train::ParameterShard shard = flat(strategy.placement(i).saved);
    if (!shard.tensor.defined() || !writes(strategy, i)) continue;
    const at::Tensor updated = strategy.placement(i).updated.tensor;
    const optim::Optimizer& optimizer = strategy.optimizer();
    const std::string name = stored_name(kParameterKind, p.name);
    const std::int64_t n = shard.tensor.numel();
    Group group{{{name, shard.tensor.scalar_type(), {n}}}, {}};
    if (updated.defined()) {
      for (const auto& [kind, dtype] : optimizer.state_types(updated)) {
        group.specs.push_back({stored_name(kind, p.name), dtype, {n}});
      }
    }
    const std::string text = to_text(p.whole_sizes(), piece_of(p.placement, shard.begin, n),
                                     updated.defined() ? optimizer.steps(updated) : 0);
    for (const safetensors::Spec& spec : group.specs) all.metadata[spec.name] = text;
    group.read = [&strategy, &p, &optimizer, updated, name, i] {
      strategy.bring(i);
      safetensors::NamedTensors tensors = {{name, flat(strategy.placement(i).saved).tensor}};
      if (!updated.defined()) return tensors;
      for (const auto& [kind, state] : optimizer.state(updated)) {
        tensors.emplace_back(stored_name(kind, p.name), state);
      }
      return tensors;
    };
    all.groups.push_back(std::move(group));
  }
  safetensors::NamedTensors buffers = buffers_of(strategy);
  for (auto& [name, buffer] : buffers) name = stored_name(kBufferKind, name);
  all.groups.push_back({safetensors::specs_of(buffers), [buffers] { return buffers; }});
  return all;
}

// How far the thread of a PendingCheckpoint is.
constexpr double kWriting = 0;
constexpr double kWritten = 1;
constexpr double kFailed = 2;

// Returns "LENGTH SHA-256", or "" if this rank has nothing to write.
std::string write_file(const fs::path& path, const Contents& contents) {
  std::vector<safetensors::Spec> specs;
  for (const Group& g : contents.groups) specs.insert(specs.end(), g.specs.begin(), g.specs.end());
  if (specs.empty()) return "";
  safetensors::Writer writer(path, specs, contents.metadata);
  for (const Group& g : contents.groups) {
    for (const auto& [name, tensor] : g.read()) writer.write(name, tensor);
  }
  writer.finish();
  const SavedFile written = fingerprint(path);
  return fmt::format("{} {}", written.bytes, written.sha256);
}

void note_files(Record& record, const std::vector<std::string>& written) {
  for (std::size_t rank = 0; rank < written.size(); ++rank) {
    SavedFile file{rank_file_name(static_cast<int>(rank), record.info.world_size), 0, ""};
    std::istringstream text(written[rank]);
    if (text >> file.bytes >> file.sha256) record.files.push_back(file);
  }
}

// Rank 0, before anything is created: what another program has there must not be lost.
void check_place(const fs::path& folder) {
  const fs::path path = folder / kRecordFile;
  if (!fs::exists(fs::symlink_status(path))) return;
  const std::string ours = fmt::format("\"{}\"", kFormat);
  if (base::read_file(path, path.string()).find(ours) != std::string::npos) return;
  throw Error(fmt::format("{}: is not of a checkpoint; choose another folder", path.string()));
}

// Whose checkpoints a folder has, in this process. The first parameter stands for the model: a
// pointer to the strategy says nothing once it is gone.
using Model = c10::weak_intrusive_ptr<c10::TensorImpl>;

std::mutex held_mutex;
std::map<fs::path, Model>& held() {
  static auto* const folders = new std::map<fs::path, Model>;  // in use while the program ends
  return *folders;
}

// Rank 0: from now on the folder belongs to the model of `strategy` as long as that lives: others
// would remove its checkpoints.
void hold_folder(const fs::path& folder, const train::Strategy& strategy) {
  const std::lock_guard lock(held_mutex);
  std::error_code ignored;
  const Model model(strategy.list().parameters.front().tensor.getIntrusivePtr());
  Model& owner = held().try_emplace(fs::weakly_canonical(folder, ignored), model).first->second;
  if (owner != model && !owner.expired()) {
    throw Error(
        fmt::format("another engine of this program saves its checkpoints to {}, and each would "
                    "remove the other's; give each a folder of its own",
                    folder.string()));
  }
  owner = model;
}

// Rank 0: the checkpoint in the folder, if it is one that can be loaded.
std::optional<Record> current(const fs::path& folder) {
  if (!fs::exists(folder / kRecordFile)) return std::nullopt;
  const std::string text = base::read_file(folder / kRecordFile, "");
  try {
    return record_from(text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Rank 0: makes the new checkpoint the current one.
void commit(const fs::path& folder, const Record& record, int keep) {
  tensors_in(open_files(folder / record.folder, record));  // throws unless they are all there
  base::sync_folder(folder / record.folder);
  base::sync_folder(folder);
  // A record that the new one does not replace.
  if (const auto before = keep > 1 ? current(folder) : std::nullopt) {
    base::write_file(folder / older_record_name(before->folder), to_text(*before));
  }
  base::write_file(folder / kRecordFile, to_text(record));
}

// Rank 0, after a failure: removes the unfinished step folder, unless the record that names it is
// there and only a later action failed.
void give_up(const fs::path& folder, const std::string& step_folder) {
  const auto now = current(folder);
  if (!now || now->folder != step_folder) remove_step_folder(folder / step_folder);
}

std::string failure(const fs::path& folder) {
  return fmt::format("the checkpoint {} cannot be saved", folder.string());
}

// Everything before a file is written: the record but for its files, and the folder for them.
Record prepare(train::Strategy& strategy, const fs::path& folder, const CheckpointInfo& info,
               int keep, const std::string& when) {
  dist::Communicator& ranks = strategy.mesh().world();
  run_on_all_ranks(ranks, failure(folder), [&] {
    check_info(info);
    if (keep < 1) throw Error(fmt::format("keep the last {} checkpoints: 1 is the least", keep));
    if (strategy.optimizer().settings().kind.empty()) {
      throw Error(
          "this optimizer does not show all of its state; our own and those of optim::wrap() do");
    }
    check_weights(strategy);
  });
  Record record{"", {}, info};
  record.info.world_size = ranks.size();
  record.info.optimizer = {};
  dist::verify_same(ranks, "what the checkpoint notes of the run",
                    fmt::format("{}{}, keep {}", to_text(record), when, keep));
  record.info.optimizer = strategy.optimizer().settings();
  strategy.verify_writes();
  record.folder = on_all_ranks(ranks, failure(folder), [&] {
                    if (ranks.rank() != 0) return std::string();
                    check_place(folder);
                    hold_folder(folder, strategy);
                    return make_step_folder(folder, info.step);
                  }).front();
  return record;
}

// The rest: `write` gives what write_file() returns.
void complete(dist::Communicator& ranks, const fs::path& folder, Record record, int keep,
              const std::function<std::string()>& write) {
  const bool first = ranks.rank() == 0;
  try {
    note_files(record, on_all_ranks(ranks, failure(folder), write));
    run_on_all_ranks(ranks, failure(folder), [&] {
      if (first) commit(folder, record, keep);
    });
  } catch (...) {
    if (first) give_up(folder, record.folder);
    throw;
  }
  if (first) remove_older(folder, record.folder, keep);
  ranks.barrier();
}

fs::path file_of(dist::Communicator& ranks, const fs::path& folder, const Record& record) {
  return folder / record.folder / rank_file_name(ranks.rank(), ranks.size());
}

}  // namespace

void save_checkpoint(train::Strategy& strategy, const fs::path& folder, const CheckpointInfo& info,
                     int keep) {
  dist::Communicator& ranks = strategy.mesh().world();
  const dist::CallScope call(ranks, "io::save_checkpoint");
  const Record record = prepare(strategy, folder, info, keep, "");
  complete(ranks, folder, record, keep,
           [&] { return write_file(file_of(ranks, folder, record), contents_of(strategy)); });
}

struct PendingCheckpoint::State {
  fs::path folder;
  int keep;
  Record record;
  Contents contents;
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
  state.record = prepare(strategy, folder, info, keep, "while training goes on");
  run_on_all_ranks(ranks_, failure(folder), [&] {
    state.contents = contents_of(strategy);
    for (Group& group : state.contents.groups) {
      safetensors::NamedTensors tensors = group.read();
      for (auto& [name, tensor] : tensors) tensor = tensor.cpu().clone();
      group.read = [tensors] { return tensors; };
    }
  });
  state.lost = fmt::format(
      "rank {}: the checkpoint {} that is written behind is lost: neither step() nor finish_save() "
      "has completed it on all ranks before the end",
      ranks_.rank(), folder.string());
  state.unfinished = std::make_unique<Unfinished>([this] {
    thread_.join();
    return state_->lost;
  });
  thread_ = std::thread([&state, path = file_of(ranks_, folder, state.record)] {
    state.answer = dist::answer_of([&] { return write_file(path, state.contents); });
    state.contents = {};
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
  complete(ranks_, state_->folder, state_->record, state_->keep,
           [&] { return dist::content_of(state_->answer); });
}

}  // namespace zero::io
