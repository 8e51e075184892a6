#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zero/distributed/communicator.hpp>

#include "fuzz_model.hpp"
#include "program.hpp"

namespace zero::testing {

/// What happened, in order: tensors by name.
using Record = std::vector<std::pair<std::string, at::Tensor>>;

/// Who trains a program's model: a mode on one of several ranks, or the plain program, one process
/// that computes for all of them. Functions that take or return a tensor for each lane have one
/// lane for each rank that this process computes for.
class Side {
 public:
  virtual ~Side() = default;
  struct Lane {
    int rank;
    FuzzModel* model;
  };
  const std::vector<Lane>& lanes() const { return lanes_; }

  virtual const nn::ParameterList& list(std::size_t lane) = 0;
  virtual at::Tensor forward(std::size_t lane, const data::Batch& batch) = 0;
  /// `terms`: the loss terms of each rank's loss.
  virtual void backward(const std::vector<at::Tensor>& losses,
                        const std::vector<double>& terms) = 0;
  virtual bool step() = 0;
  virtual void give_up_step() = 0;
  virtual void set_learning_rate(double rate) = 0;
  /// Freezes or thaws a parameter.
  virtual void toggle(std::size_t parameter) = 0;
  /// Calls `change` with parts of the parameters, the same elements under every mode; with their
  /// averaged gradients, undefined if there is none; and with small numbers that belong to the
  /// elements.
  using Change = std::function<void(const at::Tensor& values, const at::Tensor& gradient,
                                    const at::Tensor& numbers)>;
  virtual void change(const Change& change) = 0;
  /// Calls `write` with all parameters, whole. `hides`: where they are data(), whose version
  /// counter is their own.
  using Write = std::function<void(const std::vector<at::Tensor>& parameters)>;
  virtual void write(const Write& write, bool hides) = 0;
  /// Of the averaged gradients, between the last backward and step().
  virtual float gradient_norm() = 0;
  /// Whether forwards hold a scope over another unit now and then.
  virtual void set_aside(bool aside) = 0;
  /// Copies of all parameters, whole.
  virtual Record weights() = 0;
  /// Gives the model back and takes it again, with a new optimizer.
  virtual void begin_anew() = 0;
  /// Goes on from a checkpoint that plain DDP has made of this one's.
  virtual void resume() = 0;

 protected:
  std::vector<Lane> lanes_;
};

/// One process without a strategy: a replica of the model for each rank, whose gradients are
/// averaged in the order of ranks, and one optimizer.
std::unique_ptr<Side> plain_side(const Program& program);

/// This rank of `mode`, through zero::Engine if it has one.
std::unique_ptr<Side> mode_side(const Program& program, const std::string& mode,
                                dist::Communicator& communicator);

/// Plays the program's loop and records what `rank` sees. A letter is
///
///   m  a micro-batch: forward, backward, step()
///   b  two forwards, and the backwards in the other order
///   j  one backward of two losses
///   e  an evaluation                  u  a forward whose loss nobody needs
///   x  a forward that throws, y  a backward that throws: the step is given up
///   g  a micro-batch of adversarial inputs, by autograd::grad()
///   q  a loss with a gradient penalty of its own (second order: not at stage 3, which refuses it)
///   Q  the same, of the loss that forward() returned
///   w  reads all weights              l  halves the learning rate
///   n  gives the model back and begins with a new optimizer
///   k  goes on from a checkpoint
///   d  freezes or thaws a parameter   t  a batch of no terms on one rank
///   f  freezes parameters between forward and backward, F  between backward and step()
///   v  a forward that nobody needs between backward and step()
///   V  an evaluation before backward, and one after it
///   o  step() only where it updates   G  a backward of a forward before a step that is given up
///   U  a micro-batch whose forward holds a scope over another unit
///   c  changes the elements of weights that each rank updates, p  those of gradients
///   s  sharpness-aware: a backward at other weights, after a step that is given up
///   C A T  writes into whole weights: clamps them, clamps data(), copies parts of one to another
///   K  clamps them between backward and step()
///   h  from now on hooks of parameters that change gradients, P  hooks of accumulators
///   H  hooks after accumulation,  L  one of rank 0 alone, which only looks
///   R  removes the first of h,    E  removes H and L
///
/// n, k, d, c, f, F and s do nothing, or are as m, in the middle of a step. The weights at the end
/// are the last records, and how often hooks were called.
Record play(const Program& program, Side& side, int rank);

/// Runs the program under each of its modes and compares with the plain program to the last bit; a
/// program of second order (q, Q) within a bound, and then its modes with each other; at stage 3
/// that must be refused.
/// Empty if all agree; otherwise the mode and what differs first. Called by all ranks, which get
/// the same.
std::string verdict(const Program& program, dist::Communicator& communicator);

/// What verdict() begins with if the plain program itself throws.
inline constexpr const char* kInvalid = "invalid: ";

}  // namespace zero::testing
