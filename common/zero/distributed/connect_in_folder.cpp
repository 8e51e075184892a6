#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/base/program.hpp>
#include <zero/base/variable.hpp>
#include <zero/distributed/agreement.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/connect_in_folder.hpp>
#include <zero/distributed/environment.hpp>
#include <zero/distributed/store/call_log.hpp>
#include <zero/distributed/store/folder_store.hpp>

namespace zero::dist {
namespace {

constexpr const char* kGaveUp = "gave up";

// So that a rank that comes after all does not wait for this one.
void tell_that_it_gave_up(const StorePtr& store, int rank) {
  try {
    store->set(kGaveUp, std::to_string(rank));
  } catch (const std::exception&) {
    // Rank 0, which serves the store, has given up, too.
  }
}

std::vector<int> missing_of(const StorePtr& store, const std::vector<std::string>& keys) {
  std::vector<int> missing;
  for (std::size_t r = 0; r < keys.size(); ++r) {
    if (!store->check({keys[r]})) missing.push_back(static_cast<int>(r));
  }
  return missing;
}

// Returns when all have come, or says whom rank 0 waits for: nobody may have started them.
// `said_by`: see RankEnvironment.
void say_who_is_missing(const StorePtr& store, const std::vector<std::string>& keys,
                        const std::string& said_by) {
  const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  while (!store->check(keys)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (std::chrono::steady_clock::now() < soon) continue;
    log_error(fmt::format("rank 0 waits for {} of {}, as {} say{}",
                          ranks_text(missing_of(store, keys)), keys.size(), said_by,
                          said_by.starts_with("SLURM") ? ": srun must start the program" : ""));
    return;
  }
}

// Returns what every rank says. Names the missing ranks before the backend tries to connect; its
// own message would not.
std::vector<std::string> wait_for_everybody(const StorePtr& store, int rank, int size,
                                            std::chrono::milliseconds timeout,
                                            const std::string& said_by, const std::string& text) {
  const auto key = [](int r) { return fmt::format("here/{}", r); };
  store->set(key(rank), text);
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(key(r));
  try {
    if (rank == 0 && !said_by.empty()) say_who_is_missing(store, keys, said_by);
    store->wait(keys, timeout);
    if (store->check({kGaveUp})) {
      throw Error(fmt::format("rank {} has waited for all ranks for {} s and given up",
                              store->get_to_str(kGaveUp), timeout.count() / 1000.0));
    }
    std::vector<std::string> texts;
    for (const std::string& of_rank : keys) texts.push_back(store->get_to_str(of_rank));
    return texts;
  } catch (const Error& error) {
    throw Error(fmt::format("not all ranks came: {}", error.what()));
  } catch (const std::exception& error) {
    std::vector<int> missing;
    try {
      missing = missing_of(store, keys);
    } catch (const std::exception&) {
      throw Error(fmt::format("the store of rank 0 is gone: {}", first_line(error.what())));
    }
    tell_that_it_gave_up(store, rank);
    throw Error(fmt::format(
        "{} of {} did not come within {} s: start {} ranks in all with the same address and port",
        ranks_text(missing), size, timeout.count() / 1000.0, size));
  }
}

// Called by all ranks of the group that `place` describes.
Connection join(Place place) {
  Connection joined{.place = std::move(place)};
  make_backends(joined);
  joined.split = [place = joined.place](int rank, const std::vector<int>& ranks,
                                        const std::string& label) {
    Place group = place;
    group.rank = rank;
    group.size = static_cast<int>(ranks.size());
    std::vector<int> world_ranks;
    for (const int r : ranks) world_ranks.push_back(place.log->world_rank(r));
    StorePtr store;
    if (group.size > 1) {
      store = c10::make_intrusive<c10d::PrefixStore>(
          fmt::format("group/{}/{}", label, fmt::join(ranks, ",")), place.log->store());
    }
    group.log = std::make_shared<CallLog>(store, rank, group.size, std::move(world_ranks));
    group.hosts.clear();
    for (const int r : ranks) group.hosts.push_back(place.hosts[static_cast<std::size_t>(r)]);
    return join(std::move(group));
  };
  return joined;
}

// The same text on all ranks of a host, and on no others. The name alone is often "localhost".
std::string text_of_host(int rank) {
  if (const int ranks = ranks_per_host(); ranks > 0) return std::to_string(rank / ranks);
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  std::string start;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), start);
  return fmt::format("{} {} {}", name, start, base::variable("GROUP_RANK").value_or(""));
}

// Numbers for these texts, by rank: that of the first rank with the same text.
std::vector<int> hosts_of(const std::vector<std::string>& texts) {
  std::vector<int> hosts;
  for (const std::string& text : texts) {
    hosts.push_back(static_cast<int>(std::find(texts.begin(), texts.end(), text) - texts.begin()));
  }
  return hosts;
}

}  // namespace

std::unique_ptr<Communicator> connect_through(const StorePtr& base, int rank, int size,
                                              int local_rank, ConnectOptions options, int patience,
                                              const std::string& said_by) {
  options.timeout = time_limit(options.timeout);
  // What can be refused is, before ranks wait for each other.
  verify_backend(options.backend);
  link_rate();
  ranks_per_host();
  if (base::variable("ZERO_BETWEEN_HOSTS")) {
    throw Error(
        "ZERO_BETWEEN_HOSTS was removed: tensors go from each rank to each, over hosts too; unset "
        "it");
  }
  StorePtr store = c10::make_intrusive<c10d::PrefixStore>(options.prefix, base);
  const auto hosts = wait_for_everybody(store, rank, size, patience * options.timeout, said_by,
                                        text_of_host(rank));
  const auto link = make_link();
  auto log = std::make_shared<CallLog>(store, rank, size);
  auto world = std::make_unique<Communicator>(
      join({rank, size, local_rank, std::move(log), options, hosts_of(hosts), link}));
  open_link(*link, *world);
  return world;
}

std::unique_ptr<Communicator> connect_in_folder(const std::filesystem::path& folder, int rank,
                                                int size, ConnectOptions options) {
  if (size == 1) return connect_alone(options);
  options.loopback = true;
  auto store = c10::make_intrusive<FolderStore>(folder);
  store->setTimeout(time_limit(options.timeout));
  return connect_through(store, rank, size, /*local_rank=*/rank, options);
}

std::unique_ptr<Communicator> connect_alone(const ConnectOptions& options) {
  auto log = std::make_shared<CallLog>(nullptr, /*rank=*/0, /*size=*/1);
  return std::make_unique<Communicator>(
      join({.log = std::move(log), .options = options, .hosts = {0}}));
}

}  // namespace zero::dist
