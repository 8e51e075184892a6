#include "digests.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <zero/base/sha256.hpp>

namespace zero::ladder {
namespace {

// An update that is too small for a parameter of 2 bytes to show is in the master weight alone.
bool master_differs(train::Strategy& strategy, std::size_t index) {
  const at::Tensor mine = strategy.piece(index).tensor;
  if (!mine.defined()) return false;
  const auto states = strategy.optimizer().state(mine);
  const auto master = states.find("master");
  if (master == states.end()) return false;
  return !at::equal(master->second, mine.detach().flatten().to(at::kFloat));
}

}  // namespace

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::string digest_of(const at::Tensor& tensor) {
  base::Sha256 digest;
  digest.add(bytes_of(tensor.cpu().contiguous()));
  return digest.hex();
}

std::vector<std::string> parameter_digests(train::Strategy& strategy) {
  const nn::ParameterList& list = strategy.list();
  std::vector<std::string> digests(list.size());
  for (std::size_t u = 0; u < list.units.size(); ++u) {
    const train::UnshardedParameters whole(strategy, u);
    for (const std::size_t i : list.units[u].parameters) {
      digests[i] = digest_of(list.parameters[i].tensor.detach());
    }
  }
  return digests;
}

std::vector<std::string> piece_digests(const train::Strategy& strategy) {
  std::vector<std::string> digests(strategy.list().size());
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const at::Tensor piece = strategy.piece(i).tensor;
    if (piece.defined() && piece.numel() > 0) digests[i] = digest_of(piece.detach());
  }
  return digests;
}

bool every_piece_changed(train::Strategy& strategy, const std::vector<std::string>& before) {
  const std::vector<std::string> after = piece_digests(strategy);
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (!after[i].empty() && after[i] == before[i] && !master_differs(strategy, i)) return false;
  }
  return true;
}

std::string combine(const std::vector<std::string>& digests) {
  base::Sha256 all;
  for (const std::string& digest : digests) all.add(digest);
  return all.hex();
}

bool all_trainable_changed(train::Strategy& strategy, const std::vector<std::string>& before,
                           const std::vector<std::string>& after) {
  at::Tensor changed = at::zeros({static_cast<std::int64_t>(before.size())}, at::kInt);
  auto* flag = changed.mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < before.size(); ++i) {
    flag[i] = before[i] != after[i] || master_differs(strategy, i) ? 1 : 0;
  }
  // A master weight is known to its owner only.
  strategy.communicator().all_reduce(changed, dist::Purpose::kControl, dist::ReduceOp::kSum).wait();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (strategy.list().parameters[i].tensor.requires_grad() && flag[i] == 0) return false;
  }
  return true;
}

}  // namespace zero::ladder
