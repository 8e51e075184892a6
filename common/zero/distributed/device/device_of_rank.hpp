#pragma once

// Private to common/zero/distributed, and to the library zero::cuda.

#include <string>
#include <vector>

namespace zero::dist {

/// The device of the rank with this number on its machine, among those that it sees. Launchers show
/// a rank all devices of the machine or only its own, whose number is then 0.
int device_of_rank(int local_rank, int visible);

/// `identities`: by rank, a text that is the same for one device alone, whatever its number is to
/// the rank. Throws zero::Error, the same on all ranks, if two ranks have one.
void verify_own_devices(const std::vector<std::string>& identities);

}  // namespace zero::dist
