#pragma once

// Private to common/zero/distributed: who may read this process's memory.

#include <vector>

namespace zero::dist {

/// This process, its parent, the parent's parent and so on, as far as /proc shows them.
std::vector<int> lineage();

/// The first process of each of `lineages` that is in all of them; 0 where there is none.
int nearest_common_ancestor(const std::vector<std::vector<int>>& lineages);

/// While it lives, `ancestor`, a process of lineage(), and all processes that descend from it may
/// read this process's memory, and trace it, where Linux leaves that to a process's own ancestors
/// (Yama with ptrace_scope 1): PR_SET_PTRACER. They must be of the same user in any case. Where
/// several live at a time, the ancestor that is farthest up counts. For one thread at a time.
class ReadPermission {
 public:
  explicit ReadPermission(int ancestor);
  ~ReadPermission();
  /// Whether any lives in this process.
  static bool any();
  ReadPermission(const ReadPermission&) = delete;
  ReadPermission& operator=(const ReadPermission&) = delete;

 private:
  int ancestor_;
};

}  // namespace zero::dist
