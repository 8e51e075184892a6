#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tools/ladder/data/dataset.hpp>

#include "options.hpp"

namespace zero::ladder {

/// What the ladder trains on.
struct Samples {
  std::unique_ptr<data::Dataset> dataset;
  std::vector<std::string> notes;  ///< what the user should know about it, a sentence each
};

/// Reads what `options.data` names, text or a token file by what it is, or the project's own text,
/// or reviews. Uses no tensor, so it may be called before ranks are forked. The model must have
/// been chosen.
///
/// @throws zero::Error if the data is missing, empty or damaged, has tokens of another vocabulary
/// or tokenizer than the model, or is too little for one step of all ranks.
Samples read_samples(const Options& options);

}  // namespace zero::ladder
