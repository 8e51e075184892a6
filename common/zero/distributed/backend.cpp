#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <map>
#include <utility>

#include <zero/base/error.hpp>
#include <zero/distributed/backend.hpp>
#include <zero/distributed/gloo/gloo_backend.hpp>
#include <zero/distributed/store/call_log.hpp>
#include <zero/memory/charge.hpp>

namespace zero::dist {
namespace {

struct Registered {
  at::DeviceType device;
  MakeBackend make;
};

std::map<std::string, Registered>& backends() {
  static std::map<std::string, Registered> known{
      {"gloo", {at::kCPU, [](Place& place) { return make_cpu_backend(place, /*tcp=*/false); }}}};
  return known;
}

const Registered& backend(const std::string& name) {
  const auto found = backends().find(name);
  if (found != backends().end()) return found->second;
  std::vector<std::string> known;
  for (const auto& entry : backends()) known.push_back(entry.first);
  throw Error(fmt::format("backend '{}' is not in this program, which has {}{}", name,
                          fmt::join(known, ", "),
                          name == "nccl" ? ": link zero::cuda and call dist::enable_nccl()" : ""));
}

}  // namespace

void add_backend(const std::string& name, at::DeviceType device, MakeBackend make) {
  backends()[name] = {device, std::move(make)};
}

void verify_backend(const std::string& name) { backend(name); }

void make_backends(Connection& joined) {
  Place& place = joined.place;
  const auto& [device, make] = backend(place.options.backend);
  const bool on_cpu = device == at::kCPU;
  // A GPU's driver may have memory that other processes cannot read.
  if (place.size > 1) joined.cpu = on_cpu ? make(place) : make_cpu_backend(place, /*tcp=*/true);
  if (on_cpu) return;
  place.cpu = joined.cpu.get();
  joined.device = make(place);
  place.cpu = nullptr;
}

std::vector<std::string> exchange(Backend* backend, const Place& place, const std::string& text,
                                  Call call) {
  if (place.size == 1) return {text};
  const memory::Charge charge(memory::Category::kCommunication);
  call.fingerprint = place.log->add({call.public_call, "exchange of texts"});
  const auto gather = [&](const at::Tensor& mine) {
    call.bytes = static_cast<std::int64_t>(mine.nbytes());
    at::Tensor all = at::empty({place.size, mine.numel()}, mine.options());
    if (const auto work = backend->start(call, all, mine)) work->wait();
    backend->synchronize();
    return all;
  };
  const at::Tensor lengths = gather(at::full({1}, std::ssize(text), at::kLong));
  const at::Tensor mine = at::zeros({lengths.max().item<std::int64_t>() + 1}, at::kByte);
  std::memcpy(mine.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = gather(mine);
  std::vector<std::string> texts;
  for (int r = 0; r < place.size; ++r) {
    texts.emplace_back(static_cast<const char*>(all[r].const_data_ptr()),
                       lengths[r].item<std::int64_t>());
  }
  return texts;
}

}  // namespace zero::dist
