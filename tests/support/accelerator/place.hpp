#pragma once

#include <string>
#include <vector>

namespace zero::testing::emulated {

/// Where a program did something with memory: the operation, the actor, and who called it.
class Place {
 public:
  /// This place. `actor`: "stream 3" or "the host".
  Place(std::string operation, std::string actor);

  /// "add.out on stream 3 in step() < train()". Only functions of the project are named,
  /// and of them those that the program's dynamic symbol table has (link with -rdynamic).
  std::string text() const;

 private:
  std::string operation_;
  std::string actor_;
  std::vector<void*> frames_;
};

}  // namespace zero::testing::emulated
