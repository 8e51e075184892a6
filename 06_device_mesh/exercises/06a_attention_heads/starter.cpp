#include "06a.hpp"

using exercise_06a::Attention;

Attention part_of(const Attention& whole, int rank, int ranks) { return {}; }
