#pragma once

// Private to common/zero/distributed: where ranks meet, and how waiting ranks learn that another
// has failed.

#include <filesystem>
#include <string>

namespace zero::dist {

/// The meeting place of the ranks that this process starts itself: a folder in /dev/shm, or else in
/// the system's temporary folder, removed with the object. It can tell waiting ranks that another
/// rank has failed.
class Rendezvous {
 public:
  Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  ~Rendezvous();

  const std::filesystem::path& folder() const { return folder_; }

  /// Ends every rank's wait for a key that is not in the store yet. `how` says which rank failed
  /// and how; it becomes the message of their error.
  void say_failed(const std::string& how) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace zero::dist
