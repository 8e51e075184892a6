#include "08a.hpp"

using exercise_08a::Attention;

Attention part_of(const Attention& whole, int rank, int ranks) { return {}; }
