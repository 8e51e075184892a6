#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>
#include <zero/io/safetensors_format.hpp>
#include <zero/io/safetensors_writer.hpp>

namespace zero::io {

namespace fs = std::filesystem;
using safetensors::shown;

SafetensorsWriter::SafetensorsWriter(const fs::path& path,
                                     const std::vector<SafetensorsSpec>& specs,
                                     const SafetensorsMetadata& metadata)
    : entries_(safetensors::lay_out(specs, path.string())), written_(specs.size(), false) {
  const std::string header = safetensors::make_header(entries_, metadata, path.string());
  data_start_ = static_cast<std::int64_t>(header.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) index_[entries_[i].name] = i;
  const std::int64_t data_bytes = entries_.empty() ? 0 : entries_.back().end;
  file_ = std::make_unique<base::AtomicFile>(path, data_start_ + data_bytes);
  file_->write(header.data(), data_start_, /*offset=*/0);
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const std::string path = file_->path().string();
  if (finished_) throw Error(fmt::format("{}: is finished, nothing more can be written", path));
  const std::size_t position = safetensors::position_of(name, index_, path);
  if (written_[position]) {
    throw Error(fmt::format("{}: tensor {} is written a second time", path, shown(name)));
  }
  const SafetensorsEntry& entry = entries_[position];
  safetensors::check_tensor(tensor, entry, path, "the tensor to write");

  const at::NoGradGuard no_grad;
  const auto width = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
  const std::int64_t limit = kSafetensorsScratchBytes / width;
  at::Tensor scratch;
  safetensors::for_each_piece(
      tensor.variable_data(), limit, /*first=*/0, [&](const at::Tensor& piece, std::int64_t first) {
        at::Tensor bytes = piece;
        if (!piece.is_cpu() || piece.scalar_type() != entry.dtype || !piece.is_contiguous()) {
          if (!scratch.defined()) {
            scratch =
                at::empty({std::min(limit, entry.elements())}, at::TensorOptions(entry.dtype));
          }
          bytes = scratch.narrow(0, 0, piece.numel()).view(piece.sizes());
          bytes.copy_(piece);
        }
        file_->write(bytes.const_data_ptr(), piece.numel() * width,
                     data_start_ + entry.begin + first * width);
      });
  written_[position] = true;
}

void SafetensorsWriter::check_complete() const {
  const std::string path = file_->path().string();
  if (finished_) throw Error(fmt::format("{}: is finished already", path));
  const auto missing = std::find(written_.begin(), written_.end(), false);
  if (missing != written_.end()) {
    const auto& first = entries_[static_cast<std::size_t>(missing - written_.begin())];
    throw Error(fmt::format("{}: {} of {} tensors were not written, the first of them {}", path,
                            std::count(written_.begin(), written_.end(), false), written_.size(),
                            shown(first.name)));
  }
}

void SafetensorsWriter::complete() {
  check_complete();
  finished_ = true;
  file_->complete();
}

void SafetensorsWriter::publish() { file_->publish(); }

void SafetensorsWriter::finish() {
  complete();
  publish();
}

void save_safetensors(const fs::path& path, const NamedTensors& tensors,
                      const SafetensorsMetadata& metadata) {
  SafetensorsWriter writer(path, safetensors::specs_of(tensors, path.string()), metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

}  // namespace zero::io
