// Reading and writing single files, and ranges of their tensors: what goes in comes out.

#include <cmath>
#include <limits>

#include <tests/support/safetensors_test_files.hpp>
#include <tools/support/process.hpp>
#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/safetensors/safetensors.hpp>

namespace zero::safetensors {
namespace {

using testing::expect_error;
using testing::hand_made;
using testing::kAllDtypes;
using testing::kFloatDtypes;
using testing::same_bits;
using testing::some_values;
using testing::TestFolder;

// More than two pieces of scratch for every dtype, and no multiple of a vector's width.
constexpr std::int64_t kManyPieces = 2 * kScratchBytes + 13;

// Ordinary values and every border of the float formats, NaN left out.
at::Tensor difficult_values(at::ScalarType dtype) {
  using limits = std::numeric_limits<float>;
  const at::Tensor borders =
      at::tensor({0.0, -0.0, 65504.0, 65519.99, 65520.0, 6e-8, 3e-8, 1e-40, 1e-300, 1e300, 3.39e38,
                  1.00390625, 1.01171875, 1.0009765625, 1.0029296875, double{limits::infinity()},
                  -double{limits::infinity()}, double{limits::max()}},
                 at::kDouble);
  const at::Tensor ordinary = at::randn({400'001}, at::kDouble) * 3;
  return at::cat({ordinary, borders, ordinary * 1e-5}).to(dtype);
}

TEST(Safetensors, EveryDtypeAndShapeComesBackBitForBit) {
  const TestFolder folder;
  const std::vector<std::vector<std::int64_t>> shapes = {
      {}, {0}, {1}, {7}, {3, 0, 5}, {2, 3}, {1, 1, 1, 1}, {5, 3, 2, 7}, {kManyPieces}};
  NamedTensors tensors;
  for (const at::ScalarType dtype : kAllDtypes) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      tensors.emplace_back(std::string(c10::toString(dtype)) + std::to_string(i),
                           some_values(shapes[i], dtype));
    }
  }
  save(folder / "all.safetensors", tensors);

  const File file(folder / "all.safetensors");
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(file.contains(name));
    EXPECT_EQ(file.info(name).dtype, tensor.scalar_type());
    EXPECT_EQ(at::IntArrayRef(file.info(name).shape), tensor.sizes());
    EXPECT_TRUE(file.read(name).is_contiguous());
    EXPECT_TRUE(same_bits(file.read(name), tensor)) << name;
  }
}

// Written by hand from the description of the format: reader and writer could share an error.
TEST(Safetensors, ReadsAFileMadeByHand) {
  const TestFolder folder;
  const std::string header = R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("__metadata__":{"format":"pt","by":"hand"},)"
                             R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[3,11]},)"
                             R"("half":{"dtype":"BF16","shape":[],"data_offsets":[11,13]}} )";
  using namespace std::string_literals;
  const std::string data =
      "\x01\x02\xff"s + "\x00\x00\x80\x3f"s + "\x00\x00\x20\xc1"s + "\x40\xc0"s;
  const File file(folder.write("hand.safetensors", hand_made(header, data)));

  EXPECT_EQ(file.names(), (std::vector<std::string>{"b", "a", "half"}));
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}, {"by", "hand"}}));
  EXPECT_EQ(file.info("a").begin, 3);
  EXPECT_EQ(file.info("a").end, 11);
  EXPECT_TRUE(same_bits(file.read("b"), at::tensor({1, 2, 255}, at::kByte)));
  EXPECT_TRUE(same_bits(file.read("a"), at::tensor({1.0F, -10.0F}).view({2, 1})));
  EXPECT_TRUE(same_bits(file.read("half"), at::full({}, -3.0, at::kBFloat16)));
}

TEST(Safetensors, WritesTheBytesOfTheDescription) {
  const TestFolder folder;
  save(folder / "x.safetensors",
       {{"flags", at::ones({3}, at::kBool)}, {"w", at::full({1, 2}, 1.0F)}}, {{"format", "pt"}});
  // 4-byte elements first, so that they are aligned; spaces up to a multiple of 8.
  std::string header = R"({"__metadata__":{"format":"pt"},)"
                       R"("w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                       R"("flags":{"dtype":"BOOL","shape":[3],"data_offsets":[8,11]}})";
  while (header.size() % 8 != 0) header += ' ';
  using namespace std::string_literals;
  const std::string data = "\x00\x00\x80\x3f\x00\x00\x80\x3f"s + "\x01\x01\x01"s;
  EXPECT_EQ(testing::read_bytes(folder / "x.safetensors"), hand_made(header, data));
}

