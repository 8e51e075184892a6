#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include <zero/safetensors/file.hpp>
#include <zero/safetensors/format.hpp>

namespace zero::safetensors {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little endian and are copied as they are");

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPointerBegin = "version https://git-lfs";

// Splits a whole file into header and data.
std::string_view header_text(std::string_view file, const fs::path& path) {
  // The reference implementation refuses longer headers too.
  constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
  if (file.starts_with(kPointerBegin)) {
    refuse(path,
           "is a Git LFS pointer, not the weights it stands for; fetch them with: git lfs pull");
  }
  if (file.size() < kLengthBytes) {
    refuse(path, fmt::format("has {} bytes; a safetensors file begins with 8 bytes of length",
                             file.size()));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const std::uint64_t most = std::min(kMaxHeaderBytes, file.size() - kLengthBytes);
  if (length > most) {
    refuse(path,
           fmt::format("claims a header of {} bytes, where it can have {}: it was cut short, or is "
                       "not a safetensors file",
                       length, most));
  }
  return file.substr(kLengthBytes, length);
}

}  // namespace

File::File(const fs::path& path) : path_(path) {
  mapping_ = std::make_shared<const base::MappedFile>(path, path.string());
  const std::string_view file = mapping_->bytes();
  const std::string_view text = header_text(file, path);
  data_ = text.data() + text.size();
  const auto data_bytes = static_cast<std::uint64_t>(file.data() + file.size() - data_);
  auto header = parse_header(text, data_bytes, path.string());
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  for (const Entry& entry : entries_) {
    index_[entry.name] = names_.size();
    names_.push_back(entry.name);
  }
  mapping_->forget(text);
}

const Entry& File::info(const std::string& name) const {
  return entries_[position_of(name, index_, path_)];
}

std::string_view File::bytes(const std::string& name) const {
  const Entry& entry = info(name);
  return {data_ + entry.begin, static_cast<std::size_t>(entry.end - entry.begin)};
}

at::Tensor File::read(const std::string& name) const {
  const Entry& entry = info(name);
  const at::Tensor out = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  read_into(name, out);
  return out;
}

void File::read_into(const std::string& name, const at::Tensor& out) const {
  check_tensor(out, info(name), path_.string(), "the tensor to read into");
  read_range_into(name, /*begin=*/0, out);
}

void File::read_range_into(const std::string& name, std::int64_t begin,
                           const at::Tensor& out) const {
  const Entry& entry = info(name);
  check_tensor(out, {name, entry.dtype, out.sizes().vec()}, path_.string(),
               "the tensor to read into");
  if (begin < 0 || begin > entry.elements() || out.numel() > entry.elements() - begin) {
    refuse(path_, fmt::format("tensor {}: {} elements from {} on were asked for, it has {}",
                              shown(name), out.numel(), begin, entry.elements()));
  }
  const auto width = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
  const char* const from = data_ + entry.begin + begin * width;
  mapping_->read_in_order({from, static_cast<std::size_t>(out.numel() * width)});
  for_each_piece(
      out, entry, /*reads=*/true, [&](char* bytes, std::int64_t first, std::size_t size) {
        const char* const source = from + first * width;
        // Reading a bool with any other byte is undefined behaviour.
        if (entry.dtype == at::kBool &&
            std::any_of(source, source + size, [](unsigned char byte) { return byte > 1; })) {
          refuse(path_,
                 fmt::format("tensor {}: holds a BOOL that is neither 0 nor 1", shown(name)));
        }
        std::memcpy(bytes, source, size);
        mapping_->forget({source, size});
      });
}

}  // namespace zero::safetensors
