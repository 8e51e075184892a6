#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>
#include <zero/base/sha256.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/io/checkpoint_files.hpp>
#include <zero/io/checkpoint_pieces.hpp>
#include <zero/io/load_checkpoint.hpp>
#include <zero/io/weights_fit.hpp>
#include <zero/io/whole_values.hpp>
#include <zero/memory/accounting.hpp>

namespace zero::io {

namespace fs = std::filesystem;
using namespace checkpoint;

namespace {

using States = std::map<std::string, at::Tensor>;

// What one rank does with a checkpoint, in this order.
class Loader {
 public:
  Loader(train::Strategy& strategy, const fs::path& place)
      : strategy_(strategy), path_(record_at(place)), rank_(strategy.mesh().world().rank()) {}

  /// Reads checkpoint.json; returns its digest.
  std::string read_record() {
    const std::string text = base::read_file(path_, path_.string());
    record_ = record_from(text, path_.string());
    return base::Sha256().add(text).hex();
  }

  /// Checks this rank's share of the files. Before any header is read, which would be refused for
  /// another reason where it was altered.
  void check_files() const {
    const auto ranks = static_cast<std::size_t>(strategy_.mesh().world().size());
    for (auto k = static_cast<std::size_t>(rank_); k < record_.files.size(); k += ranks) {
      const SavedFile &right = record_.files[k], there = fingerprint(step_folder() / right.name);
      if (there.bytes == right.bytes && there.sha256 == right.sha256) continue;
      throw Error(fmt::format(
          "{}: {}, or is of another checkpoint: it has {} bytes with the SHA-256 {}, {} says {} "
          "and {}",
          (step_folder() / right.name).string(),
          there.bytes == right.bytes ? "was altered" : "it was cut short", there.bytes,
          there.sha256, kRecordFile, right.bytes, right.sha256));
    }
  }

  /// Compares what all files say of themselves with the model.
  void read_headers() {
    files_ = open_files(step_folder(), record_);
    saved_ = tensors_in(files_);
    const std::string name = rank_file_name(rank_, record_.info.world_size);
    const auto own = std::ranges::find(record_.files, name, &SavedFile::name);
    if (own != record_.files.end()) {
      buffers_from_ = static_cast<std::size_t>(own - record_.files.begin());
    }
    const std::vector<safetensors::Spec> theirs = saved_specs(), ours = specs_of(strategy_);
    WeightsFit may;
    for (const nn::Parameter& p : strategy_.stage_of_model().whole().parameters) {
      if (p.numel() > 0) continue;
      // No rank updates a parameter of no elements, so no file need have it.
      may.missing.push_back(p.name);
      saved_[p.name].try_emplace(kParameterKind);
    }
    fit_weights("it is of another model: its tensors", theirs, ours, may);
    for (const safetensors::Spec& spec : ours) {
      const auto it = std::ranges::find(theirs, spec.name, &safetensors::Spec::name);
      if (it == theirs.end() || it->dtype == spec.dtype) continue;
      throw Error(
          fmt::format("'{}' is {} in the checkpoint and {} in the model: begin a run from its "
                      "weights, which load_weights() converts",
                      spec.name, c10::toString(it->dtype), c10::toString(spec.dtype)));
    }
    const std::string kind = strategy_.optimizer().settings().kind;
    if (record_.info.optimizer.kind == kind) return;
    throw Error(fmt::format("its optimizer is {}, that of this run {}", record_.info.optimizer.kind,
                            kind.empty() ? "of another kind" : kind));
  }

  /// Changes the model.
  void put_back() {
    // Units that a forward has left whole would hide the new values.
    for (std::size_t u = 0; u < strategy_.list().units.size(); ++u) strategy_.reshard(u);
    for (std::size_t i = 0; i < strategy_.list().size(); ++i) {
      strategy_.bring(i);
      read(i, kParameterKind, flat(strategy_.placement(i).kept));
      const train::ParameterShard piece = updated(i);
      if (!piece.tensor.defined()) continue;
      strategy_.optimizer().load_state(piece.tensor, saved(i).at(kParameterKind).steps,
                                       states_of(i));
    }
    for (const auto& [name, buffer] : buffers_of(strategy_)) {
      files_[buffers_from_].read_into(stored_name(kBufferKind, name), buffer);
    }
    strategy_.zero_grad();
    strategy_.passes().weights_changed();
  }

