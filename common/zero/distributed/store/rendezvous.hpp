#pragma once

// Private to common/zero/distributed: where ranks meet, and how those that wait hear of one that
// ended.

#include <filesystem>
#include <string>

namespace zero::dist {

/// Where the ranks meet that this process starts by itself: a folder in /dev/shm, or else in the
/// system's temporary one, which goes away with the object. It tells ranks that wait for one that
/// has failed.
class Rendezvous {
 public:
  Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  ~Rendezvous();

  const std::filesystem::path& folder() const { return folder_; }

  /// Ends the wait of all ranks for something that is not in the store yet; `how` says what became
  /// of which rank, and is their error.
  void say_failed(const std::string& how) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace zero::dist
