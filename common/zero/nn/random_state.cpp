#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <mutex>

#include <zero/nn/random_state.hpp>

namespace zero::nn {

RandomState::RandomState(const std::vector<at::Tensor>& tensors) {
  {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    auto* const cpu = generator.get<at::CPUGeneratorImpl>();
    cpu_ = cpu->engine().data();
    next_float_ = cpu->next_float_normal_sample();
    next_double_ = cpu->next_double_normal_sample();
  }
  for (const at::Tensor& tensor : tensors) {
    const at::Device device = tensor.device();
    const bool known = std::any_of(devices_.begin(), devices_.end(),
                                   [&](const OfDevice& d) { return d.device == device; });
    if (!at::isAccelerator(device.type()) || known) continue;
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    devices_.push_back({device, generator.current_seed(), generator.get_offset()});
  }
}

bool RandomState::operator==(const RandomState& other) const {
  return cpu_.seed_ == other.cpu_.seed_ && cpu_.left_ == other.cpu_.left_ &&
         cpu_.next_ == other.cpu_.next_ && cpu_.state_ == other.cpu_.state_ &&
         next_float_ == other.next_float_ && next_double_ == other.next_double_ &&
         devices_ == other.devices_;
}

void RandomState::restore() const {
  {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    auto* const cpu = generator.get<at::CPUGeneratorImpl>();
    at::mt19937 engine;
    engine.set_data(cpu_);
    cpu->set_engine(engine);
    cpu->set_next_float_normal_sample(next_float_);
    cpu->set_next_double_normal_sample(next_double_);
  }
  for (const OfDevice& d : devices_) {
    at::Generator generator = at::globalContext().defaultGenerator(d.device);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(d.seed);
    generator.set_offset(d.offset);
  }
}

}  // namespace zero::nn
