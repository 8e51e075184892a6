#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace zero::base {

/// The known name that `wanted` was probably meant to be, if there is one: equal but for case, the
/// shortest name that starts with it (three letters at least), or the one with the fewest letters
/// to insert, remove, replace or swap with their neighbour, at most one in three. Of several
/// equally near the first is taken.
std::optional<std::string> nearest_name(std::string_view wanted,
                                        std::span<const std::string> known);

/// The message for a name that nobody knows:
/// "unknown mode 'zer1'; did you mean 'zero1'? known modes: ddp, zero1, zero2, zero3".
/// `kind` is a singular noun. The question is left out where no name is near.
std::string unknown_name_message(std::string_view kind, std::string_view wanted,
                                 std::span<const std::string> known);

}  // namespace zero::base
