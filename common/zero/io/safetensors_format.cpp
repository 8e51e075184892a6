#include <ATen/EmptyTensor.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <ranges>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <zero/io/safetensors_format.hpp>
#include <zero/memory/storage.hpp>

namespace zero::io::safetensors {
namespace {

using nlohmann::json;

struct NamedDtype {
  std::string_view name;
  at::ScalarType dtype;
};

constexpr std::array<NamedDtype, 10> kDtypes = {{{"F64", at::kDouble},
                                                 {"F32", at::kFloat},
                                                 {"F16", at::kHalf},
                                                 {"BF16", at::kBFloat16},
                                                 {"I64", at::kLong},
                                                 {"I32", at::kInt},
                                                 {"I16", at::kShort},
                                                 {"I8", at::kChar},
                                                 {"U8", at::kByte},
                                                 {"BOOL", at::kBool}}};

// LibTorch's iterators do not support more dimensions.
constexpr std::size_t kMaxDimensions = 64;

std::string known_dtypes() {
  return fmt::format("{}", fmt::join(kDtypes | std::views::transform(&NamedDtype::name), ", "));
}

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  const auto* const found = std::ranges::find(kDtypes, name, &NamedDtype::name);
  return found == kDtypes.end() ? std::nullopt : std::optional(found->dtype);
}

std::optional<std::string_view> name_of(at::ScalarType dtype) {
  const auto* const found = std::ranges::find(kDtypes, dtype, &NamedDtype::dtype);
  return found == kDtypes.end() ? std::nullopt : std::optional(found->name);
}

// Bytes of a tensor; nothing if they overflow. A dimension of 0 counts as 1, because LibTorch
// multiplies the others into strides and they must not overflow either.
std::optional<std::int64_t> countable_bytes(const SafetensorsSpec& spec) {
  auto bytes = static_cast<std::int64_t>(c10::elementSize(spec.dtype));
  for (const std::int64_t size : spec.shape) {
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return spec.bytes();
}

// Throws the errors about one file, each beginning with the file and the tensor.
class Refusal {
 public:
  Refusal(const std::string& path, std::string_view name) : path_(path), name_(name) {}

  template <class... Args>
  [[noreturn]] void operator()(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(fmt::format("{}: tensor {}: {}", path_, shown(name_),
                            fmt::format(format, std::forward<Args>(args)...)));
  }

 private:
  const std::string& path_;
  std::string_view name_;
};

void check_shape(const SafetensorsSpec& spec, const Refusal& refuse) {
  if (spec.shape.size() > kMaxDimensions) {
    refuse("has {} dimensions; at most {} can be read", spec.shape.size(), kMaxDimensions);
  }
  for (const std::int64_t size : spec.shape) {
    if (size < 0) refuse("has a dimension of {}; sizes are 0 or more", size);
  }
  if (!countable_bytes(spec)) {
    refuse("its shape {} has more bytes than fit 63 bits", shape_text(spec.shape));
  }
}

const json& field(const json& object, const char* key, const Refusal& refuse) {
  if (!object.is_object() || !object.contains(key)) {
    refuse("has no \"{}\"; it must have \"dtype\", \"shape\" and \"data_offsets\"", key);
  }
  return object[key];
}

at::ScalarType read_dtype(const json& object, const Refusal& refuse) {
  const json& value = field(object, "dtype", refuse);
  const std::string name = value.is_string() ? value.get<std::string>() : value.type_name();
  const auto dtype = value.is_string() ? dtype_of(name) : std::nullopt;
  if (!dtype) refuse("dtype {} cannot be read; known are {}", shown(name), known_dtypes());
  return *dtype;
}

std::vector<std::int64_t> read_numbers(const json& object, const char* key, const Refusal& refuse) {
  const json& values = field(object, key, refuse);
  if (!values.is_array()) refuse("its {} is not a list of whole numbers", key);
  std::vector<std::int64_t> numbers;
  for (const json& value : values) {
    if (!value.is_number_unsigned() || !std::in_range<std::int64_t>(value.get<std::uint64_t>())) {
      refuse("its {} holds something that is not a whole number from 0 to 2^63 - 1", key);
    }
    numbers.push_back(value.get<std::int64_t>());
  }
  return numbers;
}

SafetensorsEntry read_entry(const std::string& name, const json& object, std::uint64_t data_bytes,
                            const std::string& path) {
  const Refusal refuse(path, name);
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = read_dtype(object, refuse);
  entry.shape = read_numbers(object, "shape", refuse);
  check_shape(entry, refuse);
  const auto offsets = read_numbers(object, "data_offsets", refuse);
  if (offsets.size() != 2) refuse("has {} data_offsets; there must be 2", offsets.size());
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (static_cast<std::uint64_t>(entry.end) > data_bytes) {
    refuse(
        "its data_offsets [{}, {}] end after the {} bytes of data that the file has; it was cut "
        "short, or its header is wrong",
        entry.begin, entry.end, data_bytes);
  }
  if (entry.end - entry.begin != entry.bytes()) {
    refuse("its data_offsets [{}, {}] span {} bytes, but {} {} takes {}", entry.begin, entry.end,
           entry.end - entry.begin, *name_of(entry.dtype), shape_text(entry.shape), entry.bytes());
  }
  return entry;
}

// Sorts by position and refuses anything but a gapless sequence.
void check_sequence(std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes,
                    const std::string& path) {
  const auto position = [](const SafetensorsEntry& entry) {
    return std::tie(entry.begin, entry.end, entry.name);
  };
  std::ranges::sort(entries, {}, position);
  std::int64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != end) {
      Refusal(path, entry.name)(
          "begins at byte {} of the data, but the tensor before it ends at {}: "
          "tensors may neither overlap nor leave holes",
          entry.begin, end);
    }
    end = entry.end;
  }
  if (static_cast<std::uint64_t>(end) != data_bytes) {
    throw Error(fmt::format("{}: {} bytes follow the header, but its tensors take {}", path,
                            data_bytes, end));
  }
}

