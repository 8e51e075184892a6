#include "10e.hpp"

using exercise_10e::Device;

void run_step(Device& device) {
  const int layers = device.layers();
  for (int k = 0; k < layers; ++k) {
    device.forward(k);
    device.copies_wait();
    device.copy_out(k);
    device.computing_waits();
    device.give_back(k);
  }
  for (int k = layers - 1; k >= 0; --k) {
    device.copies_wait();
    device.copy_in(k);
    device.computing_waits();
    device.backward(k);
    device.give_back(k);
  }
}
