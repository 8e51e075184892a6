#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include <zero/base/error.hpp>
#include <zero/io/checkpoint_files.hpp>
#include <zero/io/checkpoint_manifest.hpp>

namespace zero::io::checkpoint {
namespace {

constexpr std::int64_t kMostSteps = std::int64_t{1} << 48;  // one a microsecond for nine years
constexpr int kMostRanks = 1 << 20;                         // as many as a launcher may start
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

void expect_between(const std::string& what, std::int64_t value, std::int64_t least,
                    std::int64_t most) {
  if (value >= least && value <= most) return;
  throw Error(fmt::format("{} is {}; it must be from {} to {}", what, value, least, most));
}

void check_shape(const std::string& what, const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    // A size of 0 counts as 1: the others must not overflow either.
    if (size < 0 || __builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements)) {
      throw Error(
          fmt::format("{} has the shape [{}]; sizes are 0 or more, and their product fits "
                      "63 bits",
                      what, fmt::join(shape, ", ")));
    }
  }
}

void check_runs(const SavedParameter& p, const Manifest& manifest) {
  std::int64_t end = 0;
  std::set<int> ranks;  // a rank's file has one tensor of each parameter
  for (const Run& run : p.runs) {
    if (run.range.begin != end || run.range.size < 0 || run.range.size > kMost - end ||
        manifest.file_of(run.rank) == nullptr || !ranks.insert(run.rank).second) {
      throw Error(
          fmt::format("the runs of parameter '{}' leave a gap, have no file, or are two of "
                      "one rank",
                      p.name));
    }
    end += run.range.size;
  }
  if (end != p.elements()) {
    throw Error(fmt::format("the runs of parameter '{}' have {} elements, its shape [{}] has {}",
                            p.name, end, fmt::join(p.shape, ", "), p.elements()));
  }
}

void check_file_name(const std::string& name) {
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) {
    throw Error(fmt::format("'{}' is not the name of a file beside it", name));
  }
}

void check_file(const SavedFile& file, int world_size) {
  check_file_name(file.name);
  expect_between(fmt::format("the rank of file '{}'", file.name), file.rank, 0, world_size - 1);
  const std::string right = rank_file_name(file.rank, world_size);
  if (file.name != right) {
    throw Error(fmt::format("the file of rank {} of {} is called '{}'; it must be '{}'", file.rank,
                            world_size, file.name, right));
  }
  expect_between(fmt::format("the length of file '{}'", file.name), file.bytes, 0, kMost);
  if (file.sha256.size() != 64 ||
      file.sha256.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw Error(fmt::format("the SHA-256 of file '{}' is not 64 hexadecimal digits", file.name));
  }
}

void check_files(const Manifest& manifest) {
  int last = -1;
  for (const SavedFile& file : manifest.files) {
    check_file(file, manifest.info.world_size);
    if (file.rank <= last) {
      throw Error(
          fmt::format("the file of rank {} comes after that of rank {}; each rank has one "
                      "at most, in order",
                      file.rank, last));
    }
    last = file.rank;
  }
}

void check_parameters(const Manifest& manifest) {
  std::set<std::string> names;
  for (const SavedParameter& p : manifest.parameters) {
    const std::string what = fmt::format("parameter '{}'", p.name);
    if (!names.insert(p.name).second) throw Error(what + " is there twice");
    check_shape(what, p.shape);
    expect_between("the number of steps of " + what, p.steps, 0, kMostSteps);
    check_runs(p, manifest);
  }
}

void check_buffers(const Manifest& manifest) {
  std::set<std::string> names;
  for (const SavedBuffer& b : manifest.buffers) {
    const std::string what = fmt::format("buffer '{}'", b.name);
    if (!names.insert(b.name).second) throw Error(what + " is there twice");
    check_shape(what, b.shape);
  }
  const auto ranks = static_cast<std::size_t>(manifest.info.world_size);
  if (!manifest.buffers.empty() && manifest.files.size() != ranks) {
    throw Error(
        fmt::format("there are files of {} ranks out of {}, and buffers, which every rank "
                    "saves",
                    manifest.files.size(), ranks));
  }
}

}  // namespace

void check_info(const CheckpointInfo& info) {
  expect_between("the step", info.step, 0, kMostSteps);
  if (!info.sampler) return;
  const data::DistributedSampler::State& sampler = *info.sampler;
  expect_between("the sampler's step", sampler.step, 0, kMostSteps);
  expect_between("the sampler's dataset_size", sampler.dataset_size, 1, kMost);
  expect_between("the sampler's global_batch", sampler.global_batch, 1, sampler.dataset_size);
}

void check_manifest(const Manifest& manifest) {
  check_info(manifest.info);
  expect_between("the world_size", manifest.info.world_size, 1, kMostRanks);
  check_file_name(manifest.folder);
  check_files(manifest);
  check_parameters(manifest);
  check_buffers(manifest);
}

}  // namespace zero::io::checkpoint
