#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace zero::testing {

/// The system calls by which a save reaches the disk.
enum class SystemCall : std::uint8_t { kFallocate, kFsync, kRename, kRemove };

/// Called before each of them in this program, on the thread that makes it, with the file that it
/// is of (of a rename: the new name). The call fails with the errno that it returns, if that is not
/// 0. Empty: nobody is called.
extern std::function<int(SystemCall call, const std::string& path)> before_system_call;

}  // namespace zero::testing
