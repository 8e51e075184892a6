// Quantizes values of many kinds, and compares numbers, scales and what comes back with the bounds.

#include <fmt/format.h>

#include <grading/check.hpp>
#include <zero/memory/accounting.hpp>

#include "07b.hpp"

namespace exercise_07b {

using zero::exercise::Mistake;

struct Case {
  const Answer& answer;
  std::int64_t block;
  int bits;
  std::string begin = "";  // of a sentence

  int most() const { return bits == 8 ? 127 : 7; }
};

at::Tensor values_of(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).to(at::kFloat);
}

void check_form(const Case& c, const Quantized& q, std::int64_t values) {
  const auto elements = [](const at::Tensor& t) { return t.defined() ? t.numel() : 0; };
  const std::int64_t blocks = (values + c.block - 1) / c.block;
  if (elements(q.numbers) != values || elements(q.scales) != blocks) {
    throw Mistake(fmt::format(
        "{}{} values in blocks of {} become {} numbers and {} scales, and it takes {} and {}",
        c.begin, values, c.block, elements(q.numbers), elements(q.scales), values, blocks));
  }
  if (q.numbers.scalar_type() != at::kChar || q.scales.scalar_type() != at::kFloat) {
    throw Mistake("numbers are int8 and scales float32");
  }
  const at::Tensor numbers = q.numbers.to(at::kInt);
  const auto worst = numbers[numbers.abs().argmax()].item<int>();
  if (std::abs(worst) <= c.most()) return;
  throw Mistake(fmt::format("{}with {} bits numbers are from -{} to {}, and one is {}", c.begin,
                            c.bits, c.most(), c.most(), worst));
}

// What stands for `values`, and the scale of each value.
struct Back {
  at::Tensor values, scales;
};

Back back_from(const Case& c, const Quantized& q) {
  const auto n = q.numbers.numel();
  const at::Tensor scales = q.scales.flatten().repeat_interleave(c.block).narrow(0, 0, n);
  const at::Tensor values = c.answer.dequantize(q, c.block);
  if (!values.defined() || values.numel() != n || values.scalar_type() != at::kFloat) {
    throw Mistake(fmt::format("{}dequantize() must return {} values of float32", c.begin, n));
  }
  if (!values.equal(q.numbers * scales)) {
    throw Mistake(c.begin + "dequantize() does not return each number times its block's scale");
  }
  return {values, scales};
}

void check_error(const Case& c, const at::Tensor& values, const Quantized& q, const Back& back) {
  const at::Tensor errors =
      (values.to(at::kDouble) - back.values.to(at::kDouble)).abs() / back.scales.to(at::kDouble);
  const auto worst = errors.argmax().item<std::int64_t>();
  const double error = errors[worst].item<double>();
  if (error <= 0.5001) return;
  const auto number = q.numbers[worst].item<int>();
  const double in_scales = values[worst].item<double>() / back.scales[worst].item<double>();
  std::string cause;
  if (std::abs(number) == c.most() && std::abs(in_scales) > c.most()) {
    cause = ": the largest value of a block is clipped, because its scale is too small";
  } else if (number == std::trunc(in_scales)) {
    cause = ": cut off where it should be rounded";
  }
  throw Mistake(fmt::format("{}with {} bits {} comes back as {}, which is wrong by {:.4f} scales{}",
                            c.begin, c.bits, values[worst].item<double>(),
                            back.values[worst].item<double>(), error, cause));
}

// For blocks without tiny values: the largest is `most` scales.
void check_scale(const Case& c, const at::Tensor& values, const Quantized& q) {
  for (std::int64_t b = 0; b < q.scales.numel(); ++b) {
    const at::Tensor of_block =
        values.narrow(0, b * c.block, std::min(c.block, values.numel() - b * c.block));
    const double enough = of_block.abs().max().item<double>() / c.most();
    const double scale = q.scales.flatten()[b].item<double>();
    if (scale <= enough * (1 + 1e-6)) continue;
    throw Mistake(fmt::format(
        "{}a block has the scale {} where {} is enough: the largest value of the block decides",
        c.begin, scale, enough));
  }
}

