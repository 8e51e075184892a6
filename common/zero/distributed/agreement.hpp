#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <zero/distributed/communicator.hpp>

/// What ranks tell each other, so that all of them go on or all of them throw.
namespace zero::dist {

/// Blocks until all ranks have called it; throws zero::Error on every rank if the texts differ: it
/// names `what`, two ranks, and the first line in which they differ.
void verify_same(Communicator& communicator, const std::string& what, const std::string& text);
/// The same for what `text` returns on ranks of the same `place`. An error that it throws differs
/// from every text. If all ranks of a place have the same one, all ranks throw it.
void verify_same(Communicator& communicator, const std::string& what,
                 const std::function<std::string()>& text,
                 const std::function<int(int rank)>& place);

/// What `action` returns, or the error that it throws, as a text for another process.
std::string answer_of(const std::function<std::string()>& action);
/// Whether the answer is an error.
bool is_error(const std::string& answer);
/// What the action returned there. Throws its error, after `who`.
std::string content_of(const std::string& answer, const std::string& who = "");

/// Each rank runs `action` and tells the others how it ended: returns, by rank, what the actions
/// returned. If one throws, all ranks throw zero::Error with `what`, the first such rank and its
/// error. Called by all ranks of `communicator`; blocks.
std::vector<std::string> on_all_ranks(Communicator& communicator, const std::string& what,
                                      const std::function<std::string()>& action);
/// The same for an action that returns nothing. Texts are exchanged only if one throws.
void run_on_all_ranks(Communicator& communicator, const std::string& what,
                      const std::function<void()>& action);

/// "rank 1", "ranks 1, 3": for messages.
std::string ranks_text(const std::vector<int>& ranks);

/// A number that differs if tensors do: FNV-1a of their elements and how many they are, those of a
/// GPU left out, because the host would wait for them. `before`: that of the tensors before these.
std::uint64_t digest(const std::vector<at::Tensor>& tensors,
                     std::uint64_t before = 14695981039346656037ULL);

/// Returns `mine` of every rank, one after the other in rank order; all must have the same length.
/// Called by all ranks; blocks. Throws as Work::wait() does.
std::vector<double> all_gather_scalars(Communicator& communicator, std::vector<double> mine);

}  // namespace zero::dist