TEST(Safetensors, AFileWithoutTensorsIsAFile) {
  const TestFolder folder;
  save(folder / "none.safetensors", {}, {});
  const File file(folder / "none.safetensors");
  EXPECT_TRUE(file.names().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, NamesAndMetadataMayHoldAnyText) {
  const TestFolder folder;
  const std::string odd = "a \"quoted\" name \\ with\nlines, \xc3\xa9 and \x01";
  save(folder / "x.safetensors", {{odd, at::ones({2})}, {"", at::ones({1})}}, {{odd, odd}});
  const File file(folder / "x.safetensors");
  EXPECT_TRUE(file.contains(odd));
  EXPECT_TRUE(file.contains(""));
  EXPECT_EQ(file.metadata().at(odd), odd);
}

TEST(Safetensors, ReadingAndWritingConvertAsTensorToDoes) {
  const TestFolder folder;
  for (const at::ScalarType from : kFloatDtypes) {
    const at::Tensor values = difficult_values(from);
    const at::Tensor nan = at::full({1000}, std::nan("")).to(from);
    save(folder / "x.safetensors", {{"x", values}, {"nan", nan}});
    const File file(folder / "x.safetensors");
    for (const at::ScalarType to : kFloatDtypes) {
      SCOPED_TRACE(std::string(c10::toString(from)) + " to " + c10::toString(to));
      const at::Tensor out = at::empty(values.sizes(), to), still_nan = at::zeros({1000}, to);
      file.read_into("x", out);
      EXPECT_TRUE(same_bits(out, values.to(to)));
      file.read_into("nan", still_nan);
      EXPECT_TRUE(at::isnan(still_nan).all().item<bool>());
      Writer writer(folder / "y.safetensors", {{"y", to, values.sizes().vec()}}, {});
      writer.write("y", values);
      writer.finish();
      EXPECT_TRUE(same_bits(File(folder / "y.safetensors").read("y"), values.to(to)));
    }
  }
}

// The data of foreign files may begin at any byte; a tensor's elements may not.
TEST(Safetensors, ConvertsFromUnalignedData) {
  const TestFolder folder;
  const at::Tensor values = at::randn({1001}, at::kDouble);
  const std::string data(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  const std::string entry = R"({"x":{"dtype":"F64","shape":[1001],"data_offsets":[0,8008]}})";
  for (std::size_t spaces = 0; spaces < 8; ++spaces) {
    const File file(
        folder.write("x.safetensors", hand_made(entry + std::string(spaces, ' '), data)));
    const at::Tensor out = at::empty({1001}, at::kFloat);
    file.read_into("x", out);
    EXPECT_TRUE(same_bits(out, values.to(at::kFloat))) << spaces;
    EXPECT_TRUE(same_bits(file.read("x"), values)) << spaces;
  }
}

TEST(Safetensors, StridedTensorsAreReadAndWrittenInRowMajorOrder) {
  const TestFolder folder;
  const at::Tensor wide = at::randn({1200, 1001});
  const std::vector<at::Tensor> views = {
      wide.t(),                                        // more than one piece, rows that fit one
      wide.slice(1, 1, 1001, 3),                       // gaps
      wide.view({2, 600 * 1001}).t(),                  // two long columns
      wide.view({2, 600 * 1001}).t().t().slice(1, 5),  // rows longer than a piece, not contiguous
      at::randn({3, 5, 4}).permute({2, 0, 1}),
  };
  for (const at::Tensor& view : views) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      Writer writer(folder / "x.safetensors", {{"x", dtype, view.sizes().vec()}}, {});
      writer.write("x", view);
      writer.finish();
      const File file(folder / "x.safetensors");
      EXPECT_TRUE(same_bits(file.read("x"), view.to(dtype))) << view.sizes();

      const at::Tensor base = at::zeros({wide.numel()});
      const at::Tensor out = at::as_strided(base, view.sizes(), view.strides().vec(), 0);
      EXPECT_FALSE(out.is_contiguous());
      file.read_into("x", out);
      EXPECT_TRUE(same_bits(out, view.to(dtype).to(at::kFloat))) << view.sizes();
    }
  }
}

