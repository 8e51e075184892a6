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
std::string damaged(std::string bytes, std::mt19937& random) {
  const auto below = [&](std::size_t count) { return random() % count; };
  for (std::size_t times = 1 + below(4); times > 0 && !bytes.empty(); --times) {
    const std::size_t at = below(bytes.size()), digit = bytes.find_first_of("0123456789", at);
    switch (below(7)) {
      case 0:  // any byte
        bytes[at] = static_cast<char>(below(256));
        break;
      case 1:  // one bit
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:  // another JSON character
        bytes[at] = "0123456789[]{},:\"-.eE \\"[below(23)];
        break;
      case 3:  // a digit where a digit was: the JSON stays valid, the numbers lie
        if (digit != std::string::npos) bytes[digit] = static_cast<char>('0' + below(10));
        break;
      case 4:  // cut short
        bytes.resize(at);
        break;
      case 5:  // a piece missing
        bytes.erase(at, 1 + below(9));
        break;
      default:  // a piece twice
        bytes.insert(at, bytes.substr(at, 1 + below(9)));
    }
  }
  return bytes;
}

// Damages the file `name` of the folder again and again, and reads it; how often it was refused, by
// errors that have `said` in them.
int times_refused(const TestFolder& folder, const std::string& name, const std::string& said,
                  const std::function<void()>& read) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::string valid = testing::read_bytes(folder / name);
  EXPECT_FALSE(valid.empty());
  std::mt19937 random(kSeed);
  int refused = 0;
  for (int i = 0; i < kFiles; ++i) {
    // Some file systems bring a file to the disk when it is overwritten, but not when it is new.
    std::filesystem::remove(folder / name);
    folder.write(name, damaged(valid, random));
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
