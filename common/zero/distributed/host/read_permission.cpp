#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <string>

#include <zero/distributed/host/read_permission.hpp>

namespace zero::dist {
namespace {

// 0 if this process can see none.
int parent_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  std::string word;
  while (file >> word) {
    int parent = 0;
    if (word == "PPid:" && file >> parent) return parent;
  }
  return 0;
}

std::mutex allowed_mutex;

// Ancestors permitted by the living ReadPermission objects, guarded by it.
std::vector<int>& allowed() {
  static std::vector<int> all;
  return all;
}

// Linux keeps one permitted process for each process; 0 means none.
void tell_linux() {
  int farthest = 0;
  for (const int pid : lineage()) {
    const auto& all = allowed();
    if (std::find(all.begin(), all.end(), pid) != all.end()) farthest = pid;
  }
  ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(farthest), 0UL, 0UL, 0UL);
}

}  // namespace

std::vector<int> lineage() {
  // getppid() works even where the system hides other users' processes.
  std::vector<int> all = {::getpid()};
  for (int next = ::getppid(); next > 0; next = parent_of(next)) all.push_back(next);
  return all;
}

int nearest_common_ancestor(const std::vector<std::vector<int>>& lineages) {
  for (const int candidate : lineages.front()) {
    const bool is_common =
        std::all_of(lineages.begin(), lineages.end(), [candidate](const std::vector<int>& one) {
          return std::find(one.begin(), one.end(), candidate) != one.end();
        });
    if (is_common) return candidate;
  }
  return 0;
}

ReadPermission::ReadPermission(int ancestor) : ancestor_(ancestor) {
  const std::lock_guard lock(allowed_mutex);
  allowed().push_back(ancestor_);
  tell_linux();
}

ReadPermission::~ReadPermission() {
  const std::lock_guard lock(allowed_mutex);
  auto& all = allowed();
  all.erase(std::find(all.begin(), all.end(), ancestor_));
  tell_linux();
}

bool ReadPermission::any() {
  const std::lock_guard lock(allowed_mutex);
  return !allowed().empty();
}

}  // namespace zero::dist
