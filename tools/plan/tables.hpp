#pragma once

#include <string>
#include <vector>

#include <zero/base/table.hpp>

/// The figures of the literature, computed from this project's own formulas. Nothing in them is
/// copied: change a formula, and a table changes and its test fails.
namespace zero::plan {

struct NamedTable {
  std::string title;
  base::Table table;
  std::vector<std::string> notes = {};
};

/// SmolLM2-360M on 2 ranks, fp32, AdamW: the memory ladder, and how uneven whole tensors are.
std::vector<NamedTable> ladder_tables();
/// Model states: ratios, limits, 1.5 B, 7 B and 13 B parameters, offload, activations.
std::vector<NamedTable> model_state_tables();
/// Bytes sent by a rank in a step.
std::vector<NamedTable> communication_tables();
/// Which stage fits, lookahead, break-even batch, hybrid, tensor parallelism.
std::vector<NamedTable> choosing_tables();

/// A statement that is found in print, and what follows from the formula that it should have
/// followed from.
struct Contradiction {
  std::string said;
  std::string follows;
};
std::vector<Contradiction> contradictions();

/// All of them, for a terminal.
std::string tables_text();

}  // namespace zero::plan
