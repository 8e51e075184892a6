// What small programs and answers to exercises include in any case.
#pragma once

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <zero/distributed/launch.hpp>
#include <zero/memory/accounting.hpp>
