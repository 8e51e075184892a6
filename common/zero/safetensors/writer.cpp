#include <fmt/format.h>

#include <algorithm>

#include <zero/safetensors/format.hpp>
#include <zero/safetensors/writer.hpp>

namespace zero::safetensors {

namespace fs = std::filesystem;

Writer::Writer(const fs::path& path, const std::vector<Spec>& specs, const Metadata& metadata)
    : entries_(lay_out(specs, path.string())), written_(specs.size(), false) {
  const std::string header = make_header(entries_, metadata);
  data_start_ = static_cast<std::int64_t>(header.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) index_[entries_[i].name] = i;
  const std::int64_t data_bytes = entries_.empty() ? 0 : entries_.back().end;
  file_ = std::make_unique<base::AtomicFile>(path, data_start_ + data_bytes);
  file_->write(header.data(), data_start_, /*offset=*/0);
}

void Writer::write(const std::string& name, const at::Tensor& tensor) {
  const std::string path = file_->path().string();
  const std::size_t position = position_of(name, index_, path);
  const Entry& entry = entries_[position];
  check_tensor(tensor, entry, path, "the tensor to write");

  const auto width = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
  for_each_piece(tensor, entry, /*reads=*/false,
                 [&](const char* bytes, std::int64_t first, std::size_t size) {
                   file_->write(bytes, static_cast<std::int64_t>(size),
                                data_start_ + entry.begin + first * width);
                 });
  written_[position] = true;
}

void Writer::finish() {
  const auto missing = std::find(written_.begin(), written_.end(), false);
  if (missing != written_.end()) {
    const auto& first = entries_[static_cast<std::size_t>(missing - written_.begin())];
    refuse(file_->path(), fmt::format("{} of {} tensors were not written, the first of them {}",
                                      std::count(written_.begin(), written_.end(), false),
                                      written_.size(), shown(first.name)));
  }
  file_->complete();
  file_->publish();
}

void save(const fs::path& path, const NamedTensors& tensors, const Metadata& metadata) {
  Writer writer(path, specs_of(tensors, path.string()), metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

}  // namespace zero::safetensors
