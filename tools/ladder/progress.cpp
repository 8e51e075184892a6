#include "progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace zero::ladder {
namespace {

constexpr std::int64_t kBarWidth = 24;

std::size_t terminal_width(std::FILE* out) {
  winsize size{};
  const bool known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 120;
}

}  // namespace

Progress::Progress(std::string label, std::int64_t done, std::int64_t steps, std::FILE* out,
                   std::optional<bool> bar)
    : label_(std::move(label)),
      done_before_(done),
      done_(done),
      steps_(steps),
      out_(out),
      bar_(bar.value_or(::isatty(::fileno(out)) == 1)) {}

Progress::~Progress() {
  if (line_open_) std::fputs("\n", out_);
}

void Progress::step(const std::string& text) {
  ++done_;
  if (steps_ <= done_before_) return;
  const std::string count_and_text = fmt::format("{}/{}  {}", done_, steps_, text);
  const std::int64_t tenths = (done_ - done_before_) * 10 / (steps_ - done_before_);
  if (bar_) {
    draw_bar(count_and_text);
  } else if (tenths != tenths_shown_) {
    std::fputs(fmt::format("{}  {}\n", label_, count_and_text).c_str(), out_);
  }
  tenths_shown_ = tenths;
  std::fflush(out_);
}

void Progress::draw_bar(const std::string& count_and_text) {
  line_open_ = true;
  const std::int64_t filled = std::min(kBarWidth, kBarWidth * done_ / steps_);
  std::string line = fmt::format("{}  [{:#<{}}{:.<{}}]  {}", label_, "", filled, "",
                                 kBarWidth - filled, count_and_text);
  if (done_ < steps_) line += fmt::format("  left {}", time_left());
  // A line as wide as the terminal would wrap, and could not be redrawn in place.
  line.resize(std::min(line.size(), terminal_width(out_) - 1));
  std::fputs(fmt::format("\r{}\x1b[K", line).c_str(), out_);
}

std::string Progress::time_left() const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started_;
  const auto a_step = elapsed.count() / static_cast<double>(done_ - done_before_);
  const auto left = static_cast<std::int64_t>(a_step * static_cast<double>(steps_ - done_) + 0.5);
  if (left >= 3600) return fmt::format("{}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60);
  return fmt::format("{}:{:02}", left / 60, left % 60);
}

}  // namespace zero::ladder