void check_twice(const Case& c, const Quantized& q, const Back& back) {
  const Quantized again = c.answer.quantize(back.values, c.block, c.bits);
  check_form(c, again, back.values.numel());
  if (again.numbers.equal(q.numbers) && again.scales.equal(q.scales)) return;
  const at::Tensor changed = again.scales.ne(q.scales);
  std::string rest = ": numbers change";
  if (changed.any().item<bool>()) {
    const auto first = changed.flatten().to(at::kByte).argmax().item<std::int64_t>();
    rest = fmt::format(
        ": the scale of {} of {} blocks changes, of one from {:.9g} to {:.9g}; divide by {}",
        changed.sum().item<std::int64_t>(), changed.numel(),
        q.scales.flatten()[first].item<double>(), again.scales.flatten()[first].item<double>(),
        c.most());
  }
  throw Mistake(fmt::format("{}with {} bits quantizing twice is not the same as once{}", c.begin,
                            c.bits, rest));
}

// All that holds for finite values. Returns what comes back.
at::Tensor check_values(const Case& c, const at::Tensor& values, bool tiny = false) {
  const Quantized q = c.answer.quantize(values.clone(), c.block, c.bits);
  check_form(c, q, values.numel());
  if (!(q.scales > 0).logical_and(q.scales.isfinite()).all().item<bool>()) {
    throw Mistake(c.begin + "a scale is 0 or not finite: what is divided by it is no number");
  }
  const Back back = back_from(c, q);
  check_error(c, values, q, back);
  if (!tiny) check_scale(c, values, q);
  check_twice(c, q, back);
  return back.values;
}

// Scales of which all multiples up to 127 are floats.
void check_multiples(Case c) {
  c.begin = "of whole numbers times a scale, ";
  at::manual_seed(2);
  const at::Tensor scales = at::randint(1, 1 << 12, {64, 1}) * std::ldexp(1.0, -14);
  const at::Tensor numbers = at::randint(-c.most(), c.most() + 1, {64, c.block});
  numbers.select(1, 0).fill_(c.most());
  const at::Tensor values = (numbers * scales).to(at::kFloat).flatten();
  const at::Tensor back = check_values(c, values);
  const auto wrong = back.ne(values).sum().item<std::int64_t>();
  if (wrong == 0) return;
  throw Mistake(fmt::format("{}{} of {} do not come back exactly", c.begin, wrong, back.numel()));
}

void check_special(Case c) {
  c.block = 4;
  c.begin = "in a block of zeros, ";
  check_values(c, values_of({1, -2, 3, 4, 0, 0, 0, 0}), /*tiny=*/true);
  c.begin = "in a block of large floats, ";
  check_values(c, values_of({3e38, -3e38, 1e38, 0}));
  c.begin = "in a block of tiny values, ";
  for (const double largest : {1.0, 60.0, 190.0, 1000.0, 123456.0, 40e6}) {
    at::Tensor values = values_of({1.0, -0.45, 0.3, 0.01}).to(at::kDouble);
    values = (values * largest).round() * std::ldexp(1.0, -149);
    check_values(c, values.to(at::kFloat), /*tiny=*/true);
  }
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const at::Tensor values = values_of({1, 2, 3, 4, 5, bad, 6, -7, 8, 9, 10, 11});
    const Quantized q = c.answer.quantize(values, c.block, c.bits);
    c.begin = fmt::format("of a block with {}, ", bad);
    check_form(c, q, values.numel());
    const at::Tensor is_nan = c.answer.dequantize(q, c.block).isnan();
    if (!is_nan.narrow(0, 4, 4).all().item<bool>()) {
      throw Mistake(c.begin + "a value comes back as a number, where all must be NaN");
    }
    if (is_nan.sum().item<std::int64_t>() > 4) {
      throw Mistake(c.begin + "NaN has come into another block");
    }
  }
}

void check_memory(const Case& c) {
  constexpr std::int64_t kValues = 10001;
  const std::int64_t blocks = (kValues + c.block - 1) / c.block;
  const at::Tensor values = at::randn({kValues});
  const auto held = [] { return zero::memory::snapshot().total; };
  const std::int64_t before = held();
  const Quantized q = c.answer.quantize(values, c.block, c.bits);
  const std::int64_t bytes = held() - before, enough = kValues + 4 * blocks;
  if (bytes <= enough + 64) return;
  throw Mistake(fmt::format(
      "{} values in blocks of {} keep {} bytes, and {} numbers and {} scales have {}: a view keeps "
      "the memory of what it is a part of",
      kValues, c.block, bytes, kValues, blocks, enough));
}