  const CheckpointInfo& info() const { return record_.info; }

 private:
  fs::path step_folder() const { return path_.parent_path() / record_.folder; }

  // Of parameters, and of the buffers that this rank gets.
  std::vector<safetensors::Spec> saved_specs() const {
    std::vector<safetensors::Spec> specs;
    for (const auto& [name, kinds] : saved_) {
      const auto p = kinds.find(kParameterKind);
      if (p != kinds.end()) specs.push_back({name, p->second.dtype, p->second.shape});
    }
    const std::string prefix = stored_name(kBufferKind, "");
    for (const std::string& name : files_.at(buffers_from_).names()) {
      if (!name.starts_with(prefix)) continue;
      specs.push_back(files_[buffers_from_].info(name));
      specs.back().name.erase(0, prefix.size());
    }
    return specs;
  }

  // The checkpoint has the whole model; this rank's list may be that of a stage.
  const SavedTensors& saved(std::size_t i) const {
    return saved_.at(strategy_.list().parameters[i].name);
  }

  // What this rank updates of its parameter `i`: nothing of a copy that another stage trains.
  train::ParameterShard updated(std::size_t i) const {
    return strategy_.stage_of_model().is_copy(i) ? train::ParameterShard()
                                                 : strategy_.placement(i).updated;
  }

  States states_of(std::size_t i) const {
    States states;
    const train::ParameterShard part = flat(updated(i));
    if (!part.tensor.defined()) return states;
    const memory::Charge charge(memory::Category::kOptimizer);
    for (const auto& [kind, state] : saved(i)) {
      if (kind == kParameterKind) continue;
      states[kind] = at::empty({part.tensor.numel()}, part.tensor.options().dtype(state.dtype));
      read(i, kind, {states[kind], part.begin});
    }
    return states;
  }

  // Copies the elements of `part`, and no others, from the files that have them.
  void read(std::size_t i, const std::string& kind, const train::ParameterShard& part) const {
    if (!part.tensor.defined()) return;
    const nn::Parameter& p = strategy_.list().parameters[i];
    const SavedTensor& from = saved(i).at(kind);
    const Piece mine = piece_of(p.placement, part.begin, part.tensor.numel());
    for (const Run& c : copies(runs_of(from.shape, from.pieces), runs_of(from.shape, {mine}))) {
      files_[c.file].read_range_into(stored_name(kind, p.name), c.from,
                                     part.tensor.narrow(0, c.to, c.size));
    }
  }

  train::Strategy& strategy_;
  fs::path path_;
  int rank_;
  Record record_;
  std::vector<safetensors::File> files_;       // in the order of the record
  std::map<std::string, SavedTensors> saved_;  // by parameter of the whole model
  std::size_t buffers_from_ = 0;               // the file
};

}  // namespace

CheckpointInfo read_checkpoint_info(const fs::path& folder) {
  const fs::path path = record_at(folder);
  return record_from(base::read_file(path, path.string()), path.string()).info;
}

CheckpointInfo load_checkpoint(train::Strategy& strategy, const fs::path& folder) {
  const dist::CallScope call(strategy.mesh().world(), "io::load_checkpoint");
  dist::Communicator& ranks = strategy.mesh().world();
  const std::string what = fmt::format("the checkpoint {} cannot be loaded", folder.string());
  Loader loader(strategy, folder);
  const auto digests = on_all_ranks(ranks, what, [&] { return loader.read_record(); });
  for (std::size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank] == digests[0]) continue;
    throw Error(
        fmt::format("{}: rank 0 and rank {} see different checkpoints ({} with SHA-256 {} and {}); "
                    "all ranks must see the same folder",
                    what, rank, kRecordFile, digests[0], digests[rank]));
  }
  run_on_all_ranks(ranks, what, [&] {
    const std::string wrong = train::under_inference_mode("it is loaded");
    if (!wrong.empty()) throw Error(wrong);
    loader.check_files();
  });
  run_on_all_ranks(ranks, what, [&] { loader.read_headers(); });
  strategy.change_on_all_ranks(what + ", the model is partly loaded, load another",
                               [&] { loader.put_back(); });
  strategy.forget_writes();  // all that was written before
  return loader.info();
}

}  // namespace zero::io