// What reading and writing do to the tensors on the program's side, and to its memory.
class SafetensorsTensor : public ::testing::Test {
 protected:
  // One file with a matrix "w" and integers "ids".
  SafetensorsTensor() { save(path_, {{"w", matrix_}, {"ids", at::ones({4}, at::kLong)}}); }
  File open() const { return File(path_); }

  TestFolder folder_;
  std::filesystem::path path_ = folder_ / "x.safetensors";
  at::Tensor matrix_ = at::randn({6, 5});
};

TEST_F(SafetensorsTensor, AParameterIsReadIntoBelowAutograd) {
  const at::Tensor parameter = at::zeros({6, 5}).requires_grad_();
  const at::Tensor factor = at::ones({6, 5}).requires_grad_();
  const at::Tensor loss = (parameter * factor).sum();  // saves the parameter for backward
  const auto version = parameter._version();
  open().read_into("w", parameter);
  EXPECT_TRUE(same_bits(parameter, matrix_));
  EXPECT_EQ(parameter._version(), version);
  EXPECT_TRUE(parameter.is_leaf());
  EXPECT_TRUE(parameter.requires_grad());
  loss.backward();  // a raised version counter would stop it here
  EXPECT_TRUE(same_bits(factor.grad(), matrix_));
}

TEST_F(SafetensorsTensor, ReadGivesATensorOfItsOwn) {
  const File file = open();
  const at::Tensor first = file.read("w");
  first.zero_();
  EXPECT_TRUE(same_bits(file.read("w"), matrix_));
}

TEST_F(SafetensorsTensor, AnOpenFileSurvivesItsReplacement) {
  const File file = open();
  save(path_, {{"other", at::ones({3})}});
  EXPECT_TRUE(same_bits(file.read("w"), matrix_));
  EXPECT_TRUE(open().contains("other"));
}

TEST_F(SafetensorsTensor, ReadIntoRefusesWhatDoesNotFit) {
  const File file = open();
  const auto read = [&](const std::string& name, const at::Tensor& out) {
    return [&, name, out] { file.read_into(name, out); };
  };
  const std::string path = path_.string();
  expect_error(read("w", at::empty({5, 6})), {path, "\"w\"", "[5, 6]", "[6, 5]"});
  expect_error(read("w", at::empty({30})), {path, "\"w\"", "[30]", "[6, 5]"});
  expect_error(read("w", at::empty({6, 5}, at::kLong)), {path, "\"w\"", "Long", "Float"});
  expect_error(read("ids", at::empty({4})), {path, "\"ids\"", "Float", "Long"});
  expect_error(read("ids", at::empty({4}, at::kInt)), {path, "\"ids\"", "Int", "Long"});
  expect_error(read("v", at::empty({6, 5})), {path, "\"v\"", "among its 2"});
}

TEST_F(SafetensorsTensor, UnknownNamesAreRefused) {
  const File file = open();
  expect_error([&] { file.read("idz"); }, {"\"idz\"", "among its 2:"});
  expect_error([&] { file.info("embedding"); }, {"\"embedding\"", "among its 2"});
  EXPECT_FALSE(file.contains("embedding"));
}

TEST_F(SafetensorsTensor, ATensorWithoutStorageIsNeitherReadIntoNorWritten) {
  const at::Tensor released = at::zeros({6, 5});
  memory::release_storage(released);
  EXPECT_THROW(open().read_into("w", released), Error);
  Writer writer(folder_ / "y.safetensors", {{"w", at::kFloat, {6, 5}}}, {});
  EXPECT_THROW(writer.write("w", released), Error);
  // The writer goes on once the tensor is gathered.
  writer.write("w", matrix_);
  writer.finish();
  EXPECT_TRUE(same_bits(File(folder_ / "y.safetensors").read("w"), matrix_));
}

