#pragma once

namespace exercise_10e {

/// A device with two queues. A call puts something at the end of a queue and returns at once.
/// Layers are numbered from 0. The input of layer 0 is there, that of another is made by the layer
/// before.
class Device {
 public:
  virtual ~Device() = default;
  virtual int layers() const = 0;  ///< at least one

  // ---- the queue that computes
  virtual void forward(int layer) = 0;
  /// The layer runs again, from its input, and then backward.
  virtual void backward(int layer) = 0;
  /// Gives back the memory of the layer's input. What is put into this queue afterwards writes over
  /// it.
  virtual void give_back(int layer) = 0;

  // ---- the queue that copies
  virtual void copy_out(int layer) = 0;  ///< the layer's input to the host
  virtual void copy_in(int layer) = 0;   ///< and back, into memory that was given back

  // ---- both
  /// The computing that is called from here on waits for all copies that were called before.
  virtual void computing_waits() = 0;
  /// The copies that are called from here on wait for all computing that was called before.
  virtual void copies_wait() = 0;
};

/// What an answer consists of.
struct Answer {
  /// Runs all layers forward and then backward.
  void (*run_step)(Device& device);
};

}  // namespace exercise_10e
