#include "zero/train/narrate.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "zero/memory/storage.hpp"

namespace zero::train {
namespace {

std::string letters(const Strategy& strategy, const std::function<bool(std::size_t)>& holds) {
  std::string text;
  for (std::size_t i = 0; i < strategy.list().size(); ++i) {
    const nn::Parameter& p = strategy.list().parameters[i];
    text += fmt::format(" {}", holds(i) ? std::string(static_cast<std::size_t>(p.numel()),
                                                      static_cast<char>('a' + i))
                                        : std::string(static_cast<std::size_t>(p.numel()), '.'));
  }
  return text;
}

// Who holds what now: a letter for each element of each parameter, a dot where there is nothing.
std::string holdings(Strategy& strategy) {
  const nn::ParameterList& list = strategy.list();
  return fmt::format(
      "parameters{}   gradients{}   moments{}",
      letters(strategy,
              [&](std::size_t i) { return memory::has_storage(list.parameters[i].tensor); }),
      letters(strategy, [&](std::size_t i) { return list.parameters[i].tensor.grad().defined(); }),
      letters(strategy, [&](std::size_t i) {
        return !strategy.optimizer().state(list.parameters[i].tensor).empty();
      }));
}

}  // namespace

void print_by_rank(dist::Communicator& communicator, const std::string& title,
                   const std::string& line) {
  const std::vector<std::string> lines = communicator.exchange(line);
  if (communicator.rank() != 0) return;
  fmt::print("{}\n", title);
  for (std::size_t rank = 0; rank < lines.size(); ++rank)
    fmt::print("  rank {}  {}\n", rank, lines[rank]);
  std::fflush(stdout);
}

void narrate(Strategy& strategy, const data::Batch& batch) {
  dist::Communicator& communicator = strategy.communicator();
  if (communicator.rank() == 0) {
    fmt::print("{} parameters in {} tensors:", strategy.list().numel(), strategy.list().size());
    for (std::size_t i = 0; i < strategy.list().size(); ++i) {
      fmt::print(" {}={}", static_cast<char>('a' + i), strategy.list().parameters[i].name);
    }
    fmt::print("\n\n");
  }
  const auto tell = [&](const std::string& when) {
    print_by_rank(communicator, when, holdings(strategy));
  };
  tell("at the start");
  for (int s = 1; s <= 2; ++s) {
    strategy.zero_grad();
    const dist::Traffic before = communicator.traffic();
    const at::Tensor loss = strategy.forward(batch);
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

}  // namespace zero::train
