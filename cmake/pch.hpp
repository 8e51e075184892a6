// What nearly every file of the project includes, compiled once (about 20 s) and shared by all.
#pragma once

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
