#include "08b.hpp"

using exercise_08b::Attention;

Attention part_of(const Attention& whole, int rank, int ranks) { return {}; }
