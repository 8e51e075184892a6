#include "01c.hpp"

using zero::dist::Purpose;
using zero::dist::ReduceOp;
using zero::train::Strategy;

float clip_grad_norm(Strategy& strategy, double max_norm) { return 0; }
