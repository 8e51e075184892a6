#pragma once

#include <zero/distributed/fake/fake_communicator.hpp>
#include <zero/nn/model.hpp>
#include <zero/nn/parameters.hpp>

namespace zero::train {

/// What the other ranks of a fake process group send, as if they had never trained: the first
/// values of `model`'s parameters. So the first forward pass of a rank that holds a shard is the
/// one that a real process group would run, to the last bit; in later steps this rank's own part
/// has been updated and the others' is as it was.
///
/// A tensor is known by its bytes: every parameter of the model that lies in them, in whole or in
/// part, gets its values, and what is between parameters gets zeros. Of a tensor in which none lies
/// (loss terms, flags, buffers of the model) nothing is known. A parameter of which only a part is
/// received is made in whole for the moment.
///
/// Where a model was built with values of its own and has no initializers, a whole parameter that
/// is received keeps what this rank has.
///
/// `model` and `values` must outlive every use of the result.
dist::FakeCommunicator::Source first_values_of(nn::Model& model, nn::ParameterSource& values);

}  // namespace zero::train
