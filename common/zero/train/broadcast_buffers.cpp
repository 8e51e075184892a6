#include <vector>

#include <zero/memory/storage.hpp>
#include <zero/train/broadcast_buffers.hpp>

namespace zero::train {

void broadcast_buffers(const torch::nn::Module& module, dist::Communicator& communicator,
                       dist::Purpose purpose) {
  struct Transfer {
    at::Tensor values, sent;
    dist::Work work;
  };
  std::vector<Transfer> transfers;
  for (const at::Tensor& buffer : module.buffers()) {
    at::Tensor values = memory::raw(buffer);
    for (std::int64_t d = 0; d < values.dim(); ++d) {  // an expanded one: each value once
      if (values.stride(d) == 0 && values.size(d) > 1) values = values.narrow(d, 0, 1);
    }
    const at::Tensor sent = values.contiguous();
    transfers.push_back({values, sent, communicator.broadcast(sent, /*root=*/0, purpose)});
  }
  for (Transfer& transfer : transfers) {
    transfer.work.wait();
    if (!transfer.values.is_contiguous()) transfer.values.copy_(transfer.sent);
  }
}

}  // namespace zero::train
