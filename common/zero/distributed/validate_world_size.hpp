#pragma once

namespace zero::dist {

/// For programs whose command line gives a number of ranks: throws zero::Error where a launcher
/// started this process as one of another number of them than `asked`, or where its variables make
/// no sense. Without a launcher any number is right.
void validate_world_size(int asked);

}  // namespace zero::dist
