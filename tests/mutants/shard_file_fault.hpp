#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tests/support/disk.hpp>
#include <tests/support/offload.hpp>
#include <tests/support/test_folder.hpp>
#include <zero/base/error.hpp>
#include <zero/memory/storage_pool.hpp>
#include <zero/optim/offload/options.hpp>

namespace zero::testing {

/// What is wrong with a file of parameters; empty if nothing is.
template <class File>
std::string shard_file_fault() {
  const TestFolder folder;
  memory::StoragePool pool;
  std::atomic<bool> writes_fail = false;
  const Disk disk([&](const Transfer& transfer) -> ssize_t {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return transfer.writes && writes_fail ? 0 : transfer.as_asked();
  });
  std::vector<std::unique_ptr<File>> files;
  for (std::int64_t i = 0; i < 3; ++i) {
    files.push_back(std::make_unique<File>(
        optim::OffloadOptions{.folder = folder.path(), .says_how = false}, 5000 + 5000 * i, pool));
    files.back()->bytes().fill_(i);
    files.back()->leave();
  }
  // Each byte of file i is i + `more`.
  const auto is_right = [&](std::size_t i, std::int64_t more) {
    const std::int64_t value = static_cast<std::int64_t>(i) + more;
    return files[i]->bytes().eq(value).all().template item<bool>();
  };
  try {
    for (std::int64_t step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < 3; ++i) {  // as in an update
        files[i]->read_ahead();
        if (i < 2) files[i + 1]->read_ahead();
        files[i]->bring();
        if (!is_right(i, 2 * step)) return "other bytes in an update";
        files[i]->bytes().add_(1);
        files[i]->write_behind();
        files[i]->finish();
      }
      for (std::size_t i = 0; i < 3; ++i) {  // as if the program wrote into them
        files[i]->bring();
        if (!is_right(i, 2 * step + 1)) return "other bytes after an update";
        files[i]->bytes().add_(1);
        files[i]->leave();
      }
    }
    files[1]->bring();
  } catch (const std::exception& error) {
    return error.what();
  }
  writes_fail = true;
  files[1]->write_behind();
  try {
    files[1]->finish();
    return "a write that fails is not noticed";
  } catch (const Error&) {
  }
  writes_fail = false;
  spoil_offloaded_file(folder.path(), 5);  // of the last file
  for (int again = 0; again < 2; ++again) {
    try {
      files[2]->bring();
      return "a bad byte is not noticed";
    } catch (const Error&) {
      files[2]->drop();
    }
  }
  return pool.bytes() > 0 ? "" : "no memory was given back";
}

}  // namespace zero::testing
