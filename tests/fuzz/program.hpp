#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace zero::testing {

/// A training program of the fuzzer: a model, a loop and the modes that run it, as a line of text.
struct Program {
  std::uint64_t seed = 1;  ///< of first values, batches and dropout
  int ranks = 2;
  std::int64_t width = 7;
  std::string parts = "l";  ///< of the model; see fuzz_model.hpp
  /// What the loop does, a letter each; see script.hpp.
  std::string loop = "m";
  std::string dtype = "float";  ///< or "double", "bfloat16"
  std::string optimizer = "sgd";
  int accumulation = 1;    ///< micro-batches of a step
  double clip = 0;         ///< largest norm of the gradient; 0: does not clip
  bool uneven = false;     ///< ranks have batches of different sizes, some of them empty
  bool own = false;        ///< losses are those of the model itself: no forward(), no loss terms
  bool broadcast = false;  ///< EngineConfig::broadcast_buffers
  /// Modes of the registry, some with options: "engine3:lookahead=0:whole_below=60".
  std::vector<std::string> modes = {"engine3"};

  /// {"seed": 1, "parts": "l", …}: everything, for program_of().
  std::string text() const;
};

/// The inverse of text(). Keys may be left out. Throws std::exception for text that is not JSON.
Program program_of(const std::string& text);

/// The program of `seed`, the same on every machine. It runs every stage of the engine, one of
/// `exact_modes`, and the engine with options drawn at random.
Program random_program(std::uint64_t seed, int ranks, const std::vector<std::string>& exact_modes);

/// The smallest program that still fails and is found by leaving out one thing after the other.
/// `first_failing` gets candidates and returns the index of the first that fails, or their number.
Program shrunk(Program program,
               const std::function<std::size_t(const std::vector<Program>&)>& first_failing);

}  // namespace zero::testing
