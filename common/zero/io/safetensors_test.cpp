// Reading and writing single files: what goes in comes out.
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include <tests/support/safetensors_test_files.hpp>
#include <zero/io/safetensors.hpp>

namespace zero::io {
namespace {

using testing::hand_made;
using testing::kAllDtypes;
using testing::kFloatDtypes;
using testing::same_bits;
using testing::some_values;
using testing::TestFolder;

// More than two pieces of scratch for every dtype, and no multiple of a vector's width.
constexpr std::int64_t kManyPieces = 2 * kSafetensorsScratchBytes + 13;

// Ordinary values and every border of the float formats, NaN left out.
at::Tensor difficult_values(at::ScalarType dtype) {
  using limits = std::numeric_limits<float>;
  const std::vector<double> borders = {0.0,
                                       -0.0,
                                       limits::infinity(),
                                       -limits::infinity(),
                                       65504,
                                       65519.99,
                                       65520,
                                       6e-8,
                                       3e-8,
                                       1e-40,
                                       1e-300,
                                       1e300,
                                       limits::max(),
                                       3.39e38,
                                       1.00390625,
                                       1.01171875,
                                       1.0009765625,
                                       1.0029296875};
  const at::Tensor ordinary = at::randn({400'001}, at::kDouble) * 3;
  return at::cat({ordinary, at::tensor(borders, at::kDouble), ordinary * 1e-5}).to(dtype);
}

TEST(Safetensors, EveryDtypeAndShapeComesBackBitForBit) {
  const TestFolder folder;
  const std::vector<std::vector<std::int64_t>> shapes = {
      {}, {0}, {1}, {7}, {3, 0, 5}, {2, 3}, {1, 1, 1, 1}, {5, 3, 2, 7}, {1021}};
  NamedTensors tensors;
  for (const at::ScalarType dtype : kAllDtypes) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      tensors.emplace_back(std::string(c10::toString(dtype)) + std::to_string(i),
                           some_values(shapes[i], dtype));
    }
  }
  save_safetensors(folder / "all.safetensors", tensors);

  const SafetensorsFile file(folder / "all.safetensors");
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(file.contains(name));
    EXPECT_EQ(file.info(name).dtype, tensor.scalar_type());
    EXPECT_EQ(at::IntArrayRef(file.info(name).shape), tensor.sizes());
    EXPECT_TRUE(file.read(name).is_contiguous());
    EXPECT_TRUE(same_bits(file.read(name), tensor)) << name;
  }
}

TEST(Safetensors, LargeTensorsComeBackBitForBit) {
  const TestFolder folder;
  for (const at::ScalarType dtype : kAllDtypes) {
    const at::Tensor tensor = some_values({kManyPieces}, dtype);
    save_safetensors(folder / "large.safetensors", {{"x", tensor}});
    EXPECT_TRUE(same_bits(SafetensorsFile(folder / "large.safetensors").read("x"), tensor))
        << dtype;
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
  const SafetensorsFile file(folder.write("hand.safetensors", hand_made(header, data)));

  EXPECT_EQ(file.names(), (std::vector<std::string>{"b", "a", "half"}));
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}, {"by", "hand"}}));
  EXPECT_EQ(file.info("a").begin, 3);
  EXPECT_EQ(file.info("a").end, 11);
  EXPECT_TRUE(same_bits(file.read("b"), at::tensor({1, 2, 255}, at::kByte)));
  EXPECT_TRUE(same_bits(file.read("a"), at::tensor({1.0F, -10.0F}).view({2, 1})));
  EXPECT_TRUE(same_bits(file.read("half"), at::full({}, -3.0, at::kBFloat16)));
}

TEST(Safetensors, WritesTheBytesOfTheDescription) {
  const TestFolder folder;
  save_safetensors(folder / "x.safetensors",
                   {{"flags", at::ones({3}, at::kBool)}, {"w", at::full({1, 2}, 1.0F)}},
                   {{"format", "pt"}});
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
  save_safetensors(folder / "none.safetensors", {}, {});
  const SafetensorsFile file(folder / "none.safetensors");
  EXPECT_TRUE(file.names().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, NamesAndMetadataMayHoldAnyText) {
  const TestFolder folder;
  const std::string odd = "a \"quoted\" name \\ with\nlines, \xc3\xa9 and \x01";
  save_safetensors(folder / "x.safetensors", {{odd, at::ones({2})}, {"", at::ones({1})}},
                   {{odd, odd}});
  const SafetensorsFile file(folder / "x.safetensors");
  EXPECT_TRUE(file.contains(odd));
  EXPECT_TRUE(file.contains(""));
  EXPECT_EQ(file.metadata().at(odd), odd);
}

TEST(Safetensors, ReadIntoConvertsAsTensorToDoes) {
  const TestFolder folder;
  for (const at::ScalarType from : kFloatDtypes) {
    const at::Tensor values = difficult_values(from);
    save_safetensors(folder / "x.safetensors", {{"x", values}});
    const SafetensorsFile file(folder / "x.safetensors");
    for (const at::ScalarType to : kFloatDtypes) {
      const at::Tensor out = at::empty(values.sizes(), to);
      file.read_into("x", out);
      EXPECT_TRUE(same_bits(out, values.to(to))) << from << " to " << to;
    }
  }
}

TEST(Safetensors, WriteConvertsAsTensorToDoes) {
  const TestFolder folder;
  for (const at::ScalarType from : kFloatDtypes) {
    const at::Tensor values = difficult_values(from);
    for (const at::ScalarType to : kFloatDtypes) {
      SafetensorsWriter writer(folder / "x.safetensors", {{"x", to, values.sizes().vec()}}, {});
      writer.write("x", values);
      writer.finish();
      EXPECT_TRUE(same_bits(SafetensorsFile(folder / "x.safetensors").read("x"), values.to(to)))
          << from << " to " << to;
    }
  }
}

TEST(Safetensors, NanStaysNan) {
  const TestFolder folder;
  for (const at::ScalarType from : kFloatDtypes) {
    const at::Tensor values = at::full({1000}, std::numeric_limits<double>::quiet_NaN()).to(from);
    save_safetensors(folder / "x.safetensors", {{"x", values}});
    for (const at::ScalarType to : kFloatDtypes) {
      const at::Tensor out = at::zeros(values.sizes(), to);
      SafetensorsFile(folder / "x.safetensors").read_into("x", out);
      EXPECT_TRUE(at::isnan(out).all().item<bool>()) << from << " to " << to;
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
    const SafetensorsFile file(
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
      SafetensorsWriter writer(folder / "x.safetensors", {{"x", dtype, view.sizes().vec()}}, {});
      writer.write("x", view);
      writer.finish();
      const SafetensorsFile file(folder / "x.safetensors");
      EXPECT_TRUE(same_bits(file.read("x"), view.to(dtype))) << view.sizes();

      const at::Tensor base = at::zeros({wide.numel()});
      const at::Tensor out = at::as_strided(base, view.sizes(), view.strides().vec(), 0);
      EXPECT_FALSE(out.is_contiguous());
      file.read_into("x", out);
      EXPECT_TRUE(same_bits(out, view.to(dtype).to(at::kFloat))) << view.sizes();
    }
  }
}

}  // namespace
}  // namespace zero::io
