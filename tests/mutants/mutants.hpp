#pragma once

#include <string>
#include <vector>

namespace zero::testing {

/// A wrong implementation: the real class with one seam broken.
struct Mutant {
  std::string name;
  std::string breaks;     ///< what is wrong with it
  std::string killed_by;  ///< a test that must fail because of it, without its rank suffix
};

const std::vector<Mutant>& mutants();

/// Which mutant takes the place of the real strategy in this process; empty: none.
void choose_mutant(const std::string& name);

}  // namespace zero::testing
