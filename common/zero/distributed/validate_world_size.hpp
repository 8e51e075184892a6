#pragma once

namespace zero::dist {

/// For programs with a number of ranks on the command line. Throws zero::Error if a launcher
/// started this process with a world size other than `asked`, or if its variables are invalid.
/// Without a launcher any number is accepted.
void validate_world_size(int asked);

}  // namespace zero::dist
