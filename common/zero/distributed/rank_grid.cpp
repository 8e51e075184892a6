#include <charconv>
#include <utility>

#include <zero/distributed/rank_grid.hpp>

namespace zero::dist {
namespace {

// Several texts as one: each after its length.
std::string packed(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += std::to_string(text.size()) + ':' + text;
  return all;
}

void unpack(const std::string& all, std::vector<std::string>& texts) {
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t colon = all.find(':', at);
    std::size_t size = 0;
    std::from_chars(all.data() + at, all.data() + colon, size);
    texts.push_back(all.substr(colon + 1, size));
    at = colon + 1 + size;
  }
}

}  // namespace

RankGrid::RankGrid(std::vector<Communicator*> axes) {
  for (Communicator* axis : axes) {
    if (axis != nullptr) axes_.push_back(axis);
  }
}

int RankGrid::rank() const {
  int rank = 0, stride = 1;
  for (const Communicator* axis : axes_) {
    rank += stride * axis->rank();
    stride *= axis->size();
  }
  return rank;
}

int RankGrid::size() const {
  int size = 1;
  for (const Communicator* axis : axes_) size *= axis->size();
  return size;
}

std::vector<std::string> RankGrid::exchange(const std::string& text) const {
  if (axes_.size() == 1) return axes_.front()->exchange(text);
  std::vector<std::string> all = {text};
  for (Communicator* axis : axes_) {
    const std::vector<std::string> of_groups = axis->exchange(packed(all));
    all.clear();
    for (const std::string& of_group : of_groups) unpack(of_group, all);
  }
  return all;
}

void RankGrid::verify_same_on_all_ranks(const std::string& what, const std::string& text) const {
  expect_same(what, exchange(text));
}

void RankGrid::barrier() const {
  // After the barrier of its last axis a rank knows that all ranks have called barrier().
  for (Communicator* axis : axes_) axis->barrier();
}

}  // namespace zero::dist
