// AdamW with its moments on a disk beside AdamW in memory and beside the disk alone, which reads
// and writes the same tiles in the same order. A step cannot be shorter than the longer of the two:
// percent_of_limit says how near it comes. Where fio is installed, its rate is beside that of the
// disk.   ./run bench offload

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <vector>

#include <tests/bench/bench.hpp>
#include <zero/base/error.hpp>
#include <zero/optim/adamw.hpp>

#include "offloaded.hpp"

namespace zero::optim {
namespace {

constexpr std::int64_t kElements = 1'000'000;  // of a tensor
constexpr std::int64_t kBytesOfMoments = 8;    // of an element

struct Settings {
  std::int64_t millions = 64;  // of parameters, a tensor for each
  int steps = 5;
  std::string folder = std::filesystem::temp_directory_path();
  double tile_mib = 16;
};

OffloadOptions offload_options(const Settings& settings) {
  return {.folder = settings.folder,
          .tile_bytes = static_cast<std::int64_t>(settings.tile_mib * (1 << 20))};
}

// Bytes a second that fio moves where it is installed (Debian: fio), with one thread and tiles of
// the same size, half of them read and half written; else 0.
double rate_of_fio(const Settings& settings) {
  if (std::system("command -v fio > /dev/null") != 0) return 0;
  const std::int64_t size = settings.millions * kElements * kBytesOfMoments;
  const std::string command = fmt::format(
      "fio --name=zero-offload-fio --directory='{}' --rw=rw --direct=1 --ioengine=psync --thread "
      "--bs={} --size={} --io_size={} --group_reporting --unlink=1 "
      "--output-format=json",
      settings.folder, offload_options(settings).tile_bytes, size, 2 * size);
  std::string text;
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  for (char part[4096]; pipe != nullptr && std::fgets(part, sizeof part, pipe) != nullptr;) {
    text += part;
  }
  if (pipe == nullptr || ::pclose(pipe) != 0) throw Error("fio failed: " + text);
  const auto job = bench::Json::parse(text.substr(text.find('{')))["jobs"][0];
  return job["read"]["bw_bytes"].get<double>() + job["write"]["bw_bytes"].get<double>();
}

bench::Measured all_three(const Settings& settings) {
  at::set_num_threads(1);
  const std::vector<at::Tensor> ours = bench::random_parameters(settings.millions);
  const std::vector<at::Tensor> theirs = bench::copies(ours);
  const auto resident = adamw()(theirs);
  const auto offloaded = with_offload(adamw(), offload_options(settings))(ours);
  std::vector<double> computing, moving, both;
  // One after the other in each round: a disk that others use changes its rate.
  for (int round = 0; round <= settings.steps; ++round) {
    computing.push_back(bench::seconds_of([&] { resident->step(); }));
    moving.push_back(bench::seconds_of([&] { offloaded->stream_offloaded(); }));
    both.push_back(bench::seconds_of([&] { offloaded->step(); }));
    if (round == 0) computing = moving = both = {};  // it makes the moments
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (!at::equal(ours[i], theirs[i])) {
      throw Error(fmt::format("tensor {} is not what AdamW makes of it in memory", i));
    }
  }
  const double bytes = 2.0 * kBytesOfMoments * kElements * static_cast<double>(settings.millions);
  const double in_memory = bench::median(computing), disk = bench::median(moving);
  const double percent = 100 * std::max(in_memory, disk) / bench::median(both);
  bench::Measured result{std::move(both),
                         {{"in_memory_s", in_memory},
                          {"disk_s", disk},
                          {"disk_gb_per_s", bytes / disk / 1e9},
                          {"percent_of_limit", percent}}};
  if (const double rate = rate_of_fio(settings); rate > 0) {
    result.counters["fio_gb_per_s"] = rate / 1e9;
  }
  return result;
}

int run(int argc, char** argv) {
  Settings settings;
  CLI::App options{"AdamW on one thread, its moments on a disk."};
  bench::number(options, "--millions", settings.millions, "of parameters", 1, 1000);
  bench::number(options, "--steps", settings.steps, "after a first one that is not counted", 1,
                10000);
  options.add_option("--folder", settings.folder, "on the disk")->capture_default_str();
  options.add_option("--tile-mib", settings.tile_mib, "read and written together")
      ->capture_default_str();
  return bench::run(argc, argv, options, [&] {
    bench::add(fmt::format("offload/{}M", settings.millions), [&] { return all_three(settings); });
  });
}

}  // namespace
}  // namespace zero::optim

int main(int argc, char** argv) { return zero::optim::run(argc, argv); }
