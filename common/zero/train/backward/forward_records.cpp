#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <map>
#include <set>

#include <zero/train/backward/forward_records.hpp>

namespace zero::train {

void ForwardRecords::add(const at::Tensor& loss, std::optional<std::int64_t> loss_terms) {
  std::erase_if(records_, [](const auto& record) { return record.expired(); });
  if (!loss.defined() || !loss.grad_fn()) return;
  const auto record =
      std::make_shared<const Record>(Record{loss.grad_fn().get(), version_, loss_terms});
  // The hook does nothing. It holds the record, so that this lives exactly as long as the graph.
  loss.register_hook([record](const at::Tensor&) {});
  records_.push_back(record);
}

std::vector<ForwardRecords::Record> ForwardRecords::of(const at::Tensor& loss) const {
  std::map<const void*, Record> by_node;
  for (const auto& weak : records_) {
    if (const auto record = weak.lock()) by_node.emplace(record->node, *record);
  }
  std::vector<Record> found;
  std::set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> open = {loss.grad_fn().get()};
  while (!open.empty() && found.size() < by_node.size()) {
    const torch::autograd::Node* const node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    // The search stops at a forward's loss, so in the usual case it takes no time.
    if (const auto record = by_node.find(node); record != by_node.end()) {
      found.push_back(record->second);
      continue;
    }
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return found;
}

std::optional<double> ForwardRecords::loss_terms(const at::Tensor& loss) const {
  const std::vector<Record> records = of(loss);
  if (records.empty()) return std::nullopt;
  double sum = 0;
  for (const Record& record : records) {
    if (!record.loss_terms) return std::nullopt;
    sum += static_cast<double>(*record.loss_terms);
  }
  return sum / static_cast<double>(records.size());
}

bool ForwardRecords::is_fresh(const at::Tensor& loss) const {
  return std::ranges::all_of(of(loss), [&](const auto& r) { return r.version == version_; });
}

}  // namespace zero::train
