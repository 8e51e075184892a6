// Whatever the bytes of a file are, reading it throws zero::Error or stays inside the file. Most
// telling under the address sanitizer; a damaged file that opens must still be consistent here.

#include <random>

#include <tests/support/safetensors_test_files.hpp>
#include <tests/support/save_safetensors_folder.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::safetensors {
namespace {

using testing::save_safetensors_folder;
using testing::TestFolder;

constexpr std::uint32_t kSeed = 20250823;
constexpr int kFiles = 20'000;

// Damages of the kinds that disks, downloads and people do.
class Damage {
 public:
  explicit Damage(std::uint32_t seed) : random_(seed) {}

  std::string to(std::string bytes) {
    const int times = 1 + below(4);
    for (int i = 0; i < times && !bytes.empty(); ++i) once(bytes);
    return bytes;
  }

 private:
  int below(std::size_t count) {
    return static_cast<int>(random_() % static_cast<std::uint32_t>(count));
  }

  void once(std::string& bytes) {
    static const std::string kTokens = "0123456789[]{},:\"-.eE \\";
    const auto at = static_cast<std::size_t>(below(bytes.size()));
    switch (below(7)) {
      case 0:  // any byte
        bytes[at] = static_cast<char>(below(256));
        break;
      case 1:  // one bit
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:  // another JSON character
        bytes[at] = kTokens[static_cast<std::size_t>(below(kTokens.size()))];
        break;
      case 3:  // a digit where a digit was: the JSON stays valid, the numbers lie
        replace_a_digit(bytes);
        break;
      case 4:  // cut short
        bytes.resize(at);
        break;
      case 5:  // a piece missing
        bytes.erase(at, static_cast<std::size_t>(1 + below(9)));
        break;
      default:  // a piece twice
        bytes.insert(at, bytes.substr(at, static_cast<std::size_t>(1 + below(9))));
    }
  }

  void replace_a_digit(std::string& bytes) {
    const std::size_t from = bytes.find('{') == std::string::npos ? 0 : bytes.find('{');
    const auto start = from + static_cast<std::size_t>(below(bytes.size() - from));
    const std::size_t digit = bytes.find_first_of("0123456789", start);
    if (digit != std::string::npos) bytes[digit] = static_cast<char>('0' + below(10));
  }

  std::mt19937 random_;
};

// Damages the file `name` of the folder again and again, and reads it; how often it was refused, by
// errors that have `said` in them.
int times_refused(const TestFolder& folder, const std::string& name, const std::string& said,
                  const std::function<void()>& read) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::string valid = testing::read_bytes(folder / name);
  EXPECT_FALSE(valid.empty());
  Damage damage(kSeed);
  int refused = 0;
  for (int i = 0; i < kFiles; ++i) {
    // Some file systems bring a file to the disk when it is overwritten, but not when it is new.
    std::filesystem::remove(folder / name);
    folder.write(name, damage.to(valid));
    try {
      read();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
      ++refused;
    } catch (const std::exception& other) {
      ADD_FAILURE() << "file " << i << ": not a zero::Error: " << other.what();
      break;
    }
  }
  std::printf("seed %u: %d damaged files refused, %d read\n", kSeed, refused, kFiles - refused);
  return refused;
}

// Reads everything that an open file offers.
void read_all(const File& file, std::uintmax_t file_bytes) {
  std::int64_t total = 0;
  for (const std::string& name : file.names()) {
    const Entry& entry = file.info(name);
    EXPECT_EQ(entry.begin, total);
    total = entry.end;
    const at::Tensor tensor = file.read(name);
    EXPECT_EQ(static_cast<std::int64_t>(tensor.nbytes()), entry.bytes());
    if (at::isFloatingType(entry.dtype)) {
      file.read_into(name, tensor.to(at::kDouble));
    }
  }
  EXPECT_LT(static_cast<std::uintmax_t>(total), file_bytes);
}

TEST(SafetensorsFuzz, DamagedFilesAreRefusedOrReadInBounds) {
  const TestFolder folder;
  const auto path = folder / "x.safetensors";
  save(path, {{"a", at::randn({3, 5})},
              {"b", at::randn({4}, at::kDouble)},
              {"c", at::ones({2, 0})},
              {"d", at::ones({3}, at::kBool)},
              {"e", at::randn({}).to(at::kBFloat16)}});
  const int refused = times_refused(folder, "x.safetensors", path.string(), [&] {
    read_all(File(path), std::filesystem::file_size(path));
  });
  // Damage of the tensors' values alone cannot be seen; that of the header must be, mostly.
  EXPECT_GT(refused, kFiles / 2);
  EXPECT_GT(kFiles - refused, kFiles / 100);
}

TEST(SafetensorsFuzz, DamagedIndexesAreRefusedOrRead) {
  const TestFolder folder;
  save_safetensors_folder(folder.path(), {{"a", at::ones({3})}, {"b", at::ones({5})}},
                          /*per_file=*/1);
  const int refused = times_refused(folder, "model.safetensors.index.json", "", [&] {
    const Folder weights(folder.path());
    for (const std::string& tensor : weights.names()) weights.read(tensor);
  });
  EXPECT_GT(refused, kFiles / 2);
}

}  // namespace
}  // namespace zero::safetensors
