#include "progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace zero::ladder {
namespace {

constexpr std::int64_t kBarWidth = 24;
// Quick loops would otherwise spend their time on drawing.
constexpr std::chrono::milliseconds kBetweenDrawings{50};

std::size_t terminal_width(std::FILE* out) {
  winsize size{};
  const bool known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 120;
}

}  // namespace

Progress::Progress(std::string label, std::int64_t steps, ProgressOptions options)
    : label_(std::move(label)),
      steps_(steps),
      options_(options),
      bar_(options.bar.value_or(::isatty(::fileno(options.out)) == 1)),
      done_(options.done_before) {}

Progress::~Progress() { finish(); }

void Progress::step(const Fields& fields) {
  ++done_;
  if (options_.silent || steps_ <= options_.done_before) return;
  std::string text = fmt::format("{}/{}", done_, steps_);
  for (const auto& [name, value] : fields) text += fmt::format("  {} {}", name, value);
  if (bar_) {
    draw_bar(text);
    return;
  }
  const std::int64_t tenths = (done_ - options_.done_before) * 10 / (steps_ - options_.done_before);
  if (tenths == tenths_shown_) return;
  tenths_shown_ = tenths;
  std::fputs(fmt::format("{}  {}\n", label_, text).c_str(), options_.out);
  std::fflush(options_.out);
}

void Progress::finish() {
  if (!line_open_) return;
  std::fputs("\n", options_.out);
  std::fflush(options_.out);
  line_open_ = false;
}

void Progress::draw_bar(const std::string& counts_and_fields) {
  const auto now = std::chrono::steady_clock::now();
  if (line_open_ && done_ < steps_ && now - drawn_ < kBetweenDrawings) return;
  drawn_ = now;
  line_open_ = true;
  const std::int64_t filled = std::min(kBarWidth, kBarWidth * done_ / steps_);
  std::string line = fmt::format("{}  [{:#<{}}{:.<{}}]  {}", label_, "", filled, "",
                                 kBarWidth - filled, counts_and_fields);
  if (done_ < steps_) line += fmt::format("  left {}", time_left());
  // A line as wide as the terminal would wrap, and could not be redrawn in place.
  line.resize(std::min(line.size(), terminal_width(options_.out) - 1));
  std::fputs(fmt::format("\r{}\x1b[K", line).c_str(), options_.out);
  std::fflush(options_.out);
}

std::string Progress::time_left() const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started_;
  const auto left = static_cast<std::int64_t>(
      elapsed.count() / static_cast<double>(done_ - options_.done_before) *
          static_cast<double>(steps_ - done_) +
      0.5);
  if (left >= 3600) return fmt::format("{}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60);
  return fmt::format("{}:{:02}", left / 60, left % 60);
}

}  // namespace zero::ladder
