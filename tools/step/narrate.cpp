#include "narrate.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <zero/memory/storage.hpp>

namespace zero::step {
namespace {

// The elements of a tensor that are held: those from `begin` on.
struct Range {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

Range range_of(const train::ParameterShard& piece) {
  return piece.tensor.defined() ? Range{piece.begin, piece.tensor.numel()} : Range{};
}

Range parameter_held(const train::Strategy& strategy, std::size_t i) {
  const nn::Parameter& p = strategy.list().parameters[i];
  return memory::has_storage(p.tensor) ? Range{0, p.numel()} : range_of(strategy.placement(i).kept);
}

Range gradient_held(const train::Strategy& strategy, std::size_t i) {
  const nn::Parameter& p = strategy.list().parameters[i];
  if (p.tensor.grad().defined()) return {0, p.numel()};
  const train::ParameterShard mine = strategy.placement(i).updated;
  return mine.tensor.defined() && mine.tensor.grad().defined() ? range_of(mine) : Range{};
}

// An optimizer knows the model's own tensor, or this rank's piece of it.
Range moments_held(train::Strategy& strategy, std::size_t i) {
  const nn::Parameter& p = strategy.list().parameters[i];
  if (!strategy.optimizer().state(p.tensor).empty()) return {0, p.numel()};
  const train::ParameterShard mine = strategy.placement(i).updated;
  const bool known = mine.tensor.defined() && !strategy.optimizer().state(mine.tensor).empty();
  return known ? range_of(mine) : Range{};
}

std::string letters(const train::Strategy& strategy, std::int64_t a_letter,
                    const std::function<Range(std::size_t)>& held) {
  std::string text;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const Range run = held(i);
    text += ' ';
    for (std::int64_t e = 0; e < strategy.list().parameters[i].numel(); e += a_letter) {
      const bool some = e + a_letter > run.begin && e < run.begin + run.size;
      text += some ? static_cast<char>('a' + i) : '.';
    }
  }
  return text;
}

// What the lines of the ranks mean, before the first of them.
std::string narration_legend(const train::Strategy& strategy, std::int64_t a_letter) {
  std::string tensors;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    tensors +=
        fmt::format(" {}={}", static_cast<char>('a' + i), strategy.list().parameters[i].name);
  }
  const std::string piece =
      a_letter > 1 ? fmt::format("{} elements (or what is left)", a_letter) : "one element";
  return fmt::format(
      "{} parameters in {} tensors:{}\n"
      "A letter stands for {} of that tensor, held by the rank, a dot for what is not held.\n"
      "Moments are the optimizer's two numbers for every parameter; its first step makes them.\n"
      "The reduction makes gradients means over the ranks; sync_parameters brings each rank those\n"
      "updated parameters of others that it keeps. Bytes are what the rank itself sent.\n\n",
      strategy.list().numel(), strategy.list().size(), tensors, piece);
}

}  // namespace

std::string holdings(train::Strategy& strategy, std::int64_t a_letter) {
  return fmt::format(
      "parameters{}   gradients{}   moments{}",
      letters(strategy, a_letter, [&](std::size_t i) { return parameter_held(strategy, i); }),
      letters(strategy, a_letter, [&](std::size_t i) { return gradient_held(strategy, i); }),
      letters(strategy, a_letter, [&](std::size_t i) { return moments_held(strategy, i); }));
}

void print_by_rank(dist::Communicator& communicator, const std::string& title,
                   const std::string& line) {
  const std::vector<std::string> lines = communicator.exchange(line);
  if (communicator.rank() != 0) return;
  fmt::print("{}\n", title);
  for (std::size_t rank = 0; rank < lines.size(); ++rank)
    fmt::print("  rank {}  {}\n", rank, lines[rank]);
  std::fflush(stdout);
}

void narrate(train::Strategy& strategy, const std::function<at::Tensor()>& pass,
             std::int64_t a_letter) {
  dist::Communicator& communicator = strategy.communicator();
  if (communicator.rank() == 0) fmt::print("{}", narration_legend(strategy, a_letter));
  const auto tell = [&](const std::string& when) {
    print_by_rank(communicator, when, holdings(strategy, a_letter));
  };
  tell("at the start");
  for (int s = 1; s <= 2; ++s) {
    strategy.zero_grad();
    const dist::Traffic before = communicator.traffic();
    const at::Tensor loss = strategy.forward(pass);
    tell(fmt::format("step {}: after forward", s));
    strategy.backward(loss);
    strategy.finish_backward();
    tell(fmt::format("step {}: after backward and the reduction of gradients", s));
    strategy.optimizer_step();
    strategy.sync_parameters();
    tell(fmt::format("step {}: after the optimizer and sync_parameters", s));
    const dist::Traffic sent = communicator.traffic().since(before);
    print_by_rank(communicator, fmt::format("step {}: sent", s),
                  fmt::format("{} bytes of gradients, {} bytes of parameters, loss {:.6f}",
                              sent.bytes(dist::Purpose::kGradient),
                              sent.bytes(dist::Purpose::kParameter), loss.item<double>()));
  }
}

}  // namespace zero::step
