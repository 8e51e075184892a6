#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

/// Formulas for the small programs (NN_…/minimal.cpp): what each rank of each chapter holds and
/// sends, in bytes of float32.
namespace zero::exercise {

inline constexpr int kLayers = 4;
inline constexpr int kSteps = 5;
/// Samples of a batch, in chapter 09 of a micro-batch.
inline constexpr std::int64_t kBatch = 16;
/// In chapter 09.
inline constexpr int kMicroBatches = 6;
/// Elements that share a scale in chapter 07.
inline constexpr std::int64_t kBlock = 32;
/// Rows and columns of each layer's weight.
inline constexpr std::array<std::array<std::int64_t, 2>, kLayers> kShapes = {
    {{13, 35}, {36, 30}, {31, 31}, {32, 11}}};

using LayerBytes = std::array<std::int64_t, kLayers>;

/// Bytes of each layer's whole weight.
constexpr LayerBytes layer_bytes() {
  LayerBytes bytes{};
  for (int layer = 0; layer < kLayers; ++layer)
    bytes[layer] = 4 * kShapes[layer][0] * kShapes[layer][1];
  return bytes;
}

/// Rows or columns of a part if `n` are cut as at::chunk() cuts them: the last part has the rest.
constexpr std::int64_t part_size(std::int64_t n, int parts, int part) {
  const std::int64_t most = (n + parts - 1) / parts;
  return part == parts - 1 ? n - (parts - 1) * most : most;
}

/// Bytes of part `part` of each weight in chapter 08: even layers are cut by columns, odd by rows.
constexpr LayerBytes part_bytes(int parts, int part) {
  LayerBytes bytes{};
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto [rows, columns] = kShapes[layer];
    bytes[layer] = layer % 2 == 0 ? 4 * rows * part_size(columns, parts, part)
                                  : 4 * part_size(rows, parts, part) * columns;
  }
  return bytes;
}

/// Bytes of a rank's shard of each weight in chapters 04 to 06, with the zeros that pad it; `ranks`
/// share it. In chapter 07 a shard has whole blocks.
constexpr LayerBytes shard_bytes(int ranks, std::int64_t block = 1) {
  LayerBytes bytes{};
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::int64_t of_all = ranks * block;  // elements
    bytes[layer] = 4 * block * ((layer_bytes()[layer] / 4 + of_all - 1) / of_all);
  }
  return bytes;
}

/// Bytes of a float32 tensor of `bytes` bytes in `bits` (8 or 4) bits an element, and 4 for each
/// block.
constexpr std::int64_t quantized_bytes(std::int64_t bytes, int bits = 8) {
  return bytes * bits / 32 + bytes / kBlock;
}

/// True if zeros must be added to the layer before it can be cut into equal shards.
constexpr bool is_padded(int layer, int ranks) { return layer_bytes()[layer] / 4 % ranks != 0; }

