#include "shards.hpp"

#include <algorithm>
#include <map>

#include <zero/base/error.hpp>
#include <zero/train/shard_layout.hpp>

namespace zero::plan {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";

bool is_head_too(const Model& model) {
  return std::none_of(model.tensors.begin(), model.tensors.end(), [](const TensorSize& tensor) {
    return tensor.name == "lm_head.weight" || tensor.name == "score.weight";
  });
}

// Those of every rank that some tensor has a part on. By tensor, since ranks may be a million.
std::int64_t kept_gradients(const train::ShardLayout& layout) {
  std::int64_t ranks = 0;
  std::int64_t next = 0;  // ranks before this one are counted, as far as they hold anything
  for (std::size_t t = 0; t < layout.tensors(); ++t) {
    if (layout.size(t) == 0) continue;
    const std::int64_t first = std::max(next, layout.offset(t) / layout.shard());
    next = (layout.offset(t) + layout.size(t) - 1) / layout.shard() + 1;
    ranks += next - first;
  }
  return ranks * layout.shard();
}

// Neighbours together as long as there is room.
std::vector<std::vector<std::int64_t>> buckets(const std::vector<std::int64_t>& elements) {
  std::vector<std::vector<std::int64_t>> all;
  std::int64_t filled = 0;
  for (const std::int64_t size : elements) {
    if (all.empty() || filled + size > kBucketElements) {
      all.emplace_back();
      filled = 0;
    }
    all.back().push_back(size);
    filled += size;
  }
  return all;
}

}  // namespace

SplitSizes split_sizes(const Model& model, int world_size, Grouping grouping) {
  if (model.tensors.empty()) {
    throw Error("the padding of " + model.name + " is not known: only its size is");
  }
  SplitSizes sizes;
  const auto add = [&](std::vector<std::int64_t> elements, bool root) {
    const train::ShardLayout layout(std::move(elements), world_size);
    sizes.total += layout.total();
    if (root) sizes.root += layout.total();
    sizes.gradients += kept_gradients(layout);
    return layout.total();
  };
  std::map<LayerName, std::vector<std::int64_t>> layers;
  std::vector<std::int64_t> root;
  for (const TensorSize& tensor : model.tensors) {
    const std::optional<LayerName> layer = layer_of(tensor.name);
    if (grouping != Grouping::kTensor) {
      (layer ? layers[*layer] : root).push_back(tensor.elements);
    } else {
      const std::int64_t total = add({tensor.elements}, /*root=*/!layer);
      if (tensor.name == kEmbedding && is_head_too(model)) sizes.used_twice = total;
    }
  }
  const auto add_unit = [&](const std::vector<std::int64_t>& elements, bool is_root) {
    if (elements.empty()) return;
    if (grouping == Grouping::kUnit) {
      add(elements, is_root);
    } else {
      for (const auto& bucket : buckets(elements)) add(bucket, is_root);
    }
  };
  add_unit(root, /*is_root=*/true);
  for (const auto& [name, elements] : layers) add_unit(elements, /*is_root=*/false);
  return sizes;
}

}  // namespace zero::plan
