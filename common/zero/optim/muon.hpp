#pragma once

#include <zero/optim/adamw.hpp>

namespace zero::optim {

/// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): a matrix moves by
/// learning_rate times a factor of its sizes times its momentum (Nesterov's) made orthogonal: all
/// singular values come near 1, between 0.68 and 1.21 where they were not tiny.
struct MuonOptions {
  double learning_rate = 1e-3;
  double momentum = 0.95;
  double weight_decay = 0.01;  ///< decoupled, as AdamW's
  /// The factor is 0.2 sqrt(max(rows, columns)), so that updates are as large as AdamW's and one
  /// learning rate serves both (Liu et al. 2025, Moonlight, arXiv:2502.16982); if false,
  /// sqrt(max(1, rows / columns)), Jordan's.
  bool as_large_as_adamw = true;
};

/// The group of a matrix: 1 if its name has "embed", "wte", "wpe", "head" or "score", else 0.
std::size_t hidden_matrices(const std::string& name, const at::Tensor& matrix);

/// Muon for the matrices of `module` that `rule` puts into group 0. AdamW for those in group 1, and
/// for all that has not two dimensions. A matrix is orthogonalised in its own type, so 2-byte
/// parameters want with_master_weights() around it. It needs whole matrices
/// (Optimizer::needs_whole()) without padding, of which a row would change the factor.
OptimizerFactory muon(const torch::nn::Module& module, MuonOptions matrices = {},
                      AdamWOptions others = {}, GroupRule rule = hidden_matrices);

}  // namespace zero::optim
