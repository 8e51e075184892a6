#include <fmt/format.h>

#include "quantity.hpp"
#include "tables.hpp"
#include "traffic.hpp"
#include "whole_parameters.hpp"

namespace zero::plan {
namespace {

using base::Align;
using base::fixed;
using base::Table;

struct Row {
  Scheme scheme;
  const char* formula;
  const char* by_owner;
};

constexpr Row kRows[] = {
    {Scheme::kDdp, "2 V (N-1)/N", "2 V (N-1)/N"},
    {Scheme::kZero1Naive, "3 V (N-1)/N", "2 V (N-1)/N + (N-1) o"},
    {Scheme::kZero1, "2 V (N-1)/N", "V + (N-2) o"},
    {Scheme::kZero2, "2 V (N-1)/N", "V + (N-2) o"},
    {Scheme::kZero2Placeholder, "(N-1) V + V (N-1)/N", "(N-1) (V + o)"},
    {Scheme::kZero3, "3 V (N-1)/N", "V - o + (N-1) (2 o - o_kept)"},
    {Scheme::kZero3Kept, "2 V (N-1)/N", "V + (N-2) o"},
};

NamedTable schemes() {
  constexpr Copies kOne = {1, 1};
  Table table({{"", Align::kLeft},
               {"equal shares", Align::kLeft},
               {"N = 2", Align::kRight, "V"},
               {"4", Align::kRight, "V"},
               {"8", Align::kRight, "V"},
               {"a rank that owns o bytes, tensors whole", Align::kLeft}});
  for (const Row& row : kRows) {
    std::vector<std::string> cells = {name(row.scheme), row.formula};
    for (const std::int64_t n : {2, 4, 8}) {
      cells.push_back(fixed(sent(row.scheme, kOne, n).total(), 3));
    }
    cells.push_back(row.by_owner);
    table.add_row(std::move(cells));
  }
  const Model model = model_of(nn::preset("smollm2-360m"), "SmolLM2-360M");
  const double kept = static_cast<double>(model.root) / static_cast<double>(model.parameters);
  return {"Bytes sent by a rank in a step; V one copy of the parameters, N ranks",
          std::move(table),
          {fmt::format("With the root kept from forward to backward ZeRO-3 sends {} V at N = 2 for "
                       "SmolLM2-360M.",
                       fixed(sent(Scheme::kZero3, kOne, 2, kept).total(), 3))}};
}

NamedTable one_and_a_half_billion() {
  const Copies v = copies(1'500'000'000, mixed());
  Table table({{"", Align::kLeft},
               {"total", Align::kRight, "GiB"},
               {"reduced", Align::kRight, "GiB"},
               {"gathered", Align::kRight, "GiB"}});
  for (const Stage stage : kStages) {
    const Traffic traffic = volume(scheme_of(stage), v, /*world_size=*/8);
    table.add_row({name(stage), in(traffic.total(), Unit::kGiB),
                   in(traffic.gradients_reduced, Unit::kGiB),
                   in(traffic.gradients_gathered + traffic.parameters_gathered, Unit::kGiB)});
  }
  return {"1.5 B parameters in 2 bytes, without the factor (N-1)/N", std::move(table)};
}

}  // namespace

std::vector<NamedTable> communication_tables() {
  std::vector<NamedTable> tables;
  tables.push_back(schemes());
  tables.push_back(one_and_a_half_billion());
  return tables;
}

}  // namespace zero::plan
