#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <set>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/base/sha256.hpp>
#include <zero/io/checkpoint_files.hpp>
#include <zero/io/checkpoint_parts.hpp>
#include <zero/io/load_checkpoint.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::io {

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

using States = std::map<std::string, at::Tensor>;

// What one rank does with a checkpoint, in this order.
class Loader {
 public:
  Loader(train::Strategy& strategy, const fs::path& place)
      : strategy_(strategy),
        manifest_path_(manifest_at(place)),
        rank_(strategy.mesh().world().rank()),
        size_(strategy.mesh().world().size()) {}

  /// Reads the manifest; returns its digest.
  std::string read_manifest() {
    const std::string text = base::read_file(manifest_path_, manifest_path_.string());
    manifest_ = manifest_from(text, manifest_path_.string());
    return base::Sha256().add(text).hex();
  }

  void check_model(const LoadOptions& options) const {
    check_same_model(manifest_, parameters_of(strategy_), saved_buffers(buffers_of(strategy_)),
                     options.convert_dtype);
    const std::string ours = strategy_.optimizer().settings().kind;
    if (manifest_.info.optimizer.kind != ours) {
      throw Error(fmt::format("its optimizer is {}, that of this run {}",
                              manifest_.info.optimizer.kind,
                              ours.empty() ? "of another kind" : ours));
    }
  }

  /// Checks and opens the files that this rank reads from.
  void open_files() {
    std::set<int> wanted = sources();
    for (const SavedFile& file : manifest_.files) {
      // One rank also checks each file that no rank needs.
      if (wanted.contains(file.rank) || file.rank % size_ == rank_) check(file);
      if (wanted.contains(file.rank)) files_.emplace(file.rank, path_of(file));
    }
    for (std::size_t i = 0; i < manifest_.parameters.size(); ++i) {
      for (const RankRange& run : manifest_.parameters[i].runs) {
        if (files_.contains(run.rank)) check_tensors(manifest_.parameters[i], run);
      }
    }
    for (const SavedBuffer& b : manifest_.buffers) check_tensor(buffers_from(), kBufferKind, b);
  }

  /// The states of this rank's pieces, in memory but not yet the optimizer's; not those that go to
  /// a disk because they have no place there.
  void read_states() {
    states_.resize(strategy_.list().size());
    if (strategy_.optimizer().is_offloaded()) return;
    for (std::size_t i = 0; i < states_.size(); ++i) states_[i] = states_of(i);
  }

  /// Changes the model.
  void put_back() {
    // Units that a forward has left whole would hide the new values.
    for (std::size_t u = 0; u < strategy_.list().units.size(); ++u) strategy_.reshard(u);
    const bool offloaded = strategy_.optimizer().is_offloaded();
    for (std::size_t i = 0; i < states_.size(); ++i) {
      copy(i, kParameterKind, flat(strategy_.local_shard(i)));
      const train::ParameterShard piece = updated(i);
      if (!piece.tensor.defined()) continue;
      strategy_.optimizer().load_state(piece.tensor, saved_of(i).steps,
                                       offloaded ? states_of(i) : states_[i]);
    }
    for (const auto& [name, buffer] : buffers_of(strategy_)) {
      files_.at(buffers_from()).read_into(stored_name(kBufferKind, name), buffer);
    }
    strategy_.zero_grad();
    strategy_.passes().weights_changed();
  }

  const CheckpointInfo& info() const { return manifest_.info; }

 private:
  fs::path path_of(const SavedFile& file) const {
    return manifest_path_.parent_path() / manifest_.folder / file.name;
  }
  int buffers_from() const { return rank_ < manifest_.info.world_size ? rank_ : 0; }

  // The checkpoint has the whole model; this rank's list may be that of a stage.
  const SavedParameter& saved_of(std::size_t i) const {
    return manifest_.parameters[strategy_.stage_of_model().place(i)];
  }

  // What this rank updates of its parameter `i`: nothing of a copy that another stage trains.
  train::ParameterShard updated(std::size_t i) const {
    return strategy_.stage_of_model().is_copy(i) ? train::ParameterShard() : strategy_.piece(i);
  }

  States states_of(std::size_t i) const {
    States states;
    const train::ParameterShard part = flat(updated(i));
    if (!part.tensor.defined()) return states;
    const memory::Charge charge(memory::Category::kOptimizer);
    const SavedParameter& saved = saved_of(i);
    for (const auto& [name, dtype] : saved.states) {
      // States with the parameter's dtype are converted with it.
      const at::ScalarType type =
          dtype == saved.dtype ? part.tensor.scalar_type() : dtype_in_file(saved, name);
      at::Tensor state = at::empty({part.tensor.numel()}, part.tensor.options().dtype(type));
      copy(i, name, {state, part.begin});
      states[name] = state;
    }
    return states;
  }

