#include "07c.hpp"

using exercise_07c::dequantize;
using exercise_07c::Mesh;
using exercise_07c::quantize;
using exercise_07c::Quantized;

at::Tensor average(Mesh mesh, const at::Tensor& gradient) { return {}; }
