// The planner: what a model needs under each stage, by formula, and which stage to take. Trains
// nothing and allocates nothing.

#include <iostream>

#include <zero/base/program.hpp>

#include "program.hpp"

int main(int argc, char** argv) {
  return zero::run_program("plan", [&] {
    const zero::plan::Plan plan = make_plan(zero::plan::read_options(argc, argv));
    std::cout << to_text(plan);
    return plan.feasible() ? 0 : 3;
  });
}
