#include <algorithm>

#include <zero/distributed/hierarchical/host_gather.hpp>

namespace zero::dist {

HostGather::HostGather(const HostLinks& links, const Call& call, const at::Tensor& output,
                       const at::Tensor& input)
    : links_(links), call_(call), outgoing_(links.messages, call) {
  const HostRoutes& routes = links_.routes;
  const int host = routes.host_of(links_.rank), place = routes.place_of(links_.rank);
  const bool gathers = call_.operation == Operation::kAllGather;
  const auto rows = output.flatten().chunk(gathers ? routes.hosts() : 1);
  // Pieces of this host need no message.
  steps_.push_back({rows[static_cast<std::size_t>(gathers ? host : 0)], input.flatten(),
                    MessageSet(links_.messages, call_)});
  for (int h = 0; h < routes.hosts(); ++h) {
    const int peer = routes.rank_at(h, place);
    if (h == host) continue;
    if (gathers || links_.rank == call_.root) outgoing_.send(input, peer, tag_of(call_));
    if (gathers) {
      const at::Tensor& row = rows[static_cast<std::size_t>(h)];
      steps_.push_back({row, row.chunk(routes.per_host())[static_cast<std::size_t>(place)],
                        MessageSet(links_.messages, call_)});
    }
    if (gathers || peer == call_.root) {
      steps_.back().message.recv(steps_.back().piece, peer, tag_of(call_));
    }
  }
}

void HostGather::run() {
  Call inside = call_;
  inside.root = links_.routes.place_of(std::max(call_.root, 0));
  for (auto& [whole, piece, message] : steps_) {
    message.wait();
    links_.inside.start(inside, whole, piece)->wait();
  }
}

}  // namespace zero::dist
