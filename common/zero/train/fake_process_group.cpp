#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <zero/memory/accounting.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/fake_process_group.hpp>

namespace zero::train {
namespace {

// Elements of one storage: [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

Range range_of(const at::Tensor& tensor) {
  return {tensor.storage_offset(), tensor.storage_offset() + tensor.numel()};
}

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// The part of one parameter that lies in `flat`, which begins at element `begin` of its storage.
void fill_part(const nn::Parameter& p, Range part, std::int64_t begin, const at::Tensor& flat,
               nn::ParameterSource& values) {
  at::Tensor there = flat.narrow(0, part.begin - begin, part.end - part.begin);
  if (there.numel() == p.numel()) {
    there = there.view(p.tensor.sizes());
    nn::fill_part(values, p, there);
    return;
  }
  const memory::Charge charge(memory::Category::kCommunication);
  at::Tensor whole = at::empty_like(memory::raw(p.tensor));
  nn::fill_part(values, p, whole);
  const std::int64_t first = part.begin - p.tensor.storage_offset();
  there.copy_(whole.flatten().narrow(0, first, there.numel()));
}

// What is in `flat` between the parts, which are in order and do not overlap.
void clear_gaps(const at::Tensor& flat, Range all, const std::vector<Range>& parts) {
  std::int64_t end = all.begin;
  const auto clear_until = [&](std::int64_t next) {
    flat.narrow(0, end - all.begin, next - end).zero_();
  };
  for (const Range part : parts) {
    clear_until(part.begin);
    end = part.end;
  }
  clear_until(all.end);
}

bool fill(const nn::ParameterList& list, nn::ParameterSource& values, const at::Tensor& received) {
  const Range all = range_of(received);
  const at::Tensor flat = memory::raw(received).view({-1});
  std::vector<Range> parts;
  for (const nn::Parameter& p : list.parameters) {
    const Range own = range_of(p.tensor);
    const Range part{std::max(all.begin, own.begin), std::min(all.end, own.end)};
    if (part.begin >= part.end || !share_storage(p.tensor, received)) continue;
    fill_part(p, part, all.begin, flat, values);
    parts.push_back(part);
  }
  if (parts.empty()) return false;
  std::sort(parts.begin(), parts.end(), [](Range a, Range b) { return a.begin < b.begin; });
  clear_gaps(flat, all, parts);
  return true;
}

}  // namespace

dist::FakeSource first_values_of(nn::Model& model, nn::ParameterSource& values) {
  auto list = std::make_shared<const nn::ParameterList>(nn::list_parameters(model));
  return [list = std::move(list), &values](at::Tensor received) {
    return fill(*list, values, received);
  };
}

}  // namespace zero::train
