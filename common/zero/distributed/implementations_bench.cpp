#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <zero/distributed/implementations_bench.hpp>
#include <zero/distributed/rank_order.hpp>

namespace zero::dist {
namespace {

at::Tensor pattern(int rank, std::int64_t begin, std::int64_t n) {
  return at::arange(begin, begin + n, at::kLong).remainder(1009).to(at::kFloat).add_(7.0 * rank);
}

at::Tensor summed_pattern(int ranks, std::int64_t begin, std::int64_t n) {
  at::Tensor sum = at::zeros({n});
  for (int r = 0; r < ranks; ++r) sum += pattern(r, begin, n);
  return sum;
}

// Newer releases of LibTorch call these three so; in older ones they are _reduce_scatter_base,
// _allgather_base and alltoall_base.
template <typename Gloo>
void gloo_reduce_scatter(Gloo& gloo, at::Tensor& output, at::Tensor& input) {
  if constexpr (requires { gloo.reduce_scatter_single(output, input); }) {
    gloo.reduce_scatter_single(output, input)->wait();
  } else {
    gloo._reduce_scatter_base(output, input)->wait();
  }
}

template <typename Gloo>
void gloo_all_gather(Gloo& gloo, at::Tensor& output, at::Tensor& input) {
  if constexpr (requires { gloo.all_gather_single(output, input); }) {
    gloo.all_gather_single(output, input)->wait();
  } else {
    gloo._allgather_base(output, input)->wait();
  }
}

template <typename Gloo>
void gloo_all_to_all(Gloo& gloo, at::Tensor& output, at::Tensor& input) {
  std::vector<std::int64_t> equal_parts;
  if constexpr (requires { gloo.all_to_all_single(output, input, equal_parts, equal_parts); }) {
    gloo.all_to_all_single(output, input, equal_parts, equal_parts)->wait();
  } else {
    gloo.alltoall_base(output, input, equal_parts, equal_parts)->wait();
  }
}

void all_to_all_and_sum(Data& d) {
  gloo_all_to_all(*d.gloo, d.other, d.whole);
  sum_in_rank_order(d.piece, d.other.chunk(d.ranks.size()));
}

// Every rank hands its piece out, all at once.
void broadcasts_by_owner(Data& d) {
  d.part(d.whole, d.ranks.rank()).copy_(d.piece);
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int owner = 0; owner < d.ranks.size(); ++owner) {
    std::vector<at::Tensor> tensors{d.part(d.whole, owner)};
    c10d::BroadcastOptions options;
    options.rootRank = owner;
    works.push_back(d.gloo->broadcast(tensors, options));
  }
  for (const auto& work : works) work->wait();
}

const std::vector<std::pair<std::string, std::function<void(Data&)>>> kOurs = {
    {"all_reduce",
     [](Data& d) { d.ranks.all_reduce(d.whole, Purpose::kGradient, ReduceOp::kSum).wait(); }},
    {"reduce",
     [](Data& d) { d.ranks.reduce(d.whole, 0, Purpose::kGradient, ReduceOp::kSum).wait(); }},
    {"reduce_scatter",
     [](Data& d) {
       d.ranks.reduce_scatter(d.piece, d.whole, Purpose::kGradient, ReduceOp::kSum).wait();
     }},
    {"all_gather",
     [](Data& d) { d.ranks.all_gather(d.whole, d.piece, Purpose::kParameter).wait(); }},
    {"broadcast", [](Data& d) { d.ranks.broadcast(d.whole, 0, Purpose::kParameter).wait(); }},
    {"all_to_all",
     [](Data& d) { d.ranks.all_to_all(d.other, d.whole, Purpose::kParameter).wait(); }},
};

}  // namespace

Data::Data(Communicator& communicator, std::int64_t bytes)
    : ranks(communicator), gloo(dynamic_cast<GlooCommunicator&>(communicator).group()) {
  const std::int64_t n = bytes / 4 / communicator.size();
  piece = at::zeros({n});
  whole = at::zeros({n * communicator.size()});
  other = at::zeros({n * communicator.size()});
}

at::Tensor Data::part(const at::Tensor& tensor, int rank) const {
  return tensor.narrow(0, rank * piece.numel(), piece.numel());
}

void prepare(const Data& d) {
  const int me = d.ranks.rank();
  d.whole.copy_(pattern(me, 0, d.whole.numel()));
  d.piece.copy_(pattern(me, me * d.piece.numel(), d.piece.numel()));
  d.other.zero_();
}

bool right(const Data& d, const std::string& operation) {
  const int me = d.ranks.rank();
  const std::int64_t n = d.whole.numel();
  const std::int64_t m = d.piece.numel();
  if (operation == "broadcast") return at::equal(d.whole, pattern(0, 0, n));
  if (operation == "reduce" && me != 0) return true;
  if (operation == "all_reduce" || operation == "reduce") {
    return at::equal(d.whole, summed_pattern(d.ranks.size(), 0, n));
  }
  if (operation == "reduce_scatter") {
    return at::equal(d.piece, summed_pattern(d.ranks.size(), me * m, m));
  }
  for (int r = 0; r < d.ranks.size(); ++r) {
    const bool same = operation == "all_gather"
                          ? at::equal(d.part(d.whole, r), pattern(r, r * m, m))
                          : at::equal(d.part(d.other, r), pattern(r, me * m, m));
    if (!same) return false;
  }
  return true;
}

std::vector<Implementation> implementations() {
  std::vector<Implementation> all;
  for (const char* transport : {"host", "tcp"}) {
    for (const auto& [operation, run] : kOurs) all.push_back({operation, transport, run});
  }
  const auto with_one = [](auto call) {
    return [call](Data& d) {
      std::vector<at::Tensor> tensors{d.whole};
      call(*d.gloo, tensors)->wait();
    };
  };
  using Gloo = c10d::ProcessGroupGloo;
  all.push_back({"all_reduce", "gloo", with_one([](Gloo& g, auto& t) { return g.allreduce(t); })});
  all.push_back({"reduce", "gloo", with_one([](Gloo& g, auto& t) { return g.reduce(t); })});
  all.push_back(
      {"reduce_scatter", "gloo", [](Data& d) { gloo_reduce_scatter(*d.gloo, d.piece, d.whole); }});
  all.push_back({"reduce_scatter", "other", all_to_all_and_sum});
  all.push_back(
      {"all_gather", "gloo", [](Data& d) { gloo_all_gather(*d.gloo, d.whole, d.piece); }});
  all.push_back({"all_gather", "other", broadcasts_by_owner});
  all.push_back({"broadcast", "gloo", with_one([](Gloo& g, auto& t) { return g.broadcast(t); })});
  all.push_back(
      {"all_to_all", "gloo", [](Data& d) { gloo_all_to_all(*d.gloo, d.other, d.whole); }});
  return all;
}

}  // namespace zero::dist