// Bytes that the allocator handed out at most at once while `action` ran.
template <typename Action>
std::int64_t most_allocated(Action&& action) {
  memory::install();
  memory::reset_peaks();
  const std::int64_t before = memory::snapshot().total;
  action();
  EXPECT_EQ(memory::snapshot().total, before);
  return memory::snapshot().total_peak - before;
}

TEST_F(SafetensorsTensor, ScratchStaysWithinItsBound) {
  const at::Tensor values = at::randn({4000, 1001});  // 15 MiB
  const at::Tensor out = at::zeros({4000, 1001}, at::kBFloat16);
  Writer writer(path_,
                {{"same", at::kFloat, {4000, 1001}},
                 {"wider", at::kDouble, {4000, 1001}},
                 {"turned", at::kFloat, {1001, 4000}}},
                {});
  EXPECT_EQ(most_allocated([&] { writer.write("same", values); }), 0);
  EXPECT_LE(most_allocated([&] { writer.write("wider", values); }), kScratchBytes);
  // What is not contiguous is copied once.
  const auto once = static_cast<std::int64_t>(values.nbytes());
  EXPECT_LE(most_allocated([&] { writer.write("turned", values.t()); }), once + kScratchBytes);
  writer.finish();

  const File file = open();
  EXPECT_EQ(most_allocated([&] { file.read_into("same", values); }), 0);
  EXPECT_LE(most_allocated([&] { file.read_into("wider", out); }), kScratchBytes);
  EXPECT_LE(most_allocated([&] { file.read_into("turned", out.t()); }), once / 2 + kScratchBytes);
}

// A file's pages count in the resident set of the process while they are mapped in.
TEST_F(SafetensorsTensor, ReadingGivesThePagesOfTheFileBack) {
  constexpr std::int64_t kBytes = std::int64_t{64} << 20;
  const at::Tensor out = at::ones({kBytes / 4});  // resident already
  save(path_, {{"large", out}});
  const File file = open();
  const std::int64_t before = tools::resident_set_bytes();
  file.read_into("large", out);
  EXPECT_LT(tools::resident_set_bytes() - before, kBytes / 4);
}

TEST(SafetensorsRange, GivesTheElementsAskedFor) {
  const TestFolder folder;
  // More than a scratch buffer holds, so that a range is read in several goes.
  const std::int64_t count = kScratchBytes / 4 + 1000;
  const at::Tensor whole = at::arange(count, at::kFloat);
  save(folder / "f.safetensors", {{"before", at::zeros({3})}, {"t", whole}});
  const File file(folder / "f.safetensors");
  for (const auto& [begin, size] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, count}, {0, 1}, {count - 1, 1}, {7, count - 9}, {5, 0}, {count, 0}}) {
    const at::Tensor out = at::full({size + 2}, -1.0F);
    file.read_range_into("t", begin, out.narrow(0, 1, size));
    EXPECT_TRUE(at::equal(out.narrow(0, 1, size), whole.narrow(0, begin, size))) << begin;
    EXPECT_EQ(out[0].item<float>(), -1.0F);
    EXPECT_EQ(out[size + 1].item<float>(), -1.0F);
  }
  const at::Tensor converted = at::zeros({2, 3}, at::kDouble);
  file.read_range_into("t", 10, converted);
  EXPECT_TRUE(at::equal(converted, whole.narrow(0, 10, 6).view({2, 3}).to(at::kDouble)));
}

TEST(SafetensorsRange, RefusesWhatIsOutsideTheTensor) {
  const TestFolder folder;
  save(folder / "f.safetensors", {{"t", at::zeros({4})}, {"next", at::zeros({100})}});
  const File file(folder / "f.safetensors");
  EXPECT_THROW(file.read_range_into("t", 1, at::zeros({4})), Error);
  EXPECT_THROW(file.read_range_into("t", -1, at::zeros({2})), Error);
  EXPECT_THROW(file.read_range_into("t", 5, at::zeros({0})), Error);
  EXPECT_THROW(file.read_range_into("u", 0, at::zeros({1})), Error);
  EXPECT_THROW(file.read_range_into("t", 0, at::zeros({4}, at::kInt)), Error);
}

}  // namespace
}  // namespace zero::safetensors
