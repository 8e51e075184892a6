// The files of the `safetensors` Python package, read and written again: both directions.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include <tests/support/data_files.hpp>
#include <tests/support/python.hpp>
#include <tests/support/safetensors_test_files.hpp>
#include <zero/io/safetensors.hpp>

namespace zero::io {
namespace {

using testing::TestFolder;
using zero::testing::python;

// Runs Python; the exit code, with what it printed in `said`.
int run_python(const std::string& arguments, const TestFolder& folder, std::string& said) {
  const auto log = folder / "log";
  const std::string command = "PYTHONDONTWRITEBYTECODE=1 '" + python() + "' " + arguments + " > '" +
                              log.string() + "' 2>&1";
  const int status = std::system(command.c_str());
  said = testing::read_bytes(log);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SafetensorsPeer, FilesOfThePythonPackageAreReadAndWritten) {
  const TestFolder folder;
  std::string said;
  if (!zero::testing::python_has({"torch", "safetensors", "huggingface_hub"})) {
    GTEST_SKIP() << "the Python package safetensors IS NOT COMPARED WITH: " << python()
                 << " lacks torch, safetensors or huggingface_hub. To enable: " << python()
                 << " -m pip install -r requirements-peers.txt, or set ZERO_PYTHON.";
  }
  const std::string script =
      "'" + (testing::repository() / "tests/peers/safetensors_roundtrip.py").string() + "' ";
  const std::string argument = " '" + folder.path().string() + "'";
  ASSERT_EQ(run_python(script + "write" + argument, folder, said), 0) << said;

  const SafetensorsFile file(folder / "from_python.safetensors");
  NamedTensors tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.read(name));
  save_safetensors(folder / "from_cpp.safetensors", tensors, file.metadata());
  save_safetensors_folder(folder / "from_cpp_several", tensors, /*max_bytes=*/2000);
  EXPECT_EQ(run_python(script + "check" + argument, folder, said), 0) << said;
}

}  // namespace
}  // namespace zero::io
