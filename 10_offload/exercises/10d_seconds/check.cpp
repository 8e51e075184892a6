// Compares the numbers with the formula, and its bytes with those that an optimizer moves.

#include <algorithm>
#include <filesystem>

#include <10_offload/offloaded.hpp>
#include <grading/check.hpp>
#include <zero/optim/adamw.hpp>

namespace exercise_10d {

using zero::exercise::Numbers;
using zero::exercise::refuse;

constexpr double kParameters = 2e9, kRanks = 4, kGb = 1e9;
constexpr double kDisk = 2e9;                                 // bytes a second
constexpr double kForward = 2, kBackward = 4, kUpdate = 0.5;  // seconds
constexpr double kPasses = kForward + kBackward;

// Seconds in which a disk moves what `ranks` ranks read and write, `bytes` for a parameter and way.
double disk_seconds(double bytes, double ranks) {
  return 2 * bytes * kParameters / kRanks * ranks / kDisk;
}

// The second step of an AdamW whose moments are in a file reads and writes 8 bytes a parameter.
void check_formula() {
  constexpr std::int64_t kElements = 1 << 16;
  const at::Tensor parameter = at::ones({kElements});
  parameter.mutable_grad() = at::ones({kElements});
  const auto optimizer = zero::optim::with_offload(
      zero::optim::adamw(),
      {.folder = std::filesystem::temp_directory_path(), .says_how = false})({parameter});
  for (int step = 0; step < 2; ++step) optimizer->step();
  const zero::optim::OffloadTraffic moved = optimizer->offload_traffic();
  if (moved.read_bytes == 8 * kElements && moved.written_bytes == 2 * 8 * kElements) return;
  refuse("a file has {} bytes read and {} written", moved.read_bytes, moved.written_bytes);
}

void check(const Numbers& numbers) {
  check_formula();
  const auto expect = [&](const char* key, double right, const std::vector<Numbers::Known>& known) {
    numbers.expect(key, right, known, /*tolerance=*/5e-3);
  };
  const double file = 8 * kParameters / kRanks / kGb;
  expect("file_gb", file,
         {{file / 2, "has one moment: AdamW has two of 4 bytes"},
          {file * kRanks, "is the file of all ranks together"},
          {1.5 * file, "has master weights: all is float32 already"}});
  expect("disk_gb", 2 * file,
         {{file, "is one way: moments are read and written"},
          {2 * file * kRanks, "is what all ranks move"}});
  const double own = disk_seconds(8, 1), all = disk_seconds(8, kRanks);
  expect("apart_s", kPasses + kUpdate + own,
         {{kPasses + own, "is that of the pipeline: here nothing hides the update"},
          {kPasses + kUpdate + own / 2, "moves the bytes one way"}});
  expect("step_s", kPasses + std::max(kUpdate, own),
         {{kPasses + kUpdate + own, "adds the update: the disk works at the same time"},
          {std::max(kPasses + kUpdate, own),
           "hides the disk behind forward and backward, in which it has nothing to do"},
          {kPasses + kUpdate, "leaves the disk out, which takes longer than the update"},
          {kPasses + own / 2, "moves the bytes one way"}});
  const double backward = kForward + std::max(kBackward + kUpdate, own);
  expect("backward_s", backward,
         {{kPasses + std::max(kUpdate, own), "is step_s: here backward hides the disk too"},
          {kPasses, "leaves the update out, in which the rank computes"},
          {backward + own, "adds the disk, which backward hides"}});
  expect("shared_s", kPasses + all,
         {{kPasses + own, "has the bytes of one rank: the disk moves those of four"},
          {kPasses + own / kRanks, "divides by the ranks: together they move more"},
          {kPasses + all + kUpdate, "adds the update: the disk works at the same time"}});
  expect("bf16_s", kPasses + all / 2,
         {{(kPasses + all) / 2, "halves forward and backward as well"},
          {kPasses + own / 2, "has the bytes of one rank"}});
  expect("masters_s", kPasses + disk_seconds(12, 1),
         {{kPasses + disk_seconds(4, 1), "has the master weights alone"},
          {kPasses + own, "is without master weights: 4 bytes more for a parameter"},
          {kPasses + all * 1.5, "is for a disk that four ranks share"}});
  int hosts = 1;
  while (kPasses + std::max(kUpdate / hosts, all / hosts) >= 10) ++hosts;
  numbers.expect(
      "hosts", hosts,
      {{hosts - 1, "takes exactly 10 s, and less is asked"}, {1, "has one disk for all bytes"}});
}

}  // namespace exercise_10d
