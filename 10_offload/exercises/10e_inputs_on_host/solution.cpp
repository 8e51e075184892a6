#include "10e.hpp"

using exercise_10e::Device;

void run_step(Device& device) {
  const int layers = device.layers();
  for (int k = 0; k < layers; ++k) {
    if (k > 0) {
      device.computing_waits();  // for the copy before
      device.give_back(k - 1);
    }
    device.copies_wait();
    device.copy_out(k);
    device.forward(k);
  }
  for (int k = layers - 1; k >= 0; --k) {
    device.computing_waits();  // the last input has left, each other one is back
    if (k > 0) {
      device.copies_wait();
      device.copy_in(k - 1);
    }
    device.backward(k);
    device.give_back(k);
  }
}
