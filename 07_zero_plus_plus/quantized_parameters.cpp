#include "quantized_parameters.hpp"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <zero/memory/accounting.hpp>

#include "finish_work.hpp"

namespace zero {

using memory::Category;

dist::Work QuantizedParameters::gather(const at::Tensor& full, const at::Tensor& shard) {
  const at::TensorOptions bytes = full.options().dtype(at::kByte);
  at::Tensor own = at::empty({0}, bytes);
  if (bytes_->reads_shard()) {
    RECORD_USER_SCOPE("quantize_parameters");
    const memory::Charge charge(Category::kCommunication);
    own = at::empty({blocks_.packed_bytes()}, bytes);
    // Weights that are not finite are sent as NaN, and show in the loss.
    blocks_.quantize(rank_, shard, own);
  }
  const at::Tensor packed =
      memory::without_storage({blocks_.ranks() * blocks_.packed_bytes()}, at::kByte, full.device());
  pool_.allocate(packed, Category::kCommunication);
  dist::Work arrival = bytes_->gather(packed, own);
  return finish_with(std::move(arrival), [this, own, packed, full] {
    unpack(packed, full);
    pool_.release(packed);
  });
}

void QuantizedParameters::written(const at::Tensor& full) {
  if (bytes_->reads_shard()) return;  // nothing is kept
  const memory::Charge charge(Category::kCommunication);
  const at::Tensor packed =
      at::empty({blocks_.ranks() * blocks_.packed_bytes()}, full.options().dtype(at::kByte));
  for (int rank = 0; rank < blocks_.ranks(); ++rank) {
    blocks_.quantize(rank, full.narrow(0, rank * blocks_.shard(), blocks_.shard()),
                     packed.narrow(0, rank * blocks_.packed_bytes(), blocks_.packed_bytes()));
  }
  bytes_->written(packed);
}

void QuantizedParameters::unpack(const at::Tensor& packed, const at::Tensor& full) const {
  RECORD_USER_SCOPE("dequantize_parameters");
  for (int rank = 0; rank < blocks_.ranks(); ++rank) {
    blocks_.dequantize(rank,
                       packed.narrow(0, rank * blocks_.packed_bytes(), blocks_.packed_bytes()),
                       full.narrow(0, rank * blocks_.shard(), blocks_.shard()));
  }
}

}  // namespace zero
