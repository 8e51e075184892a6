#pragma once

#include <map>
#include <string>
#include <vector>

#include <zero/io/checkpoint.hpp>

#include "session.hpp"

namespace zero::testing {

/// Parameters, optimizer states and step counts, whole on every rank, by name.
using WholeState = std::map<std::string, at::Tensor>;

/// Called by all ranks.
WholeState whole_state(train::Strategy& strategy);
inline WholeState whole_state(Session& session) { return whole_state(session.strategy()); }

/// What this rank holds of it; nothing is sent.
WholeState local_state(Session& session);

/// Whether two of them are the same to the last bit.
::testing::AssertionResult same_state(const WholeState& a, const WholeState& b);

/// Writes them to a file, for processes that come later, and reads them again.
void keep(const std::filesystem::path& path, const WholeState& state);
WholeState kept(const std::filesystem::path& path);

/// Options for a model with odd sizes, a tied and a frozen parameter, and a scalar.
SessionOptions checkpoint_options(std::uint64_t seed = 3);

/// A note with every field filled.
io::CheckpointInfo note(std::int64_t step, const std::string& mode);

/// The message of the error that load_checkpoint() throws; empty where it throws none.
std::string refusal_of_loading(Session& session, const std::filesystem::path& folder);
std::string refusal_of_saving(Session& session, const std::filesystem::path& folder,
                              const io::CheckpointInfo& info);

}  // namespace zero::testing
