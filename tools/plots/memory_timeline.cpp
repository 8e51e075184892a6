#include "memory_timeline.hpp"

#include <nlohmann/json.hpp>
#include <utility>

namespace zero::plots {

tools::Json timeline_of_mode(const std::string& mode, const memory::Timeline& timeline) {
  tools::Json samples = tools::Json::array();
  for (const memory::Timeline::Sample& sample : timeline.samples) {
    tools::Json row = {{"t", sample.seconds}, {"total", sample.total}};
    for (std::size_t c = 0; c < memory::kCategories; ++c) {
      if (sample.current[c] == 0) continue;
      row[std::string(memory::name(static_cast<memory::Category>(c)))] = sample.current[c];
    }
    samples.push_back(std::move(row));
  }
  tools::Json marks = tools::Json::array();
  for (const memory::Timeline::Mark& mark : timeline.marks) {
    marks.push_back({{"t", mark.seconds}, {"label", mark.label}});
  }
  return {{"mode", mode}, {"samples", std::move(samples)}, {"marks", std::move(marks)}};
}

tools::Json memory_timeline(const std::string& model, int world_size, std::int64_t parameter_bytes,
                            tools::Json modes, tools::Json run) {
  return {{"model", model},
          {"world_size", world_size},
          {"parameter_bytes", parameter_bytes},
          {"modes", std::move(modes)},
          {"run", std::move(run)}};
}

}  // namespace zero::plots
