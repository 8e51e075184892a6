// Compares the numbers with the formula, and the formula with a pipeline on a clock.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <grading/check.hpp>

namespace exercise_10d {

using zero::exercise::Mistake;
using zero::exercise::Numbers;

constexpr double kParameters = 2e9, kRanks = 4, kGb = 1e9;
constexpr double kDisk = 2e9;                                 // bytes a second
constexpr double kForward = 2, kBackward = 4, kUpdate = 0.5;  // seconds
constexpr double kPasses = kForward + kBackward, kRounding = 5e-3;

// Seconds in which a disk moves what `ranks` ranks read and write, `bytes` for a parameter and way.
double disk_seconds(double bytes, double ranks) {
  return 2 * bytes * kParameters / kRanks * ranks / kDisk;
}

// A shard that is updated tile by tile while the disk reads the next tile and writes the one
// before.
double on_clock(double update, double disk, int tiles) {
  double rank_free = 0, disk_free = disk / tiles / 2;  // the first read
  double read = disk_free, written = 0;                // of this tile, of the one before
  for (int t = 0; t < tiles; ++t) {
    const double begin = std::max(rank_free, read);
    if (t + 1 < tiles) {
      disk_free = read = std::max({disk_free, written}) + disk / tiles / 2;
    }
    rank_free = begin + update / tiles;
    disk_free = written = std::max(disk_free, rank_free) + disk / tiles / 2;
  }
  return disk_free;
}

void check_formula() {
  for (const double disk : {4.0, 16.0, 0.1}) {
    const double formula = std::max(kUpdate, disk), clock = on_clock(kUpdate, disk, 1000);
    if (std::abs(clock - formula) <= 0.005 * formula) continue;
    throw Mistake(fmt::format("the pipeline on a clock takes {} s and not {}", clock, formula));
  }
}

void check(const Numbers& numbers) {
  check_formula();
  const double file = 8 * kParameters / kRanks / kGb;
  numbers.expect("file_gb", file,
                 {{file / 2, "has one moment: AdamW has two of 4 bytes"},
                  {file * kRanks, "is the file of all ranks together"},
                  {1.5 * file, "has master weights: all is float32 already"}},
                 kRounding);
  numbers.expect("disk_gb", 2 * file,
                 {{file, "is one way: moments are read and written"},
                  {2 * file * kRanks, "is what all ranks move"}},
                 kRounding);
  const double own = disk_seconds(8, 1), all = disk_seconds(8, kRanks);
  numbers.expect("apart_s", kPasses + kUpdate + own,
                 {{kPasses + own, "is that of the pipeline: here nothing hides the update"},
                  {kPasses + kUpdate + own / 2, "moves the bytes one way"}},
                 kRounding);
  numbers.expect("step_s", kPasses + std::max(kUpdate, own),
                 {{kPasses + kUpdate + own, "adds the update: the disk works at the same time"},
                  {std::max(kPasses + kUpdate, own),
                   "hides the disk behind forward and backward, in which it has nothing to do"},
                  {kPasses + kUpdate, "leaves the disk out, which takes longer than the update"},
                  {kPasses + own / 2, "moves the bytes one way"}},
                 kRounding);
  const double backward = kForward + std::max(kBackward + kUpdate, own);
  numbers.expect("backward_s", backward,
                 {{kPasses + std::max(kUpdate, own), "is step_s: here backward hides the disk too"},
                  {kPasses, "leaves the update out, in which the rank computes"},
                  {backward + own, "adds the disk, which backward hides"}},
                 kRounding);
  numbers.expect("shared_s", kPasses + all,
                 {{kPasses + own, "has the bytes of one rank: the disk moves those of four"},
                  {kPasses + own / kRanks, "divides by the ranks: together they move more"},
                  {kPasses + all + kUpdate, "adds the update: the disk works at the same time"}},
                 kRounding);
  numbers.expect("bf16_s", kPasses + all / 2,
                 {{(kPasses + all) / 2, "halves forward and backward as well"},
                  {kPasses + own / 2, "has the bytes of one rank"}},
                 kRounding);
  numbers.expect("masters_s", kPasses + disk_seconds(12, 1),
                 {{kPasses + disk_seconds(4, 1), "has the master weights alone"},
                  {kPasses + own, "is without master weights: 4 bytes more for a parameter"},
                  {kPasses + all * 1.5, "is for a disk that four ranks share"}},
                 kRounding);
  int hosts = 1;
  while (kPasses + std::max(kUpdate / hosts, all / hosts) >= 10) ++hosts;
  numbers.expect(
      "hosts", hosts,
      {{hosts - 1, "takes exactly 10 s, and less is asked"}, {1, "has one disk for all bytes"}});
}

}  // namespace exercise_10d
