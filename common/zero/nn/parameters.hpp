#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <zero/nn/unit.hpp>

namespace zero::nn {

class ModelUnits;

/// One parameter of a model; a tied parameter counts once.
struct Parameter {
  /// Dotted path, as in named_parameters(): "model.layers.0.mlp.up_proj.weight".
  std::string name;
  at::Tensor tensor;     ///< the tensor that the module holds; its storage may be empty (deferred)
  std::size_t unit = 0;  ///< index of its unit in ParameterList::units
  std::optional<Initializer> initializer;  ///< nothing if the module is not a Layer
  /// Where it lies on a tensor axis: `tensor` is this rank's part.
  TensorPlacement placement = {};

  std::int64_t numel() const { return tensor.numel(); }
  std::int64_t bytes() const { return static_cast<std::int64_t>(tensor.nbytes()); }
  /// The sizes in the whole model: of `tensor`, unless a tensor axis cuts it.
  std::vector<std::int64_t> whole_sizes() const { return placement.whole_sizes(tensor.sizes()); }
};

/// A unit of a model and the parameters that are gathered with it.
struct UnitInfo {
  Unit* unit = nullptr;
  std::string name;                     ///< dotted path; empty for the root
  std::vector<std::size_t> parameters;  ///< indices into ParameterList::parameters
  std::size_t parent = 0;               ///< index of the unit around it; the root's own is 0
};

/// The parameters of a model in registration order and the units they belong to (the root is unit
/// 0, then inner units in registration order). The same on every rank that builds the same model.
///
/// A parameter belongs to the innermost unit around it. A tied parameter, registered in several
/// places, is listed once under its first name. It belongs to the innermost unit around all of its
/// places, so that it is whole wherever it is used.
struct ParameterList {
  std::vector<Parameter> parameters;
  std::vector<UnitInfo> units;

  std::size_t size() const { return parameters.size(); }
  std::int64_t numel() const;  ///< elements of all parameters, tied ones once
  std::int64_t bytes() const;  ///< V of the formulas: bytes of one copy of the parameters

  /// The ranks that the model is split over (tensor_parallel.hpp); null if it is not. Then this
  /// list is of the part that this rank holds.
  dist::Communicator* tensor_axis() const;

  /// Index of `unit` in `units`. Throws zero::Error if it is not there.
  std::size_t index_of(const Unit& unit) const;
  /// True if another unit lies inside unit `u`.
  bool has_inner(std::size_t u) const;
  /// True if unit `u` is `outer` or lies inside it.
  bool lies_within(std::size_t u, std::size_t outer) const;
};

/// The dotted path of what is registered as `name` in the module with path `path`.
std::string path_to(const std::string& path, const std::string& name);

/// Lists the parameters of `root`, which always counts as a unit, and of the units inside that are
/// modules of class Unit; UnitInfo::unit is null for a root that is none. Throws zero::Error for a
/// model without a parameter, for a parameter that is not contiguous, for two different
/// parameters that share memory, and for a model that is split over two tensor axes.
/// Without those whose path is one of `ignored`, which match_name() compares; throws zero::Error
/// for one that no parameter has. A tied parameter is left out if all its paths are ignored.
ParameterList list_parameters(torch::nn::Module& root,
                              const std::vector<std::string>& ignored = {});
/// The same with the units that a ModelUnits has.
ParameterList list_parameters(const ModelUnits& units,
                              const std::vector<std::string>& ignored = {});

/// Whether a dotted path is `pattern`, in which `*` stands for any part of a path between dots.
bool match_name(std::string_view path, std::string_view pattern);

/// What a stage of a pipeline knows of the model that it is cut from.
struct WholeModel {
  /// All parameters. Those of the stage have the same names and the same order there; those of
  /// other stages never have bytes.
  ParameterList list;
  /// A parameter of this stage that another stage trains; undefined if there is none.
  at::Tensor copy;
};

/// Sets the hooks of every Unit among `root` and the modules inside it.
void set_hooks(torch::nn::Module& root, UnitHooks* hooks);

/// The source of first values. Implementations: SeededValues (below), safetensors files.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// Writes the first values of `parameter` into `out` (same shape and dtype, has storage). Called
  /// on one rank; the values reach the others through a collective. It is asked for whole
  /// parameters only: of a model that is split, see fill_part().
  virtual void fill(const Parameter& parameter, at::Tensor& out) = 0;
};

/// Writes the first values of what this rank holds of `parameter` into `out`: those of the whole
/// parameter, or of the part that a tensor axis leaves to this rank. For a part, `source` first
/// fills the whole in memory charged to memory::Category::kCommunication. Acts on this rank alone;
/// every tensor rank reads from a source of its own, which must have the same values.
void fill_part(ParameterSource& source, const Parameter& parameter, at::Tensor& out);

/// Values drawn from each parameter's own generator, seeded by (seed, name): they depend neither on
/// the world size nor on the order in which parameters are made. A parameter without an initializer
/// keeps its values; zero::Error if it has no storage.
class SeededValues final : public ParameterSource {
 public:
  explicit SeededValues(std::uint64_t seed) : seed_(seed) {}
  void fill(const Parameter& parameter, at::Tensor& out) override;

 private:
  std::uint64_t seed_;
};

/// Allocates storage (charged to kParameters) and sets values for every parameter of `root`: the
/// whole model on this rank, for one process, tests and inference.
void initialize_parameters(torch::nn::Module& root, ParameterSource& source);

/// Calls `callback` each time a backward pass has completed the gradient of `parameter`: after its
/// last use, once per backward, on the thread that called backward(). The gradient may be undefined
/// if the parameter was part of the graph but no gradient reached it. Replaces an earlier callback;
/// an empty function removes it. A post-accumulate hook of the program's own stays and is called
/// before `callback`, with a `.grad` that the program may keep; one that the program sets later
/// takes the place of both, as it does in LibTorch: call this again.
void on_gradient_ready(const at::Tensor& parameter, std::function<void()> callback);
/// Whether there is such a callback.
bool calls_on_gradient_ready(const at::Tensor& parameter);
/// Whether the program has set hooks that see a gradient of `parameter` before it is added to
/// `.grad`: register_hook(), or a hook before the gradient accumulator.
bool has_gradient_hooks(const at::Tensor& parameter);
/// Whether the program has set a post-accumulate hook of its own.
bool has_post_hook(const at::Tensor& parameter);

}  // namespace zero::nn