// One object of the header; throws nlohmann's type_error for a text that is not UTF-8.
std::string header_entry(const SafetensorsEntry& entry) {
  return fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                     json(entry.name).dump(), *name_of(entry.dtype), fmt::join(entry.shape, ","),
                     entry.begin, entry.end);
}

}  // namespace

Header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& path) {
  if (text.empty() || text.front() != '{') {
    throw Error(fmt::format(
        "{}: its header does not begin with '{{': this is not a safetensors file", path));
  }
  const json object = parse_strictly(text, path);
  Header header;
  for (const auto& [name, value] : object.items()) {
    if (name == kMetadataKey) {
      try {
        value.get_to(header.metadata);
      } catch (const json::type_error&) {
        throw Error(fmt::format("{}: its {} is not a JSON object of texts", path, kMetadataKey));
      }
    } else {
      header.entries.push_back(read_entry(name, value, data_bytes, path));
    }
  }
  check_sequence(header.entries, data_bytes, path);
  return header;
}

std::vector<SafetensorsEntry> lay_out(const std::vector<SafetensorsSpec>& specs,
                                      const std::string& path) {
  std::unordered_set<std::string> names;
  std::vector<SafetensorsEntry> entries;
  for (const SafetensorsSpec& spec : specs) {
    const Refusal refuse(path, spec.name);
    if (spec.name == kMetadataKey) refuse("this name is taken by the format itself; use another");
    if (!names.insert(spec.name).second) refuse("is given twice; names must differ");
    if (!name_of(spec.dtype)) {
      refuse("{} tensors cannot be saved; known dtypes are {}", c10::toString(spec.dtype),
             known_dtypes());
    }
    check_shape(spec, refuse);
    entries.push_back({spec, 0, 0});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  std::int64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.begin = end;
    if (__builtin_add_overflow(end, entry.bytes(), &end)) {
      Refusal(path, entry.name)("with it the file has more bytes than fit 63 bits");
    }
    entry.end = end;
  }
  return entries;
}

std::string make_header(const std::vector<SafetensorsEntry>& entries,
                        const SafetensorsMetadata& metadata, const std::string& path) {
  std::string text = "{";
  try {
    if (!metadata.empty()) {
      text += fmt::format(R"("{}":{})", kMetadataKey, json(metadata).dump());
    }
    for (const SafetensorsEntry& entry : entries) {
      if (text.size() > 1) text += ',';
      text += header_entry(entry);
    }
  } catch (const json::type_error&) {
    throw Error(fmt::format("{}: a name or an entry of the metadata is not UTF-8 text", path));
  }
  text += '}';
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw Error(fmt::format("{}: the header would be {} bytes long; at most {} are allowed", path,
                            text.size(), kMaxHeaderBytes));
  }
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

