#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include <zero/base/error.hpp>
#include <zero/io/safetensors_file.hpp>
#include <zero/io/safetensors_format.hpp>

namespace zero::io {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little endian and are copied as they are");

namespace {

namespace fs = std::filesystem;
using safetensors::refuse;

constexpr std::string_view kPointerBegin = "version https://git-lfs";

[[noreturn]] void fail_to_open(const fs::path& path) {
  refuse(path, fmt::format("cannot be opened: {}", std::generic_category().message(errno)));
}

// A file descriptor that is closed at the end of its scope.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

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

// A whole file in memory, read only.
class SafetensorsFile::Mapping {
 public:
  explicit Mapping(const fs::path& path) {
    // Without O_NONBLOCK a pipe would wait here for its writer.
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.value < 0) fail_to_open(path);
    struct stat status {};
    if (::fstat(file.value, &status) != 0) fail_to_open(path);
    if (!S_ISREG(status.st_mode)) refuse(path, "is not a regular file");
    if (status.st_size == 0) refuse(path, "is empty");
    size_ = static_cast<std::size_t>(status.st_size);
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.value, 0);
    if (data_ == MAP_FAILED) fail_to_open(path);
    ::madvise(data_, size_, MADV_SEQUENTIAL);
  }
  ~Mapping() { ::munmap(data_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

  // Takes the pages of [begin, begin + size) out of the resident set. They stay in the system's
  // cache, and come back if they are read again.
  void forget(const char* begin, std::size_t size) const {
    static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
    const auto last = reinterpret_cast<std::uintptr_t>(begin) + size;
    ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

SafetensorsFile::SafetensorsFile(const fs::path& path) : path_(path) {
  mapping_ = std::make_shared<const Mapping>(path);
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
  mapping_->forget(file.data(), text.size());
}

const SafetensorsEntry& SafetensorsFile::info(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    throw Error(safetensors::unknown_tensor(name, names_, path_.string()));
  }
  return entries_[found->second];
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
        // Any other byte in a bool is undefined behaviour wherever it is read.
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
        mapping_->forget(source, size);
      });
}

}  // namespace zero::io