void check_packing(const Answer& answer) {
  const at::Tensor first = answer.pack(at::tensor({1, 2}, at::kChar));
  if (first.defined() && first.numel() == 1 && first.item<int>() == 0x12) {
    throw Mistake("(1, 2) is packed as 0x12, and the first number is in the low four bits: 0x21");
  }
  for (const std::int64_t count : {1, 2, 5, 16, 33}) {
    const at::Tensor numbers = (at::arange(count) % 16 - 8).to(at::kChar);
    const at::Tensor packed = answer.pack(numbers);
    if (!packed.defined() || packed.numel() != (count + 1) / 2 ||
        packed.scalar_type() != at::kByte) {
      throw Mistake(
          fmt::format("{} numbers of 4 bits make {} bytes, of uint8", count, (count + 1) / 2));
    }
    const at::Tensor back = answer.unpack(packed, count);
    if (!back.defined() || back.numel() != count || back.scalar_type() != at::kChar) {
      throw Mistake(fmt::format("unpack() must return {} numbers of int8", count));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const int right = numbers[i].item<int>(), number = back[i].item<int>();
      if (number == right) continue;
      throw Mistake(fmt::format("number {} of {} is {} and comes back as {}{}", i, count, right,
                                number,
                                number == right + 16 ? ": four bits above 7 are negative" : ""));
    }
  }
}

void check_all(const Answer& answer) {
  for (const int bits : {8, 4}) {
    at::manual_seed(1);
    for (const std::int64_t block : {1, 16, 64}) {
      for (const std::int64_t count : {1, 2, 15, 16, 17, 100}) {
        check_values({answer, block, bits}, at::randn({count}));
      }
    }
    check_values({answer, 16, bits}, at::randn({4096 * 16}));
    check_multiples({answer, 16, bits});
    check_special({answer, 4, bits});
  }
  check_memory({answer, 2048, 8});
  check_packing(answer);
}

// The exact shard of a rank.
at::Tensor shard_of(int rank, std::int64_t elements) {
  at::manual_seed(rank + 3);
  return at::randn({elements}) * (rank + 1);
}

void check_gather(const Answer& answer, zero::dist::Communicator& ranks) {
  constexpr std::int64_t kBlock = 16, kBlocks = 6, kElements = kBlock * kBlocks;
  const int rank = ranks.rank(), size = ranks.size();
  const std::string begin = fmt::format("gather() on rank {} of {} ", rank, size);
  const at::Tensor mine = shard_of(rank, kElements);
  const zero::dist::Traffic before = ranks.traffic();
  const at::Tensor whole = answer.gather(ranks, mine, kBlock);
  const std::int64_t sent = ranks.traffic().since(before).bytes();
  if (!whole.defined() || whole.numel() != size * kElements || whole.scalar_type() != at::kFloat) {
    throw Mistake(fmt::format("{}must return {} values of float32", begin, size * kElements));
  }
  if (!mine.equal(shard_of(rank, kElements))) {
    throw Mistake(begin + "changes its exact shard: the optimizer needs it");
  }
  for (int owner = 0; owner < size; ++owner) {
    const at::Tensor shard = whole.flatten().narrow(0, owner * kElements, kElements);
    const at::Tensor exact = shard_of(owner, kElements);
    if (shard.equal(answer.dequantize(answer.quantize(exact, kBlock, 8), kBlock))) continue;
    if (shard.equal(exact)) {
      throw Mistake(fmt::format("{}returns the exact shard of rank {}: {}", begin, owner,
                                owner == rank && size > 1
                                    ? "the other ranks compute with what its 8 bits stand for"
                                    : "it should be what 8 bits stand for"));
    }
    throw Mistake(
        fmt::format("{}does not return what the 8 bits of rank {} stand for", begin, owner));
  }
  const std::int64_t enough = (size - 1) * (kElements + 4 * kBlocks);
  if (sent == enough) return;
  throw Mistake(
      fmt::format("{}sends {} bytes, and numbers and scales have {}", begin, sent, enough));
}

void check(const Answer& answer) {
  zero::exercise::on_ranks(1, [&](zero::dist::Communicator&) { check_all(answer); });
  for (const int size : {2, 3, 1}) {
    zero::exercise::on_ranks(size,
                             [&](zero::dist::Communicator& ranks) { check_gather(answer, ranks); });
  }
}

}  // namespace exercise_07b
