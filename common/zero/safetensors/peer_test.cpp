// The files of the `safetensors` Python package, read and written again: both directions.

#include <tests/support/data_files.hpp>
#include <tests/support/python.hpp>
#include <tests/support/safetensors_test_files.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::safetensors {
namespace {

using testing::TestFolder;
using zero::testing::python;

TEST(SafetensorsPeer, FilesOfThePythonPackageAreReadAndWritten) {
  const TestFolder folder;
  if (!zero::testing::python_has({"torch", "safetensors"})) {
    GTEST_SKIP() << "the Python package safetensors IS NOT COMPARED WITH: " << python()
                 << " lacks torch or safetensors. To enable: " << python()
                 << " -m pip install -r requirements-peers.txt, or set ZERO_PYTHON.";
  }
  const std::string script =
      "'" + (testing::repository() / "tests/peers/safetensors_roundtrip.py").string() + "' ";
  const std::string argument = " '" + folder.path().string() + "'";
  const auto wrote = zero::testing::run_python(script + "write" + argument);
  ASSERT_EQ(wrote.code, 0) << wrote.said;

  const File file(folder / "from_python.safetensors");
  NamedTensors tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.read(name));
  save(folder / "from_cpp.safetensors", tensors, file.metadata());
  const auto checked = zero::testing::run_python(script + "check" + argument);
  EXPECT_EQ(checked.code, 0) << checked.said;
}

}  // namespace
}  // namespace zero::safetensors
