#include "gradient_hop.hpp"

#include <ATen/record_function.h>

namespace zero {

GradientHop::Exchange GradientHop::start(const at::Tensor& values) const {
  Exchange exchange{.sent = buffer(values), .arrived = buffer(values), .work = {}};
  {
    RECORD_USER_SCOPE("quantize_gradients");
    std::int64_t at = 0;  // in the order in which ranks get them
    for (const std::vector<Piece>& pieces : pieces_) {
      for (const Piece& piece : pieces) {
        const bool is_finite = blocks_.quantize(
            piece.owner, values.narrow(0, piece.index * blocks_.shard(), blocks_.shard()),
            exchange.sent.narrow(0, at, blocks_.packed_bytes()));
        exchange.is_finite = exchange.is_finite && is_finite;
        at += blocks_.packed_bytes();
      }
    }
  }
  exchange.work = group_.all_to_all(exchange.arrived, exchange.sent, dist::Purpose::kGradient);
  return exchange;
}

void GradientHop::add_up(const at::Tensor& arrived, const at::Tensor& sum) const {
  RECORD_USER_SCOPE("dequantize_gradients");
  const std::vector<Piece>& mine = pieces_[static_cast<std::size_t>(group_.rank())];
  std::int64_t at = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (std::size_t k = 0; k < mine.size(); ++k, at += blocks_.packed_bytes()) {
      const at::Tensor packed = arrived.narrow(0, at, blocks_.packed_bytes());
      const at::Tensor part =
          sum.narrow(0, static_cast<std::int64_t>(k) * blocks_.shard(), blocks_.shard());
      rank == 0 ? blocks_.dequantize(mine[k].owner, packed, part)
                : blocks_.dequantize_and_add(mine[k].owner, packed, part);
    }
  }
}

at::Tensor GradientHop::buffer(const at::Tensor& values) const {
  const at::Tensor bytes =
      memory::without_storage({group_.size() * message_bytes()}, at::kByte, values.device());
  pool_.allocate(bytes, memory::Category::kCommunication);
  return bytes;
}

}  // namespace zero