constexpr std::int64_t sum_of(const LayerBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

/// Bytes that rank `rank` sends to all-reduce a tensor: N-1 chunks that the others sum, and the
/// chunk that it sums itself N-1 times. Chunks differ by at most one element.
constexpr std::int64_t all_reduce_bytes(std::int64_t elements, int ranks, int rank) {
  const std::int64_t mine = elements / ranks + (rank < elements % ranks ? 1 : 0);
  return 4 * (elements - mine + (ranks - 1) * mine);
}

/// The same for every layer's gradient.
constexpr std::int64_t all_reduce_bytes(int ranks, int rank) {
  std::int64_t sent = 0;
  for (const std::int64_t bytes : layer_bytes()) sent += all_reduce_bytes(bytes / 4, ranks, rank);
  return sent;
}

/// The ranks of a tensor axis in chapter 08, and of a host in chapter 07's hpz.cpp and qgz.cpp.
constexpr int tensor_ranks(int ranks) { return ranks % 2 == 0 ? 2 : 1; }

/// The ranks that share the model states: all, but in chapter 06 those of a group.
constexpr int sharing_ranks(int chapter, int ranks) {
  return chapter != 6 ? ranks : ranks % 2 == 0 ? 2 : 1;
}

/// The layers of a stage in chapter 09 are [first_layer(stages, stage), first_layer(stages, stage +
/// 1)). With more stages than layers some have none.
constexpr int first_layer(int stages, int stage) { return stage * kLayers / stages; }

/// Bytes of one micro-batch in front of a layer. For kLayers: of what the last layer makes.
constexpr std::int64_t activation_bytes(int layer) {
  return 4 * kBatch * (layer < kLayers ? kShapes[layer][0] - 1 : kShapes[kLayers - 1][1]);
}

/// Micro-batches that have had forward on a stage and not yet backward, at most.
constexpr int micro_batches_in_flight(bool gpipe, int stages, int stage) {
  return gpipe ? kMicroBatches : std::min(stages - stage, kMicroBatches);
}

struct Expected {
  // At the end of a step.
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  // The peak of each category within a step, and of all three together.
  std::int64_t parameters_peak = 0;
  std::int64_t gradients_peak = 0;
  std::int64_t states_peak = 0;
  // Chapter 09, and sequence.cpp and partitioned.cpp of chapter 08, count activations.
  std::int64_t activations_kept = 0;  // in chapter 08, from forward to backward
  std::int64_t activations_peak = 0;
  // In a step.
  std::int64_t gradients_sent = 0;
  std::int64_t gradients_sent_between = 0;  // these, between the groups of chapter 06 or 07
  std::int64_t parameters_sent = 0;
  std::int64_t parameters_sent_between = 0;
  std::int64_t activations_sent = 0;  // on the tensor or the pipeline axis
  // In chapter 10.
  std::int64_t file = 0;  // at rest
  std::int64_t disk = 0;  // read and written in a step
};

namespace internal {

// Chapters 00 to 03: layers are not split. From 01 on each has an owner. `bytes`: of each layer.
constexpr Expected whole_layers(int chapter, int ranks, int rank, const LayerBytes& bytes) {
  const std::int64_t all = sum_of(bytes);
  const auto owns = [&](int layer) { return layer % ranks == rank; };
  std::int64_t owned = 0;
  for (int layer = 0; layer < kLayers; ++layer) owned += owns(layer) ? bytes[layer] : 0;

  Expected e;
  e.parameters = chapter == 3 ? owned : all;
  e.gradients = chapter >= 2 ? owned : all;
  e.optimizer = 2 * (chapter >= 1 ? owned : all);
  e.gradients_sent = chapter == 0 ? all_reduce_bytes(ranks, rank) : all - owned;
  e.parameters_sent = chapter == 0 ? 0 : (ranks - 1) * owned * (chapter == 3 ? 2 : 1);
  e.parameters_peak = e.parameters;
  e.states_peak = e.parameters + e.optimizer;
  std::int64_t gradients = 0;
  for (int layer = kLayers - 1; layer >= 0; --layer) {  // in the order of backward
    const std::int64_t gathered = chapter == 3 && !owns(layer) ? bytes[layer] : 0;
    const std::int64_t made = gradients + bytes[layer];
    e.parameters_peak = std::max(e.parameters_peak, e.parameters + gathered);
    e.gradients_peak = std::max(e.gradients_peak, made);
    e.states_peak = std::max(e.states_peak, e.parameters + gathered + e.optimizer + made);
    if (chapter < 2 || owns(layer)) gradients = made;
  }
  return e;
}

// Chapters 04, 05, 07 and 10: every layer is split over all ranks. Chapter 06: over those of a
// group. `block`: a shard has a multiple of so many elements.
constexpr Expected shards(int chapter, int ranks, std::int64_t block) {
  const bool quantizes = chapter == 7, overlaps = chapter == 5 || chapter == 10;
  const LayerBytes shard = shard_bytes(ranks, block);
  const auto whole = [&](int layer) {
    return 0 <= layer && layer < kLayers ? ranks * shard[layer] : 0;
  };
  // The most that a gather of `layer` adds: the weight, and in chapter 07 what this rank sends and
  // what arrives.
  const auto gathered = [&](int layer) {
    return whole(layer) + (quantizes ? (ranks + 1) * quantized_bytes(shard[layer]) : 0);
  };
  // Bytes of `layer` if it is gathered while the layer before it in the pass computes.
  const auto ahead = [&](int layer) { return overlaps ? whole(layer) : 0; };
  Expected e;
  e.parameters = e.gradients = sum_of(shard);
  e.optimizer = 2 * sum_of(shard);
  if (chapter == 10) {
    e.file = e.optimizer;
    e.disk = 2 * e.file;
    // Two buffers, each for the two moments of the largest layer.
    e.optimizer = 2 * 2 * *std::max_element(shard.begin(), shard.end());
  }
  e.gradients_sent = (ranks - 1) * sum_of(shard);
  const std::int64_t sent = quantizes ? quantized_bytes(sum_of(shard)) : sum_of(shard);
  e.parameters_sent = 2 * (ranks - 1) * sent;
  const std::int64_t held = e.parameters + e.optimizer;
  for (int layer = 0; layer < kLayers; ++layer) {  // forward
    e.parameters_peak =
        std::max(e.parameters_peak, e.parameters + gathered(layer) + ahead(layer + 1));
  }
  e.states_peak = e.parameters_peak + e.optimizer;
  std::int64_t gradients = 0;
  for (int layer = kLayers - 1; layer >= 0; --layer) {  // backward
    e.states_peak = std::max(e.states_peak, held + gradients + gathered(layer) + ahead(layer - 1));
    const std::int64_t made = gradients + whole(layer) + shard[layer];
    // The gradient as it was made lives beside its padded copy until the end of the round.
    const std::int64_t most = made + layer_bytes()[layer];
    e.gradients_peak = std::max(e.gradients_peak, most);
    e.states_peak = std::max(e.states_peak, held + most + ahead(layer - 1));
    // Chapter 05 waits for reductions after backward and keeps the whole gradients until then. With
    // one rank there is nothing to wait for.
    gradients = overlaps && ranks > 1 ? made : gradients + shard[layer];
  }
  return e;
}

// Chapter 06: chapter 04 inside a group, and all-reduces of the shards between the groups.
constexpr Expected groups(int ranks, int rank) {
  const int sharing = sharing_ranks(6, ranks);
  Expected e = shards(4, sharing, 1);
  for (const std::int64_t bytes : shard_bytes(sharing)) {
    e.gradients_sent_between += all_reduce_bytes(bytes / 4, ranks / sharing, rank / sharing);
  }
  e.gradients_sent += e.gradients_sent_between;
  return e;
}

// hpz.cpp of chapter 07: chapter 04, and secondary shards, which backward gathers inside a host.
constexpr Expected secondary_shards(int ranks, std::int64_t block) {
  const int near = tensor_ranks(ranks);
  Expected e = shards(4, ranks, block);
  const std::int64_t primary = e.parameters, secondary = ranks / near * primary;
  for (const auto bytes :
       {&Expected::parameters, &Expected::parameters_peak, &Expected::states_peak})
    e.*bytes += secondary;
  e.parameters_sent = (ranks - 1) * primary + (near - 1) * secondary;
  e.parameters_sent_between = e.gradients_sent_between = (ranks - near) * primary;
  return e;
}

// qgz.cpp: hpz.cpp with gradients in 4 bits and in two hops.
constexpr Expected two_hops(int ranks) {
  const int near = tensor_ranks(ranks), hosts = ranks / near;
  const LayerBytes shard = shard_bytes(ranks, kBlock);
  Expected e = secondary_shards(ranks, kBlock);
  const std::int64_t packed = quantized_bytes(sum_of(shard), 4);
  e.gradients_sent_between = (hosts - 1) * packed;
  e.gradients_sent = (near - 1) * hosts * packed + e.gradients_sent_between;
  // At the end of a hop: what was sent, what has arrived, that in float32, and the sum.
  const auto in_hop = [](std::int64_t bytes, int among) {
    return 2 * quantized_bytes(bytes, 4) + bytes + bytes / among;
  };
  std::int64_t gradients = 0;
  e.gradients_peak = 0;
  for (int layer = kLayers - 1; layer >= 0; --layer) {  // backward
    const std::int64_t whole = ranks * shard[layer], of_host = whole / near;
    const std::int64_t in_hops = std::max(in_hop(whole, near), of_host + in_hop(of_host, hosts));
    e.gradients_peak =
        std::max(e.gradients_peak, gradients + layer_bytes()[layer] + whole + in_hops);
    gradients += shard[layer];
  }
  e.states_peak = e.parameters + e.optimizer + e.gradients_peak;
  return e;
}

// Chapter 08: chapter 03 on the data axis with a part of each layer, and sums on the tensor axis.
constexpr Expected mesh(int ranks, int rank) {
  const int parts = tensor_ranks(ranks), part = rank % parts;
  Expected e = whole_layers(3, ranks / parts, rank / parts, part_bytes(parts, part));
  // Forward sums the outputs of layers 1 and 3, backward the gradient of the inputs of layer 2.
  for (const std::int64_t columns : {kShapes[1][1], kShapes[3][1], kShapes[2][0] - 1}) {
    e.activations_sent += all_reduce_bytes(kBatch * columns, parts, part);
  }
  return e;
}

// Bytes of activations on a rank of chapter 08's mesh: in front of each layer, and behind the last.
// Between a column-parallel and a row-parallel layer a rank has some features of each sample.
constexpr std::array<std::int64_t, kLayers + 1> mesh_activation_bytes(int parts, int part) {
  std::array<std::int64_t, kLayers + 1> bytes{};
  for (int layer = 0; layer <= kLayers; ++layer) {
    bytes[layer] = layer % 2 == 0 ? activation_bytes(layer)
                                  : 4 * kBatch * part_size(kShapes[layer - 1][1], parts, part);
  }
  return bytes;
}

// sequence.cpp: behind each pair of layers a rank has 1/n of the samples. Layer 2 gathers them, in
// backward once more.
constexpr Expected sequence(int ranks, int rank) {
  const int parts = tensor_ranks(ranks);
  Expected e = mesh(ranks, rank);
  auto bytes = mesh_activation_bytes(parts, rank % parts);
  const std::int64_t gathered = bytes[2];
  for (const int behind : {2, 4}) bytes[behind] /= parts;
  e.activations_kept = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  e.activations_peak = std::max(e.activations_kept, bytes[0] + bytes[1] + bytes[2] + gathered);
  e.activations_sent += (parts - 1) * bytes[2];
  return e;
}

// partitioned.cpp: of each pair a rank keeps 1/n of the input. Backward gathers it, and once more
// the weight of the pair's first layer.
constexpr Expected partitioned(int ranks, int rank) {
  const int parts = tensor_ranks(ranks), data_ranks = ranks / parts;
  Expected e = mesh(ranks, rank);
  const auto bytes = mesh_activation_bytes(parts, rank % parts);
  for (const int first : {0, 2}) {
    const std::int64_t piece = bytes[first] / parts, before = e.activations_kept;
    const std::int64_t input = bytes[first], inside = bytes[first + 1], output = bytes[first + 2];
    e.activations_peak = std::max({e.activations_peak,
                                   before + input + inside + piece,     // forward
                                   before + piece + inside + output,    // forward
                                   before + piece + input + output,     // the gather
                                   before + input + inside + output});  // backward
    e.activations_kept += piece;
    e.activations_sent += (parts - 1) * piece;
    if (first % data_ranks == rank / parts) {
      e.parameters_sent += (data_ranks - 1) * part_bytes(parts, rank % parts)[first];
    }
  }
  e.activations_kept += bytes[kLayers];
  return e;
}

// Chapter 09.
constexpr Expected stage(bool gpipe, int stages, int stage) {
  const int first = first_layer(stages, stage), end = first_layer(stages, stage + 1);
  Expected e;
  std::int64_t largest = 0;                     // of the stage's layers
  std::int64_t kept = activation_bytes(first);  // of a micro-batch
  for (int layer = first; layer < end; ++layer) {
    e.parameters += layer_bytes()[layer];
    largest = std::max(largest, layer_bytes()[layer]);
    kept += activation_bytes(layer + 1);
  }
  e.gradients = e.parameters_peak = e.parameters;
  e.optimizer = 2 * e.parameters;
  // The sums, and the gradient that is added to one of them.
  e.gradients_peak = e.gradients + largest;
  e.states_peak = e.parameters + e.optimizer + e.gradients_peak;
  e.activations_peak = micro_batches_in_flight(gpipe, stages, stage) * kept;
  const std::int64_t forward = stage + 1 < stages ? activation_bytes(end) : 0;
  const std::int64_t back = stage > 0 ? activation_bytes(first) : 0;
  e.activations_sent = kMicroBatches * (forward + back);
  return e;
}

}  // namespace internal

/// What a stage of chapter 09 holds and sends in every step.
constexpr Expected expected_stage(bool gpipe, int stages, int stage) {
  return internal::stage(gpipe, stages, stage);
}

/// What each rank holds and sends in every step of chapter 07's hpz.cpp.
constexpr Expected expected_hpz(int ranks) { return internal::secondary_shards(ranks, 1); }

/// The same for qgz.cpp.
constexpr Expected expected_qgz(int ranks) { return internal::two_hops(ranks); }

/// What rank `rank` of `ranks` holds and sends in every step of chapter 08's sequence.cpp.
constexpr Expected expected_sequence(int ranks, int rank) {
  return internal::sequence(ranks, rank);
}

/// The same for partitioned.cpp.
constexpr Expected expected_partitioned(int ranks, int rank) {
  return internal::partitioned(ranks, rank);
}

/// What rank `rank` of `ranks` holds and sends in every step of the program of `chapter` (0 to 10).
/// Chapter 09: under 1F1B.
constexpr Expected expected(int chapter, int ranks, int rank) {
  if (chapter == 6) return internal::groups(ranks, rank);
  if (chapter == 8) return internal::mesh(ranks, rank);
  if (chapter == 9) return expected_stage(/*gpipe=*/false, ranks, rank);
  return chapter <= 3 ? internal::whole_layers(chapter, ranks, rank, layer_bytes())
                      : internal::shards(chapter, ranks, chapter == 7 ? kBlock : 1);
}

}  // namespace zero::exercise
