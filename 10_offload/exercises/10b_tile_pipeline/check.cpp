// Plays the disk: keeps the list of calls, and looks at it whenever a tile is updated.

#include <fmt/format.h>

#include <grading/check.hpp>

#include "10b.hpp"

namespace exercise_10b {

using zero::exercise::Mistake;

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
    if (read_[number]) throw Mistake(fmt::format("tile {} is read twice", number));
    if (number > 0 && updated_[number - 1]) {
      throw Mistake(
          fmt::format("tile {} is not being read while tile {} is updated", number, number - 1));
    }
    read_[number] = true;
    if (into.state == State::kRead) {
      throw Mistake(
          fmt::format("tile {} is read into buffer {}, in which tile {} has not been "
                      "updated yet: two tiles in turn need both buffers",
                      number, buffer, into.tile));
    }
    if (into.state == State::kUpdated) into.overwritten = into.tile;
    into.tile = number;
    into.state = State::kRead;
    into.read = next_handle();
    return into.read;
  }

  Handle start_write(int buffer, const Tile& tile) override {
    Buffer& from = at(buffer);
    const int number = number_of(tile, "written");
    if (from.overwritten == number) {
      throw Mistake(
          fmt::format("tile {} is written from buffer {} after the read of tile {} into it "
                      "was started, which comes first: its new moments are lost",
                      number, buffer, from.tile));
    }
    if (from.tile != number || from.state != State::kUpdated) {
      throw Mistake(fmt::format("tile {} is written from buffer {}, in which it was not updated",
                                number, buffer));
    }
    from.state = State::kWritten;
    written_[number] = next_handle();
    return written_[number];
  }

  void wait(Handle handle) override {
    if (handle < 1 || handle > last_) {
      throw Mistake(fmt::format("{} is waited for, which is no handle", handle));
    }
    ended_ = std::max(ended_, handle);  // the disk works in order
  }

  void update(int buffer, const Tile& tile) override {
    const Buffer& in = at(buffer);
    const int number = number_of(tile, "updated");
    if (in.tile != number || in.state != State::kRead) {
      throw Mistake(fmt::format(
          "tile {} is updated in buffer {}, and {}", number, buffer,
          in.tile != number ? "its moments were not read into that" : "it was updated before"));
    }
    if (ended_ < in.read) {
      throw Mistake(fmt::format("tile {} is updated before its read has ended", number));
    }
    if (number > 0 && written_[number - 1] > 0 && ended_ >= written_[number - 1]) {
      throw Mistake(
          fmt::format("the write of tile {} was waited for before tile {} is updated: "
                      "nothing hides it",
                      number - 1, number));
    }
    const Buffer& other = buffers_[1 - buffer];
    if (other.tile == number + 1 && ended_ >= other.read) {
      throw Mistake(
          fmt::format("the read of tile {} was waited for before tile {} is updated: "
                      "nothing hides it",
                      number + 1, number));
    }
    at(buffer).state = State::kUpdated;
    updated_[number] = true;
  }

  void check_end() const {
    for (int number = 0; number < tiles(); ++number) {
      if (!updated_[number]) {
        const std::int64_t end = std::min(elements_, (number + 1) * kMost);
        throw Mistake(fmt::format("elements {} to {} are not updated{}", number * kMost, end - 1,
                                  end % kMost == 0 ? "" : ": the last tile is shorter"));
      }
      if (written_[number] == 0) {
        throw Mistake(
            fmt::format("tile {} is updated and never written: its new moments are lost", number));
      }
    }
    if (ended_ < last_) {
      throw Mistake("the function returns while the disk still works: wait for the last writes");
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
  Handle next_handle() { return ++last_; }

  Buffer& at(int buffer) {
    if (buffer == 0 || buffer == 1) return buffers_[buffer];
    throw Mistake(fmt::format("there is no buffer {}", buffer));
  }

  // Tiles are numbered from 0.
  int number_of(const Tile& tile, const char* what) const {
    const std::int64_t end = tile.begin + tile.count;
    const std::string text = fmt::format("elements {} to {} are {}", tile.begin, end - 1, what);
    if (tile.begin < 0 || tile.count < 1) throw Mistake(text + ", which is no tile");
    if (end > elements_) {
      throw Mistake(
          fmt::format("{}, and the shard has {}: the last tile is shorter", text, elements_));
    }
    if (tile.begin % kMost != 0 || (tile.count < kMost && end < elements_) || tile.count > kMost) {
      throw Mistake(
          fmt::format("{}: a tile has {} elements, only the last one fewer", text, kMost));
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
    Calls calls(elements);
    try {
      answer.update_shard(calls);
      calls.check_end();
    } catch (const Mistake& mistake) {
      throw Mistake(fmt::format("a shard of {} elements in tiles of {}: {}", elements, kMost,
                                mistake.what()));
    }
  }
}

}  // namespace exercise_10b
