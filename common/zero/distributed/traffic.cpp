#include <zero/distributed/traffic.hpp>

namespace zero::dist {

std::string_view name(Purpose purpose) {
  constexpr std::array<std::string_view, kPurposes> kNames = {"gradient", "parameter", "control",
                                                              "setup", "activation"};
  return kNames.at(static_cast<std::size_t>(purpose));
}

std::string_view name(Operation operation) {
  constexpr std::array<std::string_view, kOperations> kNames = {
      "broadcast",  "reduce", "all_reduce", "reduce_scatter", "all_gather",
      "all_to_all", "send",   "recv",       "barrier"};
  return kNames.at(static_cast<std::size_t>(operation));
}

bool adds_up(Operation operation) {
  return operation == Operation::kReduce || operation == Operation::kAllReduce ||
         operation == Operation::kReduceScatter;
}

Traffic::Entry& Traffic::at(Operation operation, Purpose purpose) {
  return entries[static_cast<std::size_t>(operation)][static_cast<std::size_t>(purpose)];
}

const Traffic::Entry& Traffic::at(Operation operation, Purpose purpose) const {
  return entries[static_cast<std::size_t>(operation)][static_cast<std::size_t>(purpose)];
}

std::int64_t Traffic::total(std::int64_t Entry::*column, Purpose purpose) const {
  std::int64_t sum = 0;
  for (const auto& row : entries) sum += row[static_cast<std::size_t>(purpose)].*column;
  return sum;
}

std::int64_t Traffic::total(std::int64_t Entry::*column) const {
  std::int64_t sum = 0;
  for (std::size_t p = 0; p < kPurposes; ++p) sum += total(column, static_cast<Purpose>(p));
  return sum;
}

Traffic Traffic::since(const Traffic& earlier) const {
  Traffic difference = *this;
  for (std::size_t o = 0; o < kOperations; ++o) {
    for (std::size_t p = 0; p < kPurposes; ++p) {
      difference.entries[o][p].bytes -= earlier.entries[o][p].bytes;
      difference.entries[o][p].between_hosts -= earlier.entries[o][p].between_hosts;
      difference.entries[o][p].calls -= earlier.entries[o][p].calls;
    }
  }
  return difference;
}

}  // namespace zero::dist
