#pragma once

#include <zero/distributed/communicator.hpp>

namespace zero::dist {

/// One rank of a world of any size, alone in its process. It sends nothing and never waits: one
/// machine can show what a rank of 512 holds and sends.
///
/// The other ranks are assumed to do the same as this one, and their bytes are made up:
///   - exchange() returns this rank's text for every rank, so verify_same() never throws.
///   - An average leaves the tensor as it is, a sum is N times it; a rank that would get a piece or
///     the whole of the result gets just that.
///   - In all_gather and all_to_all the others' pieces are this rank's own once more, the one that
///     it would send to itself. Gathered bytes of the others are 0.
///   - A broadcast from another root and recv bring 1/64 in every place, 0 in integers: float16 has
///     it to the last bit, no sum of products overflows, and a norm layer has something to scale.
///
/// A group that is split from it is fake as well, so there may be a Mesh of it. Nobody has trained
/// the model whose values a rank then sees. Shapes, bytes held and bytes sent do not depend on
/// them.
///
/// As with real ranks, only wait() makes a result visible, and a handle that is never waited on
/// ends the process. Traffic is counted by the formulas of Communicator, to the byte as on a real
/// rank. There are no receive buffers, so memory peaks lack the scratch of real reductions.
///
/// `ranks_per_host`: how many ranks with consecutive numbers are on a host (host_of()); 0: all.
/// Throws zero::Error unless 0 <= rank < size, or if the last host would have fewer ranks.
Communicator connect_fake(int rank, int size, int ranks_per_host = 0);

}  // namespace zero::dist
