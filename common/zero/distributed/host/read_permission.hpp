#pragma once

// Private to common/zero/distributed: who may read this process's memory.

#include <vector>

namespace zero::dist {

/// This process, its parent, the parent's parent and so on, as far as /proc shows them.
std::vector<int> lineage();

/// The first process in each of `lineages` that all of them contain; 0 if there is none.
int nearest_common_ancestor(const std::vector<std::vector<int>>& lineages);

/// While it lives, `ancestor`, a process of lineage(), and all its descendants may read and trace
/// this process, where Linux otherwise allows that only to ancestors (Yama with ptrace_scope 1):
/// PR_SET_PTRACER. They must belong to the same user in any case. If several live at a time, the
/// farthest ancestor counts.
class ReadPermission {
 public:
  explicit ReadPermission(int ancestor);
  ~ReadPermission();
  /// True if any lives in this process.
  static bool any();
  ReadPermission(const ReadPermission&) = delete;
  ReadPermission& operator=(const ReadPermission&) = delete;

 private:
  int ancestor_;
};

}  // namespace zero::dist
