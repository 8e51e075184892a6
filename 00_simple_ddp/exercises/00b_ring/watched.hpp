#pragma once

#include <fmt/format.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <thread>

#include <tools/exercise/check.hpp>

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

/// Another communicator for one call of an answer: send() and recv() alone. Made by all ranks, and
/// a rank whose Watched is gone has returned.
class Watched final : public zero::dist::Communicator {
 public:
  Watched(zero::dist::Communicator& inner, Board& board)
      : Communicator(inner.rank(), inner.size(), inner.order(), /*check_collectives=*/false),
        inner_(inner),
        board_(board) {
    set({});
    inner_.barrier();  // no rank may still look as if it had ended
  }
  ~Watched() override {
    if (!is_stuck_) set({Board::Waiting::kEnd, 0, 0});  // else the others see the same deadlock
  }

  std::string transport() const override { return inner_.transport(); }
  std::vector<std::string> exchange(const std::string&) override { refuse("exchange"); }

 private:
  using Tensor = at::Tensor;

  std::unique_ptr<Communicator> do_split(const std::vector<int>&, const std::string&) override {
    refuse("split");
  }
  WorkPtr do_broadcast(const Call&, Tensor, int) override { refuse("broadcast"); }
  WorkPtr do_reduce(const Call&, Tensor, int, int) override { refuse("reduce"); }
  WorkPtr do_all_reduce(const Call&, Tensor, int) override { refuse("all_reduce"); }
  WorkPtr do_reduce_scatter(const Call&, Tensor, Tensor, int) override { refuse("reduce_scatter"); }
  WorkPtr do_all_gather(const Call&, Tensor, Tensor) override { refuse("all_gather"); }
  WorkPtr do_all_to_all(const Call&, Tensor, Tensor) override { refuse("all_to_all"); }
  WorkPtr do_message(const Call& call, Tensor tensor, int peer) override {
    const bool sends = call.operation == zero::dist::Operation::kSend;
    auto work = sends ? inner_.send(std::move(tensor), peer, call.purpose)
                      : inner_.recv(std::move(tensor), peer, call.purpose);
    Board::Waiting waiting{sends ? Board::Waiting::kSend : Board::Waiting::kRecv,
                           static_cast<std::int16_t>(peer)};
    waiting.number = ++(sends ? board_.sent.of[rank()][peer] : board_.received.of[peer][rank()]);
    return std::make_unique<Watch>(*this, std::move(work), waiting);
  }

  class Watch final : public zero::dist::Work::Backend {
   public:
    Watch(Watched& self, zero::dist::Work work, Board::Waiting waiting)
        : self_(self), work_(std::move(work)), waiting_(waiting) {}
    void wait() override {
      self_.wait_for(waiting_);
      work_.wait();
    }

   private:
    Watched& self_;
    zero::dist::Work work_;
    Board::Waiting waiting_;
  };

  // Returns once the other side has been started. Ranks that are stuck the same way twice were all
  // stuck between the two looks.
  void wait_for(const Board::Waiting& waiting) {
    set(waiting);
    while (!board_.is_met(rank(), waiting)) {
      const auto stuck = board_.stuck(size());
      if (!stuck.empty() && stuck == board_.stuck(size())) {
        is_stuck_ = true;
        throw zero::exercise::Mistake(describe(stuck));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    set({});
  }
  void set(const Board::Waiting& waiting) { board_.waiting[rank()] = waiting; }

  [[noreturn]] static void refuse(const char* name) {
    throw zero::exercise::Mistake(fmt::format("{} is called: send and recv are enough", name));
  }

  zero::dist::Communicator& inner_;
  Board& board_;
  bool is_stuck_ = false;
};

}  // namespace exercise_00b
