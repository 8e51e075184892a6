#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include <zero/base/error.hpp>
#include <zero/io/held_folders.hpp>

namespace zero::io {
namespace {

namespace fs = std::filesystem;

// The first parameter stands for the model: a pointer to the strategy says nothing once it is gone.
using Model = c10::weak_intrusive_ptr<c10::TensorImpl>;

std::mutex held_mutex;
std::map<fs::path, Model>& held() {
  static auto* const folders = new std::map<fs::path, Model>;  // in use while the program ends
  return *folders;
}

Model model_of(const train::Strategy& strategy) {
  return Model(strategy.list().parameters.front().tensor.getIntrusivePtr());
}

fs::path place_of(const fs::path& folder) {
  std::error_code ignored;
  return fs::weakly_canonical(folder, ignored);
}

bool is_of_another(const fs::path& place, const Model& model) {
  const auto found = held().find(place);
  return found != held().end() && !found->second.expired() && found->second != model;
}

}  // namespace

void hold_folder(const fs::path& folder, const train::Strategy& strategy) {
  const std::lock_guard lock(held_mutex);
  const fs::path place = place_of(folder);
  const Model model = model_of(strategy);
  if (is_of_another(place, model)) {
    throw Error(
        fmt::format("another engine of this program saves its checkpoints to {}, and each would "
                    "remove the other's; give each a folder of its own",
                    folder.string()));
  }
  held().insert_or_assign(place, model);
}

void verify_not_of_another(const fs::path& folder, const train::Strategy& strategy) {
  const std::lock_guard lock(held_mutex);
  const Model model = model_of(strategy);
  const auto own = std::ranges::find_if(held(), [&](const auto& h) { return h.second == model; });
  if (own == held().end() || !is_of_another(place_of(folder), model)) return;
  throw Error(
      fmt::format("another engine of this program saves its checkpoints there, and this one to {}; "
                  "load that, or the other's weights by load_weights()",
                  own->first.string()));
}

}  // namespace zero::io
