// Quantizing beside copying as many bytes, one thread.   ./run bench quantize

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cstring>

#include <tests/bench/bench.hpp>
#include <zero/base/error.hpp>

#include "quantize.hpp"

namespace zero::quantization {
namespace {

struct Settings {
  std::int64_t millions = 16;  // of elements
  int repetitions = 10;
};

// Each repetition is followed by a copy that reads and writes as many bytes together.
bench::Measured beside_copy(const Settings& settings, std::int64_t bytes,
                            const std::function<void()>& work) {
  const at::Tensor from = at::zeros({bytes / 2}, at::kByte), to = at::zeros_like(from);
  const auto copy = [&] {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<std::size_t>(bytes / 2));
  };
  return bench::beside_copy(settings.repetitions, static_cast<double>(bytes), work, copy);
}

// Throws unless `out` is within half a step of `values`; rounding to 16 bits adds up to another
// half.
void check(const at::Tensor& values, const at::Tensor& out, const Format& format) {
  const at::Tensor a = values.to(at::kFloat), b = out.to(at::kFloat);
  const double step = a.abs().max().item<double>() / format.largest();
  const double steps = out.scalar_type() == at::kFloat ? 0.5001 : 1.0;
  if ((a - b).abs().max().item<double>() > steps * step) {
    throw Error(fmt::format("a value is farther from what was quantized than {} steps", steps));
  }
}

struct Case {
  Format format;
  at::ScalarType dtype = at::kFloat;
};

struct Data {
  at::Tensor values, packed, out;
  BlockLayout layout;
  std::int64_t value_bytes;

  Data(const Settings& settings, const Case& c)
      : values(at::randn({settings.millions * 1'000'000}).to(c.dtype)),
        out(at::zeros_like(values)),
        layout({values.numel()}, c.format),
        value_bytes(static_cast<std::int64_t>(values.nbytes())) {
    at::set_num_threads(1);
    packed = at::zeros({layout.packed_bytes()}, at::kByte);
    quantize(values, layout, packed);
    dequantize(packed, layout, out);
    check(values, out, c.format);
    if (c.dtype != at::kFloat) return;
    const at::Tensor sum = at::zeros_like(out);
    dequantize_and_add(packed, layout, sum);
    if (!at::equal(sum, out)) throw Error("what was added to 0 is not what was dequantized");
  }
};

void add_case(const Settings& settings, const Case& c) {
  const std::string what =
      fmt::format("{}/int{}/{}M", c10::toString(c.dtype), c.format.bits, settings.millions);
  bench::add("quantize/" + what, [=] {
    const Data d(settings, c);
    return beside_copy(settings, d.value_bytes + d.packed.numel(),
                       [&] { quantize(d.values, d.layout, d.packed); });
  });
  bench::add("dequantize/" + what, [=] {
    const Data d(settings, c);
    return beside_copy(settings, d.value_bytes + d.packed.numel(),
                       [&] { dequantize(d.packed, d.layout, d.out); });
  });
  if (c.dtype != at::kFloat) return;
  bench::add("dequantize_and_add/" + what, [=] {
    const Data d(settings, c);
    return beside_copy(settings, 2 * d.value_bytes + d.packed.numel(),
                       [&] { dequantize_and_add(d.packed, d.layout, d.out); });
  });
}

int run(int argc, char** argv) {
  Settings settings;
  CLI::App options{"Quantizing on one thread, beside a copy of as many bytes."};
  bench::number(options, "--millions", settings.millions, "of elements", 1, 1000);
  bench::number(options, "--repetitions", settings.repetitions,
                "after a first one that is not counted", 1, 10000);
  return bench::run(argc, argv, options, [&] {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int bits : {8, 4}) add_case(settings, {{.bits = bits}, dtype});
    }
  });
}

}  // namespace
}  // namespace zero::quantization

int main(int argc, char** argv) { return zero::quantization::run(argc, argv); }
