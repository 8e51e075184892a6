#include "progress.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace zero::ladder {

Progress::Progress(std::string label, std::int64_t done, std::int64_t steps, std::FILE* out,
                   bool to_terminal)
    : label_(std::move(label)),
      first_(done),
      done_(done),
      steps_(steps),
      out_(out),
      to_terminal_(to_terminal) {}

Progress::~Progress() {
  if (to_terminal_ && done_ > first_) std::fputs("\n", out_);
}

void Progress::step(const std::string& text) {
  if (label_.empty()) return;
  const auto tenths = [&] { return (done_ - first_) * 10 / (steps_ - first_); };
  const std::int64_t before = tenths();
  ++done_;
  const std::string line = fmt::format("{}  {}/{}  {}", label_, done_, steps_, text);
  if (to_terminal_) {
    const auto left =
        (std::chrono::steady_clock::now() - started_) / (done_ - first_) * (steps_ - done_);
    // The terminal cuts off what is wider than itself: a second line could not be redrawn.
    std::fputs(fmt::format("\r\x1b[?7l{}  left {:%T}\x1b[K\x1b[?7h", line,
                           std::chrono::round<std::chrono::seconds>(left))
                   .c_str(),
               out_);
  } else if (tenths() > before) {
    std::fputs((line + "\n").c_str(), out_);
  }
  std::fflush(out_);
}

}  // namespace zero::ladder
