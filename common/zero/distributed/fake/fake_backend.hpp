#pragma once

#include <functional>

#include <zero/distributed/communicator.hpp>

namespace zero::dist {

/// Writes what the other ranks would send into all of `received` (contiguous, has storage). Returns
/// false if it does not know this tensor; then it has written nothing.
using FakeSource = std::function<bool(at::Tensor received)>;

/// One rank of a world of any size, alone in its process. It sends nothing and never waits: one
/// machine can show what a rank of 512 holds and sends.
///
/// The other ranks are assumed to do the same as this one; a source can supply the bytes that they
/// send:
///   - exchange() returns this rank's text for every rank, so verify_same() never throws.
///   - An average leaves the tensor as it is, a sum is N times it; a rank that would get a piece or
///     the whole of the result gets just that.
///   - Received data (a broadcast from another root, recv, the others' pieces of an all_gather)
///     comes from the source. Without a source, or for a tensor that it does not know, this rank's
///     own data is used: an all_gather repeats this rank's piece (of bytes: the others' are 0), a
///     broadcast changes nothing.
///   - Activations from another rank (recv for Purpose::kActivation) are ones.
///   - In all_to_all every piece is the one that this rank would send to itself.
///
/// A group that is split from it is fake as well, so there may be a Mesh of it. On a data axis the
/// values are those of ranks with the same data. On a tensor axis they are not those of any model:
/// the ranks there add up different terms of one sum, for which N times this rank's own term
/// stands. Shapes, bytes held and bytes sent do not depend on values.
///
/// As with real ranks, only wait() makes a result visible, and a handle that is never waited on
/// ends the process. Traffic is counted by the formulas of Communicator, to the byte as on a real
/// rank. There are no receive buffers, so memory peaks lack the scratch of real reductions. Time
/// spent in the source counts as exposed communication.
///
/// `ranks_per_host`: how many ranks with consecutive numbers are on a host (host_of()); 0: all.
/// Throws zero::Error unless 0 <= rank < size, or if the last host would have fewer ranks.
Communicator connect_fake(int rank, int size, FakeSource source = {}, int ranks_per_host = 0);

/// Sets the source of this rank in all groups that have been or will be split from this
/// communicator, from one of its groups, or from the one that it was split from. Returns false,
/// and does nothing, if it is not fake.
bool set_fake_source(Communicator& communicator, FakeSource source);

}  // namespace zero::dist