  // The ranks that saved what this one needs.
  std::set<int> sources() const {
    std::set<int> ranks;
    for (std::size_t i = 0; i < strategy_.list().size(); ++i) {
      for (const train::ParameterShard& mine : {strategy_.local_shard(i), strategy_.piece(i)}) {
        const auto range = range_of(mine);
        for (const RankRange& run : saved_of(i).runs) {
          if (range) in_common(i, run, *range, [&](auto...) { ranks.insert(run.rank); });
        }
      }
    }
    if (!manifest_.buffers.empty()) ranks.insert(buffers_from());
    return ranks;
  }

  void check(const SavedFile& file) const {
    const auto [bytes, sha256] = fingerprint(path_of(file));
    if (bytes == file.bytes && sha256 == file.sha256) return;
    throw Error(fmt::format(
        "{}: {}, or is of another checkpoint: it has {} bytes with the SHA-256 {}, the manifest "
        "says {} and {}",
        path_of(file).string(), bytes == file.bytes ? "was altered" : "it was cut short", bytes,
        sha256, file.bytes, file.sha256));
  }

  void check_tensors(const SavedParameter& saved, const RankRange& run) const {
    const std::vector<std::int64_t> flat = {run.range.size};
    check_tensor(run.rank, kParameterKind, {saved.name, flat, saved.dtype});
    for (const auto& [name, dtype] : saved.states) {
      check_tensor(run.rank, name, {saved.name, flat, dtype});
    }
  }

  void check_tensor(int rank, const std::string& kind, const SavedBuffer& saved) const {
    const safetensors::File& file = files_.at(rank);
    const auto& entry = file.info(stored_name(kind, saved.name));
    // The manifest has a shape for buffers, and a number of elements for tensors of a parameter.
    const bool fits =
        kind == kBufferKind ? entry.shape == saved.shape : entry.elements() == saved.shape.front();
    if (fits && c10::toString(entry.dtype) == saved.dtype) return;
    throw Error(
        fmt::format("{}: '{}' is not what the manifest says", file.path().string(), entry.name));
  }

  at::ScalarType dtype_in_file(const SavedParameter& saved, const std::string& kind) const {
    for (const RankRange& run : saved.runs) {
      if (files_.contains(run.rank)) {
        return files_.at(run.rank).info(stored_name(kind, saved.name)).dtype;
      }
    }
    return at::kFloat;  // a parameter of no elements
  }

  // What a run of parameter `i` and a range of this rank's part have in common; see
  // for_each_common().
  template <typename Function>
  void in_common(std::size_t i, const RankRange& run, const Range& range, Function function) const {
    const SavedParameter& saved = saved_of(i);
    const nn::TensorPlacement& ours = strategy_.list().parameters[i].placement;
    for_each_common(saved.shape, saved.cut, run.part, run.range, cut_of(ours), ours.part(), range,
                    function);
  }

  // Copies the elements of `target`, and no others, from the files that hold them.
  void copy(std::size_t i, const std::string& kind, const train::ParameterShard& target) const {
    const auto range = range_of(target);
    if (!range) return;
    const std::string name = stored_name(kind, saved_of(i).name);
    for (const RankRange& run : saved_of(i).runs) {
      in_common(i, run, *range, [&](std::int64_t from, std::int64_t to, std::int64_t n) {
        files_.at(run.rank).read_range_into(name, from - run.range.begin,
                                            target.tensor.narrow(0, to - target.begin, n));
      });
    }
  }

  train::Strategy& strategy_;
  fs::path manifest_path_;
  int rank_;
  int size_;
  Manifest manifest_;
  std::map<int, safetensors::File> files_;  // by the rank that saved
  std::vector<States> states_;              // by parameter of this rank's list
};

}  // namespace

CheckpointInfo read_checkpoint_info(const fs::path& folder) {
  const fs::path path = manifest_at(folder);
  return manifest_from(base::read_file(path, path.string()), path.string()).info;
}

CheckpointInfo load_checkpoint(train::Strategy& strategy, const fs::path& folder,
                               const LoadOptions& options) {
  const dist::CallScope call(strategy.mesh().world(), "io::load_checkpoint");
  dist::Communicator& ranks = strategy.mesh().world();
  const std::string what = fmt::format("the checkpoint {} cannot be loaded", folder.string());
  Loader loader(strategy, folder);
  const auto digests = on_all_ranks(ranks, what, [&] { return loader.read_manifest(); });
  for (std::size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank] == digests[0]) continue;
    throw Error(
        fmt::format("{}: rank 0 and rank {} see different checkpoints (manifests with "
                    "SHA-256 {} and {}); all ranks must see the same folder",
                    what, rank, digests[0], digests[rank]));
  }
  run_on_all_ranks(ranks, what, [&] {
    loader.check_model(options);
    loader.open_files();
    loader.read_states();
  });
  strategy.change_on_all_ranks(what + ", the model is partly loaded, load another",
                               [&] { loader.put_back(); });
  strategy.forget_writes();  // all that was written before
  return loader.info();
}

}  // namespace zero::io
