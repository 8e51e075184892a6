#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <regex>
#include <system_error>
#include <vector>

#include <zero/base/error.hpp>
#include <zero/base/sha256.hpp>
#include <zero/io/checkpoint_files.hpp>

namespace zero::io::checkpoint {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(const fs::path& path, const std::string& what, int code) {
  throw Error(
      fmt::format("{}: {}: {}", path.string(), what, std::generic_category().message(code)));
}

// A file or folder, open for reading.
class Open {
 public:
  Open(const fs::path& path, int flags) : path_(path) {
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    if (file_ < 0) refuse(path, "cannot be opened", errno);
  }
  ~Open() { ::close(file_); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

  // 0 at the end.
  std::size_t read(std::vector<char>& block) const {
    while (true) {
      const auto count = ::read(file_, block.data(), block.size());
      if (count >= 0) return static_cast<std::size_t>(count);
      if (errno != EINTR) refuse(path_, "cannot be read", errno);
    }
  }
  void sync() const {
    // Some file systems cannot flush a folder; there is nothing to do then.
    if (::fsync(file_) != 0 && errno != EINVAL)
      refuse(path_, "cannot be brought to the disk", errno);
  }

 private:
  fs::path path_;
  int file_;
};

constexpr std::size_t kBlock = std::size_t{1} << 20;

}  // namespace

Fingerprint fingerprint(const fs::path& path) {
  const Open file(path, 0);
  base::Sha256 sha;
  Fingerprint result;
  std::vector<char> block(kBlock);
  while (const std::size_t count = file.read(block)) {
    sha.add(block.data(), count);
    result.bytes += static_cast<std::int64_t>(count);
  }
  result.sha256 = sha.hex();
  return result;
}

std::string read_text(const fs::path& path) {
  const Open file(path, 0);
  std::string text;
  std::vector<char> block(kBlock);
  while (const std::size_t count = file.read(block)) text.append(block.data(), count);
  return text;
}

void sync_folder(const fs::path& folder) { Open(folder, O_DIRECTORY).sync(); }

std::string make_step_folder(const fs::path& folder, std::int64_t step) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) refuse(folder, "cannot be made", code.value());
  for (int again = 0;; ++again) {
    const std::string name =
        fmt::format("step-{:09}{}", step, again == 0 ? "" : fmt::format(".{}", again));
    if (fs::create_directory(folder / name, code)) return name;
    if (code) refuse(folder / name, "cannot be made", code.value());
  }
}

std::string rank_file_name(int rank, int world_size) {
  return fmt::format("rank-{:05}-of-{:05}.safetensors", rank, world_size);
}

void remove_step_folder(const fs::path& step_folder) {
  static const std::regex ours(R"(\.?rank-\d+-of-\d+\.safetensors(\.\d+\.\d+)?)");
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(step_folder, ignored)) {
    if (std::regex_match(entry.path().filename().string(), ours)) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove(path, ignored);
  fs::remove(step_folder, ignored);  // does nothing if something is left in it
}

void remove_step_folders(const fs::path& folder, const std::string& keep) {
  static const std::regex step(R"(step-\d+(\.\d+)?)");
  static const std::regex unfinished(R"(\.manifest\.json\.\d+\.\d+)");
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) found.push_back(entry.path());
  for (const fs::path& path : found) {
    const std::string name = path.filename().string();
    if (std::regex_match(name, unfinished)) fs::remove(path, ignored);
    if (name != keep && std::regex_match(name, step) && !fs::is_symlink(path, ignored)) {
      remove_step_folder(path);
    }
  }
}

}  // namespace zero::io::checkpoint
