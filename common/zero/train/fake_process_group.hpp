#pragma once

#include <zero/distributed/fake/fake_backend.hpp>
#include <zero/nn/model.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::train {

/// What the other ranks of a fake process group send, as if they had never trained: the first
/// values of `model`'s parameters. So the first forward pass of a rank that holds a shard is bit
/// for bit that of a real process group; in later steps this rank's own part has been updated and
/// the others' parts have not.
///
/// A received tensor is identified by its storage. Every parameter of the model that lies in it, in
/// whole or in part, gets its values; gaps between parameters get zeros. A tensor that holds no
/// parameter (loss terms, flags, buffers of the model) is unknown. To fill a part of a parameter,
/// the whole of it is made for a moment.
///
/// Of a model that is split over a tensor axis, or of one stage of a pipeline, `model` is this
/// rank's part, and so are the values. Set the source on any of this rank's fake communicators.
///
/// If a model was built with values of its own and has no initializers, a whole parameter that is
/// received keeps this rank's values.
///
/// `model` and `values` must outlive every use of the result.
dist::FakeSource first_values_of(nn::Model& model, nn::ParameterSource& values);

}  // namespace zero::train
