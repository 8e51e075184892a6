#include "place.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace zero::testing::emulated {
namespace {

constexpr int kFrames = 64;
constexpr std::size_t kNamed = 4;

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free);
  return status == 0 ? std::string(name.get()) : std::string(symbol);
}

// Its name without arguments; empty if it is not a function of the project, or is one of this
// library.
std::string name_of_function(void* address) {
  Dl_info here{}, found{};
  ::dladdr(reinterpret_cast<const void*>(&name_of_function), &here);
  if (::dladdr(address, &found) == 0 || found.dli_fbase != here.dli_fbase) return "";
  if (found.dli_sname == nullptr) return "";
  std::string name = demangled(found.dli_sname);
  if (name.rfind("zero::", 0) != 0 || name.find("::emulated::") != std::string::npos) return "";
  return name.substr(0, name.find('('));
}

// The same. To look a name up takes a search through all symbols.
std::string function_at(void* address) {
  static auto* const known = new std::map<void*, std::string>;
  static auto* const mutex = new std::mutex;
  const std::lock_guard lock(*mutex);
  const auto [found, is_new] = known->try_emplace(address);
  if (is_new) found->second = name_of_function(address);
  return found->second;
}

}  // namespace

Place::Place(std::string operation, std::string actor)
    : operation_(std::move(operation)), actor_(std::move(actor)) {
  std::array<void*, kFrames> frames{};
  const int count = ::backtrace(frames.data(), kFrames);
  frames_.assign(frames.begin(), frames.begin() + count);
}

std::string Place::text() const {
  std::vector<std::string> callers;
  for (void* const frame : frames_) {
    const std::string name = function_at(frame);
    if (name.empty() || (!callers.empty() && callers.back() == name)) continue;
    callers.push_back(name);
    if (callers.size() == kNamed) break;
  }
  return fmt::format("{} on {}{}{}", operation_, actor_, callers.empty() ? "" : " in ",
                     fmt::join(callers, " < "));
}

}  // namespace zero::testing::emulated
