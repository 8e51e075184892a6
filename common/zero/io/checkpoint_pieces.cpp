#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include <zero/base/error.hpp>
#include <zero/io/checkpoint_pieces.hpp>
#include <zero/safetensors/format.hpp>

namespace zero::io::checkpoint {

using nlohmann::json;

namespace {

bool is_possible(const std::vector<std::int64_t>& shape, const Piece& p) {
  // It must not overflow; a size of 0 counts as 1, because the others must not either.
  double product = 1;
  for (const std::int64_t size : shape) {
    product *= size < 0 ? std::numeric_limits<double>::infinity() : std::max<double>(size, 1);
  }
  const auto dim = static_cast<std::size_t>(p.dim);
  return product < 1e18 && p.part >= 0 && p.part < p.parts &&
         (p.parts == 1 || (dim < shape.size() && shape[dim] % p.parts == 0)) && p.begin >= 0 &&
         p.begin <= c10::multiply_integers(shape) / p.parts - p.size;
}

// The inverse of to_text(), for the tensor `name` of a file.
SavedTensor tensor_from(const safetensors::File& file, const std::string& name) {
  const safetensors::Entry& entry = file.info(name);
  const auto text = file.metadata().find(name);
  const std::string about = text == file.metadata().end() ? "" : text->second;
  SavedTensor saved{.dtype = entry.dtype, .pieces = {{.size = entry.elements()}}};
  try {
    const json j = json::parse(about);
    Piece& piece = saved.pieces.front();
    saved.shape = j.at("shape").get<std::vector<std::int64_t>>();
    saved.steps = j.at("steps");
    piece.begin = j.at("begin");
    piece.dim = j.at("dim");
    piece.part = j.at("part");
    piece.parts = j.at("parts");
    if (saved.steps >= 0 && is_possible(saved.shape, piece)) return saved;
  } catch (const json::exception&) {  // it says nothing, or something else
  }
  throw Error(fmt::format("{}: '{}' with {} elements is not what its metadata say: {}",
                          file.path().string(), name, entry.elements(), about));
}

// What all files must say alike.
std::string described(const SavedTensor& t) {
  return fmt::format("{} {} after {} updates", safetensors::shape_text(t.shape),
                     c10::toString(t.dtype), t.steps);
}

}  // namespace

Piece piece_of(const nn::TensorPlacement& placement, std::int64_t begin, std::int64_t size) {
  if (placement.parts() == 1) return {.begin = begin, .size = size};
  return {begin, size, placement.dim, placement.part(), placement.parts()};
}

std::vector<Run> runs_of(at::IntArrayRef shape, const std::vector<Piece>& pieces) {
  std::vector<Run> runs;
  for (const Piece& p : pieces) {
    if (p.size == 0) continue;
    // Of each index before the cut dimension, the elements of a part follow each other: `run` of
    // them, at every `stride` elements of the whole.
    const at::IntArrayRef below = shape.slice(p.parts == 1 ? 0 : static_cast<std::size_t>(p.dim));
    const std::int64_t stride = c10::multiply_integers(below), run = stride / p.parts;
    for (std::int64_t first = p.begin, next = 0; first < p.begin + p.size; first = next) {
      next = std::min(p.begin + p.size, (first / run + 1) * run);
      const std::int64_t before = first / run * (stride - run) + p.part * run;  // of other parts
      runs.push_back({p.file, first - p.begin, before + first, next - first});
    }
  }
  std::ranges::sort(runs, {}, &Run::to);
  return runs;
}

void check_complete(const std::string& name, at::IntArrayRef shape,
                    const std::vector<Piece>& pieces) {
  std::vector<Run> runs = runs_of(shape, pieces);
  runs.push_back({.to = c10::multiply_integers(shape)});
  std::int64_t end = 0;
  for (const Run& run : runs) {
    if (run.to != end) {
      throw Error(fmt::format("elements {} to {} of '{}' are in {}", std::min(end, run.to),
                              std::max(end, run.to), name,
                              run.to > end ? "no file" : "several files"));
    }
    end += run.size;
  }
}

std::vector<Run> copies(const std::vector<Run>& saved, const std::vector<Run>& wanted) {
  std::vector<Run> all;
  auto there = saved.begin();
  for (const Run& here : wanted) {
    for (std::int64_t begin = here.to, end = 0; begin < here.to + here.size; begin = end) {
      while (there->to + there->size <= begin) ++there;
      end = std::min(there->to + there->size, here.to + here.size);
      const Run next{there->file, there->from + begin - there->to, here.from + begin - here.to,
                     end - begin};
      // Runs of tensors that are cut alike follow each other on both sides.
      if (!all.empty() && all.back().file == next.file &&
          all.back().from + all.back().size == next.from &&
          all.back().to + all.back().size == next.to) {
        all.back().size += next.size;
      } else {
        all.push_back(next);
      }
    }
  }
  return all;
}

std::string to_text(at::IntArrayRef shape, const Piece& piece, std::int64_t steps) {
  return json{{"shape", shape.vec()}, {"begin", piece.begin}, {"dim", piece.dim},
              {"part", piece.part},   {"parts", piece.parts}, {"steps", steps}}
      .dump();
}

std::map<std::string, SavedTensors> tensors_in(const std::vector<safetensors::File>& files) {
  std::map<std::string, SavedTensors> all;
  for (std::size_t k = 0; k < files.size(); ++k) {
    for (const std::string& stored : files[k].names()) {
      const std::size_t slash = stored.find('/');
      const std::string kind = stored.substr(0, slash), name = stored.substr(kind.size());
      if (kind == kBufferKind) continue;
      SavedTensor mine = tensor_from(files[k], stored);
      mine.pieces.front().file = k;
      const auto [whole, is_first] =
          all[name.empty() ? name : name.substr(1)].try_emplace(kind, mine);
      if (is_first) continue;
      if (described(whole->second) != described(mine)) {
        throw Error(fmt::format("{}: '{}' is {}, in a file before it {}", files[k].path().string(),
                                stored, described(mine), described(whole->second)));
      }
      whole->second.pieces.push_back(mine.pieces.front());
    }
  }
  for (const auto& [name, kinds] : all) {
    for (const auto& [kind, t] : kinds) {
      check_complete(stored_name(kind, name), t.shape, t.pieces);
      if (t.shape == kinds.begin()->second.shape) continue;
      throw Error(
          fmt::format("'{}' has another shape than its parameter", stored_name(kind, name)));
    }
  }
  return all;
}

}  // namespace zero::io::checkpoint
