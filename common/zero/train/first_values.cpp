
#include <zero/memory/charge.hpp>
#include <zero/memory/storage.hpp>
#include <zero/train/broadcast_buffers.hpp>
#include <zero/train/first_values.hpp>
#include <zero/train/held_model.hpp>

namespace zero::train {

using dist::Purpose;

void FirstValues::broadcast_all() {
  const auto& parameters = list_.parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    fill(i);
    const at::Tensor tensor = memory::raw(parameters[i].tensor);
    communicator_.broadcast(tensor, /*root=*/0, Purpose::kSetup).wait();
  }
  broadcast_buffers();
}

void FirstValues::send(std::size_t index, int owner) {
  const int rank = communicator_.rank();
  const at::Tensor tensor = memory::raw(list_.parameters[index].tensor);
  if (rank == 0 || rank == owner) fill(index);
  if (owner == 0) return;
  if (rank == 0) communicator_.send(tensor, owner, Purpose::kSetup).wait();
  if (rank == owner) communicator_.recv(tensor, 0, Purpose::kSetup).wait();
}

void FirstValues::broadcast_buffers() {
  train::broadcast_buffers(module_, communicator_, Purpose::kSetup);
  held_.note_storages();
}

void FirstValues::write(std::size_t index, at::Tensor out) {
  nn::fill_part(*source_, list_.parameters[index], out);
}

// Allocates one parameter; on rank 0, also asks the source for its first value.
void FirstValues::fill(std::size_t index) {
  const memory::Charge charge(memory::Category::kParameters);
  const at::Tensor tensor = list_.parameters[index].tensor;
  const bool had_values = memory::has_storage(tensor);
  memory::allocate_storage(tensor);
  if (communicator_.rank() == 0 && !had_values) write(index, tensor);
}

}  // namespace zero::train
