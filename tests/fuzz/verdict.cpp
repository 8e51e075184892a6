// What a program's modes have recorded, beside the plain program.

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <tests/support/modes.hpp>
#include <zero/base/error.hpp>

#include "script.hpp"

namespace zero::testing {
namespace {

constexpr const char* kRefused = "a flat all-reduce needs one dtype";  // of ddp:flat, by its name
constexpr const char* kSecondOrder = "needs stages 0 to 2";

// How far a tensor may be from the other: to the last bit, or relative to its largest element.
bool are_close(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (a.sizes() != b.sizes() || !at::equal(a.isnan(), b.isnan())) return false;
  const at::Tensor one = a.nan_to_num(), other = b.nan_to_num();
  if (tolerance == 0 || a.numel() == 0) return at::equal(one, other);
  const auto largest = [](const at::Tensor& x) {
    return x.abs().max().to(at::kDouble).item<double>();
  };
  return largest(one - other) <= tolerance * (1 + largest(other));
}

// What differs first; empty if nothing does.
std::string difference(const Record& record, const Record& expected, double tolerance) {
  for (std::size_t i = 0; i < std::min(record.size(), expected.size()); ++i) {
    const auto& [name, tensor] = record[i];
    const auto& [expected_name, other] = expected[i];
    if (name != expected_name) return fmt::format("{} where {} was expected", name, expected_name);
    if (are_close(tensor, other, tolerance)) continue;
    return fmt::format("{} differs by {:.2g}", name,
                       (tensor - other).abs().max().to(at::kDouble).item<double>());
  }
  if (record.size() != expected.size()) return "one has more records";
  return "";
}

bool is_second_order(const Program& program) {
  return program.loop.find_first_of("qQ") != std::string::npos;
}

// How far the first mode may be from the plain program; all others must have its bits. The hooks of
// units group the terms of a sum that meet in the output of a unit. In a graph of second order such
// terms may come from within the unit too, and then the plain program adds them in another order.
// Only an update that is linear in the gradient keeps so small a difference small, and the sign of
// a gradient (g) does not.
double tolerance_of(const Program& program) {
  if (program.modes.front().starts_with("hddp:")) return 1e-4;  // it adds in another order
  if (!is_second_order(program)) return 0;
  const bool is_linear = program.optimizer == "sgd" && program.loop.find('g') == std::string::npos;
  if (!is_linear || program.dtype == "bfloat16") return std::numeric_limits<double>::infinity();
  return program.dtype == "float" ? 1e-4 : 1e-12;
}

}  // namespace

std::string verdict(const Program& program, dist::Communicator& communicator) {
  Record expected;
  try {
    expected = play(program, *plain_side(program), communicator.rank());
  } catch (const std::exception& error) {
    return kInvalid + message_of(error);
  }
  double tolerance = tolerance_of(program);
  for (const std::string& mode : program.modes) {
    const bool may_refuse = is_second_order(program) && is_stage_3(mode);
    std::string text;
    try {
      const auto side = mode_side(program, mode, communicator);
      const Record record = play(program, *side, communicator.rank());
      if (may_refuse && program.parts.find_first_of("lL") != std::string::npos) {
        throw Error("a second backward through units was not refused");
      }
      text = difference(record, expected, std::exchange(tolerance, 0));
      expected = record;
    } catch (const std::exception& error) {
      const std::string message = message_of(error);
      const char* const may = may_refuse ? kSecondOrder : kRefused;
      if (message.find(may) == std::string::npos) text = "error: " + message;
    }
    // All ranks go on, or none.
    for (const std::string& of_rank : communicator.exchange(text)) {
      if (!of_rank.empty()) return fmt::format("{}: {}", mode, of_rank);
    }
  }
  return "";
}

}  // namespace zero::testing
