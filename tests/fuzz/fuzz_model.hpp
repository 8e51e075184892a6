#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tests/support/batch_model.hpp>
#include <zero/nn/layers.hpp>

#include "program.hpp"

namespace zero::testing {

/// The model of a program. Each part takes and returns [n, width]. A small letter is a unit of the
/// layers of zero/nn, a capital the same of LibTorch's operations:
///
///   l L  a linear layer           w W  one whose weight all of them share
///   f F  frozen weight (F: all)   n N  a normalisation
///   e E  an embedding, twice      d D  a linear layer in float64
///   a A  a weight used twice      o O  dropout
///   c C  dropout and a linear layer under a checkpoint
///   s    a shift that only some batches use
///   S    a unit that only some batches use; others pass through it
///   M    a weight used by a layer of zero/nn and by LibTorch's operations
///   b    two outputs              v    an output that is a view
///   k    reads what the first layer gave
///   z    many parameters of few elements, or none
///   Z    a unit whose parameters have no element
///   B    a batch normalisation, which has buffers
///   u    a unit that no batch uses
///   g    a scalar of the root     h    the last weight is the first
///   r    the part before once more
///   p    the two parts before side by side
///   j    no gradient goes on, and a loss of what comes before
///   i    an inner step of the last weight, in a graph of its own (second order within the root)
///   y    hooks on the output of the part before that scale its gradient, which is kept
///   Y    a unit with a loss of its own, computed after its output
///   X    a unit that clamps its weight in its forward
///   ! ?  changes the output of the part before in place
///   ( )  a unit around parts      [ ]  a checkpoint around parts
class FuzzModel : public BatchModel {
 public:
  explicit FuzzModel(const Program& program);

  at::Tensor loss(const data::Batch& batch) override;

  /// What a forward that throws (once) says.
  static constexpr const char* kThrown = "thrown by the program";
  void throw_in_forward(std::size_t part) { throw_in_forward_ = part; }
  void throw_in_backward(std::size_t part) { throw_in_backward_ = part; }
  /// The loss has a penalty on the gradient of the prediction by the inputs.
  void set_penalised(bool penalised) { penalised_ = penalised; }
  /// Called after each part of a forward.
  std::function<void()> after_part = [] {};
  /// Makes a weight whole for a write in the forward, while what it returns lives.
  std::function<std::shared_ptr<void>(const at::Tensor& weight)> held = [](auto&) {
    return nullptr;
  };

 private:
  using Function = std::function<at::Tensor(const at::Tensor&)>;
  class Part;

  std::vector<Function> make_parts(const std::string& letters, std::size_t& at,
                                   torch::nn::Module& holder);
  Function make_group(char letter, const std::vector<Function>& inner,
                      const std::shared_ptr<Part>& unit);
  Function make_layer(char letter, Part& unit);
  Function make_odd_part(char letter, Part& unit);
  void add_part(char letter, std::vector<Function>& parts);
  at::Tensor outputs(const data::Batch& batch);
  at::Tensor head(const at::Tensor& x) const;

  Program program_;
  at::ScalarType dtype_;
  std::vector<Function> parts_;
  at::Tensor first_weight_, last_weight_, tied_;
  int scales_ = 0;
  std::size_t throw_in_forward_ = kNever, throw_in_backward_ = kNever;
  bool penalised_ = false;
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);
  // Of the forward that runs.
  bool uses_shifts_ = true;
  at::Tensor ids_, first_, own_losses_;
};

/// "float", "double", "bfloat16".
at::ScalarType dtype_of(const std::string& name);

/// The batch of `rank`, different for every number.
data::Batch fuzz_batch(const Program& program, int rank, int number);

}  // namespace zero::testing
