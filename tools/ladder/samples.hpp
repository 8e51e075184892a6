#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tools/ladder/data/dataset.hpp>

#include "options.hpp"

namespace zero::ladder {

/// What the ladder trains on.
struct Samples {
  std::unique_ptr<data::Dataset> dataset;
  std::int64_t pad_id = 0;         ///< reviews: what shorter texts are filled with
  std::vector<std::string> notes;  ///< what the user should know about it, a sentence each
};

/// Reads what `options.data` names: text or a token file, by what it is. Uses no tensor,
/// so it may be called before ranks are forked. The model must have been chosen.
///
/// @throws zero::Error if the data is missing, empty or damaged, is not of the kind that the
/// task needs, has tokens of another vocabulary or tokenizer than the model, or is too little for
/// one step of all ranks.
Samples read_samples(const Options& options);

}  // namespace zero::ladder
