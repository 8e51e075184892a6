#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include <zero/base/error.hpp>
#include <zero/base/mapped_file.hpp>

namespace zero::base {
namespace {

// Of the pages that hold `part`.
void advise(std::string_view part, int advice) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t first = begin / page * page;
  ::madvise(reinterpret_cast<void*>(first), begin + part.size() - first, advice);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path, const std::string& what) {
  std::string wrong;
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const int file =
      static_cast<int>(TEMP_FAILURE_RETRY(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)));
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0) {
    wrong = fmt::format("cannot be opened: {}", std::generic_category().message(errno));
  } else if (!S_ISREG(status.st_mode)) {
    wrong = "is not a regular file";
    if (!S_ISDIR(status.st_mode)) {
      wrong +=
          " but a pipe or a device, which may be read only once, and more than one process reads "
          "it: write its contents to a file, and give that";
    }
  } else if (status.st_size == 0) {
    wrong = "is empty";
  } else {
    size_ = static_cast<std::size_t>(status.st_size);
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    if (data_ == MAP_FAILED) {
      wrong = fmt::format("cannot be mapped: {}", std::generic_category().message(errno));
    }
  }
  if (file >= 0) ::close(file);
  if (!wrong.empty()) throw Error(fmt::format("{}: {}", what, wrong));
}

MappedFile::~MappedFile() { ::munmap(data_, size_); }

void MappedFile::read_in_order(std::string_view part) const { advise(part, MADV_SEQUENTIAL); }

void MappedFile::add_to(Sha256& hash, std::string_view part) const {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  for (std::size_t at = 0; at < part.size(); at += kPiece) {
    const std::string_view piece = part.substr(at, kPiece);
    hash.add(piece);
    forget(piece);
  }
}

std::string MappedFile::sha256() const {
  Sha256 hash;
  add_to(hash, bytes());
  return hash.hex();
}

void MappedFile::forget(std::string_view part) const { advise(part, MADV_DONTNEED); }

std::string read_file(const std::filesystem::path& path, const std::string& what) {
  return std::string(MappedFile(path, what).bytes());
}

}  // namespace zero::base
