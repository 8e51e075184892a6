#pragma once

#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <thread>

#include <grading/check.hpp>
#include <zero/distributed/backend.hpp>

/// What names a deadlock at once.
namespace exercise_00b {

inline constexpr int kMostRanks = 5;

/// What all ranks have started and wait for, in memory that they share. Zeros at the beginning.
struct Board {
  /// Messages so far, by source and destination.
  struct Pairs {
    std::array<std::array<std::atomic<int>, kMostRanks>, kMostRanks> of;
  };
  /// Eight bytes, so that it is read and written at once.
  struct Waiting {
    enum Kind : std::int16_t { kNothing, kSend, kRecv, kEnd };
    Kind kind = kNothing;
    std::int16_t peer = 0;
    int number = 0;  ///< of the message, among those of the pair
    bool operator==(const Waiting&) const = default;
  };
  Pairs sent, received;  // started, not yet complete
  std::array<std::atomic<Waiting>, kMostRanks> waiting;

  /// True if the other side of what `rank` waits for has been started.
  bool is_met(int rank, const Waiting& w) const {
    if (w.kind == Waiting::kSend) return received.of[rank][w.peer] >= w.number;
    if (w.kind == Waiting::kRecv) return sent.of[w.peer][rank] >= w.number;
    return w.kind == Waiting::kNothing;
  }

  /// What every rank waits for, if none of it has been started; else nothing.
  std::vector<Waiting> stuck(int ranks) const {
    std::vector<Waiting> all;
    for (int rank = 0; rank < ranks; ++rank) {
      all.push_back(waiting[rank]);
      if (is_met(rank, all.back())) return {};
    }
    return all;
  }
};

/// Before the fork, so that the ranks share it.
inline Board* new_board() {
  void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
  return new (memory) Board();
}

inline std::string describe(const std::vector<Board::Waiting>& all) {
  std::string text;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto& [kind, peer, number] = all[rank];
    text += fmt::format("{}rank {} ", rank == 0 ? "" : ", ", rank);
    if (kind == Board::Waiting::kEnd) text += "has returned";
    if (kind == Board::Waiting::kSend) text += fmt::format("until rank {} receives", peer);
    if (kind == Board::Waiting::kRecv) text += fmt::format("for a message of rank {}", peer);
  }
  return "a deadlock: every rank waits, " + text;
}

/// While it lives, a communicator sends and receives messages alone: for one call of an answer.
/// Made by all ranks, and a rank whose Watched is gone has returned.
class Watched {
 public:
  Watched(zero::dist::Communicator& communicator, Board& board)
      : communicator_(communicator), board_(board), rank_(communicator.rank()) {
    set({});
    communicator_.barrier();  // no rank may still look as if it had ended
    if (communicator_.size() == 1) return;
    inner_ = communicator_.replace_backend(std::make_unique<MessagesOnly>(*this));
  }
  ~Watched() {
    if (inner_ != nullptr) communicator_.replace_backend(std::move(inner_));
    if (!is_stuck_) set({Board::Waiting::kEnd, 0, 0});  // else the others see the same deadlock
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  using Call = zero::dist::Call;
  using Tensor = at::Tensor;

  class MessagesOnly final : public zero::dist::Backend {
   public:
    explicit MessagesOnly(Watched& self) : self_(self) {}
    std::string transport() const override { return self_.inner_->transport(); }
    WorkPtr start(const Call& call, Tensor output, Tensor input) override {
      const bool sends = call.operation == zero::dist::Operation::kSend;
      if (!sends && call.operation != zero::dist::Operation::kRecv) {
        throw zero::exercise::Mistake(fmt::format("{} is called: send and recv are enough",
                                                  zero::dist::name(call.operation)));
      }
      WorkPtr work = self_.inner_->start(call, output, input);
      Board::Waiting waiting{sends ? Board::Waiting::kSend : Board::Waiting::kRecv,
                             static_cast<std::int16_t>(call.root)};
      Board& board = self_.board_;
      waiting.number = ++(sends ? board.sent.of[self_.rank_][call.root]
                                : board.received.of[call.root][self_.rank_]);
      return std::make_unique<Watch>(self_, std::move(work), waiting);
    }

   private:
    Watched& self_;
  };

  class Watch final : public zero::dist::Work::Pending {
   public:
    Watch(Watched& self, zero::dist::Backend::WorkPtr work, Board::Waiting waiting)
        : self_(self), work_(std::move(work)), waiting_(waiting) {}
    void wait() override {
      self_.wait_for(waiting_);
      work_->wait();
    }

   private:
    Watched& self_;
    zero::dist::Backend::WorkPtr work_;
    Board::Waiting waiting_;
  };

  // Returns once the other side has been started. Ranks that are stuck the same way twice were all
  // stuck between the two looks.
  void wait_for(const Board::Waiting& waiting) {
    set(waiting);
    while (!board_.is_met(rank_, waiting)) {
      const auto stuck = board_.stuck(communicator_.size());
      if (!stuck.empty() && stuck == board_.stuck(communicator_.size())) {
        is_stuck_ = true;
        throw zero::exercise::Mistake(describe(stuck));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    set({});
  }
  void set(const Board::Waiting& waiting) { board_.waiting[rank_] = waiting; }

  zero::dist::Communicator& communicator_;
  Board& board_;
  int rank_;
  std::unique_ptr<zero::dist::Backend> inner_;
  bool is_stuck_ = false;
};

}  // namespace exercise_00b
