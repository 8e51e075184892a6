#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include <zero/io/safetensors_file.hpp>
#include <zero/io/safetensors_format.hpp>

namespace zero::io {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little endian and are copied as they are");

namespace {

namespace fs = std::filesystem;
using safetensors::refuse;

constexpr std::string_view kPointerBegin = "version https://git-lfs";

// Splits a whole file into header and data.
std::string_view header_text(std::string_view file, const fs::path& path) {
  using namespace safetensors;
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
  if (length > kMaxHeaderBytes) {
    refuse(path,
           fmt::format("claims a header of {} bytes, where at most {} are allowed: this is not "
                       "a safetensors file",
                       length, kMaxHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    refuse(path,
           fmt::format("claims a header of {} bytes, but {} follow: it was cut short, or is not "
                       "a safetensors file",
                       length, file.size() - kLengthBytes));
  }
  return file.substr(kLengthBytes, length);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const fs::path& path) : path_(path) {
  mapping_ = std::make_shared<const base::MappedFile>(path, path.string());
  mapping_->read_in_order();
  const std::string_view file = mapping_->bytes();
  const std::string_view text = header_text(file, path);
  data_ = text.data() + text.size();
  const auto data_bytes = static_cast<std::uint64_t>(file.data() + file.size() - data_);
  auto header = safetensors::parse_header(text, data_bytes, path.string());
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  for (const SafetensorsEntry& entry : entries_) {
    index_[entry.name] = names_.size();
    names_.push_back(entry.name);
  }
  mapping_->forget(text);
}

const SafetensorsEntry& SafetensorsFile::info(const std::string& name) const {
  return entries_[safetensors::position_of(name, index_, path_)];
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const SafetensorsEntry& entry = info(name);
  const at::Tensor out = at::empty(entry.shape, at::TensorOptions(entry.dtype));
  read_into(name, out);
  return out;
}

void SafetensorsFile::read_into(const std::string& name, const at::Tensor& out) const {
  safetensors::check_tensor(out, info(name), path_.string(), "the tensor to read into");
  read_range_into(name, /*begin=*/0, out);
}

void SafetensorsFile::read_range_into(const std::string& name, std::int64_t begin,
                                      const at::Tensor& out) const {
  const SafetensorsEntry& entry = info(name);
  safetensors::check_tensor(out, {name, entry.dtype, out.sizes().vec()}, path_.string(),
                            "the tensor to read into");
  if (begin < 0 || begin > entry.elements() || out.numel() > entry.elements() - begin) {
    refuse(path_, fmt::format("tensor {}: {} elements from {} on were asked for, it has {}",
                              safetensors::shown(name), out.numel(), begin, entry.elements()));
  }
  if (at::has_internal_overlap(out) == at::MemOverlap::Yes) {
    refuse(path_, fmt::format("tensor {}: the tensor to read into has elements that share memory",
                              safetensors::shown(name)));
  }
  const at::NoGradGuard no_grad;
  const auto width = static_cast<std::int64_t>(c10::elementSize(entry.dtype));
  const std::int64_t limit = kSafetensorsScratchBytes / width;
  at::Tensor scratch;
  safetensors::for_each_piece(
      out.variable_data(), limit, begin, [&](const at::Tensor& piece, std::int64_t first) {
        const char* source = data_ + entry.begin + first * width;
        const auto size = static_cast<std::size_t>(piece.numel() * width);
        // Reading a bool with any other byte is undefined behaviour.
        if (entry.dtype == at::kBool &&
            std::any_of(source, source + size, [](unsigned char byte) { return byte > 1; })) {
          refuse(path_, fmt::format("tensor {}: holds a BOOL that is neither 0 nor 1",
                                    safetensors::shown(name)));
        }
        if (piece.is_cpu() && piece.scalar_type() == entry.dtype && piece.is_contiguous()) {
          std::memcpy(piece.mutable_data_ptr(), source, size);
        } else {
          // The bytes of a file need not be aligned, those of a tensor must be.
          if (!scratch.defined()) {
            scratch =
                at::empty({std::min(limit, entry.elements())}, at::TensorOptions(entry.dtype));
          }
          const at::Tensor typed = scratch.narrow(0, 0, piece.numel());
          std::memcpy(typed.mutable_data_ptr(), source, size);
          piece.copy_(typed.view(piece.sizes()));
        }
        mapping_->forget({source, size});
      });
}

}  // namespace zero::io
