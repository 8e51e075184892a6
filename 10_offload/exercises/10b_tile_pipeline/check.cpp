// Plays the disk: keeps the list of calls, and looks at it whenever a tile is updated.

#include <grading/check.hpp>

#include "10b.hpp"

namespace exercise_10b {

using zero::exercise::refuse;

constexpr std::int64_t kMost = 128;

class Calls final : public Shard {
 public:
  explicit Calls(std::int64_t elements)
      : elements_(elements), read_(tiles()), updated_(tiles()), written_(tiles()) {}

  std::int64_t elements() const override { return elements_; }
  std::int64_t most_count() const override { return kMost; }

  Handle start_read(int buffer, const Tile& tile) override {
    Buffer& into = at(buffer);
    const int number = number_of(tile, "read");
    if (read_[number]) refuse("tile {} is read twice", number);
    if (number > 0 && updated_[number - 1]) {
      refuse("tile {} is not being read while tile {} is updated", number, number - 1);
    }
    read_[number] = true;
    if (into.state == State::kRead) {
      refuse(
          "tile {} is read into buffer {}, in which tile {} has not been updated yet: two tiles in "
          "turn need both buffers",
          number, buffer, into.tile);
    }
    if (into.state == State::kUpdated) into.overwritten = into.tile;
    into.tile = number;
    into.state = State::kRead;
    into.read = ++last_;
    return last_;
  }

  Handle start_write(int buffer, const Tile& tile) override {
    Buffer& from = at(buffer);
    const int number = number_of(tile, "written");
    if (from.overwritten == number) {
      refuse(
          "tile {} is written from buffer {} after the read of tile {} into it was started, which "
          "comes first: its new moments are lost",
          number, buffer, from.tile);
    }
    if (from.tile != number || from.state != State::kUpdated) {
      refuse("tile {} is written from buffer {}, in which it was not updated", number, buffer);
    }
    from.state = State::kWritten;
    written_[number] = ++last_;
    return last_;
  }

  void wait(Handle handle) override {
    if (handle < 1 || handle > last_) refuse("{} is waited for, which is no handle", handle);
    ended_ = std::max(ended_, handle);  // the disk works in order
  }

  void update(int buffer, const Tile& tile) override {
    const Buffer& in = at(buffer);
    const int number = number_of(tile, "updated");
    if (in.tile != number || in.state != State::kRead) {
      refuse("tile {} is updated in buffer {}, and {}", number, buffer,
             in.tile != number ? "its moments were not read into that" : "it was updated before");
    }
    if (ended_ < in.read) refuse("tile {} is updated before its read has ended", number);
    const auto verify_hidden = [&](const char* what, int other, Handle handle) {
      if (handle == 0 || ended_ < handle) return;
      refuse("the {} of tile {} was waited for before tile {} is updated: nothing hides it", what,
             other, number);
    };
    if (number > 0) verify_hidden("write", number - 1, written_[number - 1]);
    const Buffer& next = buffers_[1 - buffer];
    if (next.tile == number + 1) verify_hidden("read", number + 1, next.read);
    at(buffer).state = State::kUpdated;
    updated_[number] = true;
  }

  void check_end() const {
    for (int number = 0; number < tiles(); ++number) {
      if (!updated_[number]) {
        const std::int64_t end = std::min(elements_, (number + 1) * kMost);
        refuse("elements {} to {} are not updated{}", number * kMost, end - 1,
               end % kMost == 0 ? "" : ": the last tile is shorter");
      }
      if (written_[number] == 0) {
        refuse("tile {} is updated and never written: its new moments are lost", number);
      }
    }
    if (ended_ < last_) {
      refuse("the function returns while the disk still works: wait for the last writes");
    }
  }

 private:
  enum class State { kNothing, kRead, kUpdated, kWritten };
  struct Buffer {
    int tile = -1;
    State state = State::kNothing;  // the last call with this buffer
    Handle read = 0;
    int overwritten = -1;  // a tile that was updated here and is not written
  };

  int tiles() const { return static_cast<int>((elements_ + kMost - 1) / kMost); }

  Buffer& at(int buffer) {
    if (buffer == 0 || buffer == 1) return buffers_[buffer];
    refuse("there is no buffer {}", buffer);
  }

  // Tiles are numbered from 0.
  int number_of(const Tile& tile, const char* what) const {
    const std::int64_t end = tile.begin + tile.count;
    const std::string text = fmt::format("elements {} to {} are {}", tile.begin, end - 1, what);
    if (tile.begin < 0 || tile.count < 1) refuse("{}, which is no tile", text);
    if (end > elements_) {
      refuse("{}, and the shard has {}: the last tile is shorter", text, elements_);
    }
    if (tile.begin % kMost != 0 || (tile.count < kMost && end < elements_) || tile.count > kMost) {
      refuse("{}: a tile has {} elements, only the last one fewer", text, kMost);
    }
    return static_cast<int>(tile.begin / kMost);
  }

  std::int64_t elements_;
  Buffer buffers_[2];
  std::vector<bool> read_, updated_;  // by tile
  std::vector<Handle> written_;       // by tile; 0 before its write is started
  Handle last_ = 0, ended_ = 0;
};

void check(const Answer& answer) {
  for (const std::int64_t elements : {256, 1000, 129, 128, 5, 0}) {
    zero::exercise::in_case(fmt::format("a shard of {} elements in tiles of {}", elements, kMost),
                            [&] {
                              Calls calls(elements);
                              answer.update_shard(calls);
                              calls.check_end();
                            });
  }
}

}  // namespace exercise_10b