json parse_strictly(std::string_view text, const std::string& path) {
  // A header is an object of objects that hold arrays.
  constexpr std::size_t kDeepestNesting = 3;
  std::array<std::set<std::string>, kDeepestNesting> keys;  // of every open object
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    const auto level = static_cast<std::size_t>(depth);
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (level == kDeepestNesting) {
        throw Error(
            fmt::format("{}: its JSON is nested deeper than {} levels", path, kDeepestNesting));
      }
      keys[level].clear();
    } else if (event == json::parse_event_t::key &&
               !keys[level - 1].insert(parsed.get<std::string>()).second) {
      throw Error(fmt::format("{}: its JSON has the key {} twice in one object", path,
                              shown(parsed.get<std::string>())));
    }
    return true;
  };
  try {
    json result = json::parse(text, check);
    if (!result.is_object()) throw Error(fmt::format("{}: its JSON is not an object", path));
    return result;
  } catch (const json::parse_error& error) {
    throw Error(fmt::format("{}: its JSON is broken at byte {}", path, error.byte));
  } catch (const json::exception&) {
    throw Error(fmt::format("{}: its JSON holds a number that is too large", path));
  }
}

std::string shown(std::string_view name) {
  constexpr std::size_t kLongest = 200;
  const std::string text = nlohmann::json(name.substr(0, kLongest))
                               .dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true,
                                     nlohmann::json::error_handler_t::replace);
  return name.size() > kLongest ? text + "..." : text;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool convertible(at::ScalarType from, at::ScalarType to) {
  const auto floating = [](at::ScalarType dtype) {
    return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf ||
           dtype == at::kBFloat16;
  };
  return from == to || (floating(from) && floating(to));
}

std::vector<SafetensorsSpec> specs_of(const NamedTensors& tensors, const std::string& path) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) {
      throw Error(fmt::format("{}: tensor {}: is not defined", path, shown(name)));
    }
    specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  }
  return specs;
}

void check_tensor(const at::Tensor& tensor, const SafetensorsSpec& spec, const std::string& path,
                  std::string_view what) {
  const Refusal refuse(path, spec.name);
  if (!tensor.defined() || tensor.layout() != at::kStrided ||
      !(tensor.is_cpu() || tensor.is_cuda())) {
    refuse("{} must be a dense tensor with values", what);
  }
  if (tensor.sizes() != at::IntArrayRef(spec.shape)) {
    refuse("{} has shape {}, but the file's is {}", what, shape_text(tensor.sizes().vec()),
           shape_text(spec.shape));
  }
  if (!convertible(tensor.scalar_type(), spec.dtype)) {
    refuse("{} is {}, but the file's is {}: only Double, Float, Half and BFloat16 are converted",
           what, c10::toString(tensor.scalar_type()), c10::toString(spec.dtype));
  }
  const std::size_t needed =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                       static_cast<std::size_t>(tensor.storage_offset()));
  if (tensor.numel() > 0 && (tensor.storage().nbytes() < needed || memory::is_released(tensor))) {
    refuse("{} has no storage now; gather it first", what);
  }
}

std::size_t position_of(const std::string& name, const SafetensorsIndex& index,
                        const std::filesystem::path& path) {
  if (const auto found = index.find(name); found != index.end()) return found->second;
  constexpr std::size_t kNamed = 10;
  const auto first =
      index | std::views::keys | std::views::take(kNamed) | std::views::transform(shown);
  refuse(path, fmt::format("there is no tensor {} among its {}: {}{}", shown(name), index.size(),
                           fmt::join(first, " "), index.size() > kNamed ? " ..." : ""));
}

void for_each_piece(const at::Tensor& tensor, std::int64_t limit, std::int64_t first,
                    const std::function<void(const at::Tensor&, std::int64_t)>& use) {
  if (tensor.numel() == 0) return;
  if (tensor.is_contiguous()) {
    for (const at::Tensor& piece : tensor.view(-1).split(limit)) {
      use(piece, first);
      first += piece.numel();
    }
  } else if (tensor.numel() <= limit) {
    use(tensor, first);
  } else if (tensor.size(0) == 1) {
    for_each_piece(tensor[0], limit, first, use);
  } else {
    const std::int64_t row = tensor.numel() / tensor.size(0);
    for (const at::Tensor& rows : tensor.split(std::max<std::int64_t>(1, limit / row))) {
      for_each_piece(rows, limit, first, use);
      first += rows.numel();
    }
  }
}

}  // namespace zero::io::safetensors
