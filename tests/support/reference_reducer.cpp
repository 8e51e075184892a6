#include "reference_reducer.hpp"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <type_traits>
#include <unordered_map>

#include <zero/base/error.hpp>
#include <zero/distributed/communicator.hpp>
#include <zero/distributed/gloo/gloo_group.hpp>

namespace zero::dist {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;
using Names = std::unordered_map<std::size_t, std::string>;
using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// The constructor has grown from release to release; the arguments that all have come first.
template <typename Reducer>
std::unique_ptr<Reducer> make_reducer(const std::vector<at::Tensor>& parameters,
                                      const Buckets& buckets, const ProcessGroupPtr& group,
                                      std::int64_t cap) {
  const std::vector<bool> sparse(parameters.size(), false);
  using Caps = std::vector<std::int64_t>;
  if constexpr (std::is_constructible_v<Reducer, std::vector<at::Tensor>, Buckets, ProcessGroupPtr,
                                        std::vector<bool>, std::int64_t, bool, bool, Names,
                                        std::int64_t, bool, bool, Caps>) {
    return std::make_unique<Reducer>(parameters, buckets, group, sparse, cap,
                                     /*find_unused_parameters=*/false,
                                     /*gradient_as_bucket_view=*/false, Names(), cap,
                                     /*skip_all_reduce_unused_params=*/false,
                                     /*use_python_reducer=*/false, Caps());
  } else if constexpr (std::is_constructible_v<Reducer, std::vector<at::Tensor>, Buckets,
                                               ProcessGroupPtr, std::vector<bool>, std::int64_t,
                                               bool, bool, Names, std::int64_t, bool, bool>) {
    return std::make_unique<Reducer>(parameters, buckets, group, sparse, cap, false, false, Names(),
                                     cap, false, false);
  } else {
    return std::make_unique<Reducer>(parameters, buckets, group, sparse, cap, false, false, Names(),
                                     cap);
  }
}

// A rank alone has no Gloo group, which c10d's reducer wants all the same: one of that rank.
GroupPtr group_of(Communicator& communicator) {
  if (GroupPtr group = gloo_group_of(communicator)) return group;
  if (communicator.size() > 1) throw Error("c10d's reducer needs a Gloo communicator");
  return make_gloo_group(c10::make_intrusive<c10d::HashStore>(), /*rank=*/0, /*size=*/1,
                         /*world_rank=*/0, /*loopback=*/true, std::chrono::minutes(1));
}

}  // namespace

struct ReferenceReducer::State {
  ProcessGroupPtr group;
  std::unique_ptr<c10d::Reducer> reducer;
};

ReferenceReducer::ReferenceReducer(const std::vector<at::Tensor>& parameters,
                                   Communicator& communicator, std::size_t bucket_bytes)
    : state_(std::make_unique<State>()) {
  const GroupPtr gloo = group_of(communicator);
  state_->group = c10::make_intrusive<c10d::ProcessGroup>(communicator.rank(), communicator.size());
  state_->group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                            c10::intrusive_ptr<c10d::Backend>(gloo));
  // Buckets in reverse, as backward makes gradients.
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, {bucket_bytes}));
  std::reverse(buckets.begin(), buckets.end());
  state_->reducer = make_reducer<c10d::Reducer>(parameters, buckets, state_->group,
                                                static_cast<std::int64_t>(bucket_bytes));
}

ReferenceReducer::~ReferenceReducer() = default;

void ReferenceReducer::prepare_for_backward(const at::Tensor& loss) {
  state_->reducer->prepare_for_backward({loss});
}

}  // namespace zero::dist
