#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <ranges>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <zero/base/json_depth.hpp>
#include <zero/safetensors/format.hpp>

namespace zero::safetensors {
namespace {

using nlohmann::json;

struct NamedDtype {
  std::string_view name;
  at::ScalarType dtype;
};

constexpr std::array<NamedDtype, 11> kDtypes = {{{"F64", at::kDouble},
                                                 {"F32", at::kFloat},
                                                 {"F16", at::kHalf},
                                                 {"BF16", at::kBFloat16},
                                                 {"I64", at::kLong},
                                                 {"I32", at::kInt},
                                                 {"I16", at::kShort},
                                                 {"I8", at::kChar},
                                                 {"U16", at::kUInt16},
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

// A dimension of 0 counts as 1, because LibTorch multiplies the others into strides and they must
// not overflow either.
void check_shape(const Spec& spec, const Refusal& refuse) {
  if (spec.shape.size() > kMaxDimensions) {
    refuse("has {} dimensions; at most {} can be read", spec.shape.size(), kMaxDimensions);
  }
  auto bytes = static_cast<std::int64_t>(c10::elementSize(spec.dtype));
  for (const std::int64_t size : spec.shape) {
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) {
      refuse("its shape {} has more bytes than fit 63 bits", shape_text(spec.shape));
    }
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

Entry read_entry(const std::string& name, const json& object, const std::string& path) {
  const Refusal refuse(path, name);
  Entry entry;
  entry.name = name;
  entry.dtype = read_dtype(object, refuse);
  entry.shape = read_numbers(object, "shape", refuse);
  check_shape(entry, refuse);
  const auto offsets = read_numbers(object, "data_offsets", refuse);
  if (offsets.size() != 2) refuse("has {} data_offsets; there must be 2", offsets.size());
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (entry.end - entry.begin != entry.bytes()) {
    refuse("its data_offsets [{}, {}] span {} bytes, but {} {} takes {}", entry.begin, entry.end,
           entry.end - entry.begin, *name_of(entry.dtype), shape_text(entry.shape), entry.bytes());
  }
  return entry;
}

// Sorts by position and refuses anything but a gapless sequence.
void check_sequence(std::vector<Entry>& entries, std::uint64_t data_bytes,
                    const std::string& path) {
  const auto position = [](const Entry& entry) {
    return std::tie(entry.begin, entry.end, entry.name);
  };
  std::ranges::sort(entries, {}, position);
  std::int64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != end) {
      Refusal(path, entry.name)(
          "begins at byte {} of the data, but the tensor before it ends at {}: "
          "tensors may neither overlap nor leave holes",
          entry.begin, end);
    }
    end = entry.end;
  }
  if (static_cast<std::uint64_t>(end) != data_bytes) {
    refuse(path,
           fmt::format("{} bytes follow the header, but its tensors take {}: it was cut short, "
                       "something was added, or its header is wrong",
                       data_bytes, end));
  }
}

// One object of the header.
std::string header_entry(const Entry& entry) {
  return fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                     json(entry.name).dump(), *name_of(entry.dtype), fmt::join(entry.shape, ","),
                     entry.begin, entry.end);
}

// Why there are no values of `tensor` to read or to write; empty if there are.
std::string without_values(const at::Tensor& tensor) {
  if (!tensor.defined()) return "is undefined";
  if (tensor.layout() != at::kStrided || tensor.is_nested() || !tensor.has_storage()) {
    return "is sparse, nested or of another layout: make it dense, as by to_dense()";
  }
  if (tensor.numel() == 0) return "";
  const std::size_t bytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                       static_cast<std::size_t>(tensor.storage_offset()));
  try {
    if (tensor.storage().data() != nullptr && tensor.storage().nbytes() >= bytes) return "";
  } catch (const c10::Error&) {  // they have been taken away
  }
  return "has no bytes here, as on the device meta, in a module of nn::defer(), or of an engine at "
         "stage 3: take what io::state_dict() of its engine returns";
}

}  // namespace

Header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& path) {
  const json object = parse(text, path);
  Header header;
  for (const auto& [name, value] : object.items()) {
    if (name == kMetadataKey) {
      try {
        value.get_to(header.metadata);
      } catch (const json::type_error&) {
        refuse(path, fmt::format("its {} is not a JSON object of texts", kMetadataKey));
      }
    } else {
      header.entries.push_back(read_entry(name, value, path));
    }
  }
  check_sequence(header.entries, data_bytes, path);
  return header;
}

std::vector<Entry> lay_out(const std::vector<Spec>& specs, const std::string& path) {
  std::unordered_set<std::string> names;
  std::vector<Entry> entries;
  for (const Spec& spec : specs) {
    const Refusal refuse(path, spec.name);
    if (spec.name == kMetadataKey) refuse("this name is taken by the format itself; use another");
    if (!names.insert(spec.name).second) refuse("is given twice; names must differ");
    if (!name_of(spec.dtype)) {
      refuse("{} tensors cannot be saved; known dtypes are {}", c10::toString(spec.dtype),
             known_dtypes());
    }
    entries.push_back({spec, 0, 0});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  std::int64_t end = 0;
  for (Entry& entry : entries) {
    entry.begin = end;
    entry.end = end += entry.bytes();
  }
  return entries;
}

std::string make_header(const std::vector<Entry>& entries, const Metadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += fmt::format(R"("{}":{})", kMetadataKey, json(metadata).dump());
  for (const Entry& entry : entries) {
    if (text.size() > 1) text += ',';
    text += header_entry(entry);
  }
  text += '}';
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

json parse(std::string_view text, const std::string& path) {
  // The parser would take it for the end.
  if (text.find('\0') != std::string_view::npos) refuse(path, "its JSON has a byte of zeros");
  try {
    json result = json::parse(text, base::bounded_depth(path));
    if (!result.is_object()) refuse(path, "its JSON is not an object");
    return result;
  } catch (const json::parse_error& error) {
    refuse(path, fmt::format("its JSON is broken at byte {}", error.byte));
  } catch (const json::exception&) {
    refuse(path, "its JSON holds a number that is too large");
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

std::vector<Spec> specs_of(const NamedTensors& tensors, const std::string& path) {
  std::vector<Spec> specs;
  for (const auto& [name, tensor] : tensors) {
    if (const auto why = without_values(tensor); !why.empty()) Refusal(path, name)("it {}", why);
    specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  }
  return specs;
}

void check_tensor(const at::Tensor& tensor, const Spec& spec, const std::string& path,
                  std::string_view what) {
  const Refusal refuse(path, spec.name);
  if (const auto why = without_values(tensor); !why.empty()) refuse("{} {}", what, why);
  if (tensor.sizes() != at::IntArrayRef(spec.shape)) {
    refuse("{} has shape {}, but the file's is {}", what, shape_text(tensor.sizes().vec()),
           shape_text(spec.shape));
  }
  if (!convertible(tensor.scalar_type(), spec.dtype)) {
    refuse("{} is {}, but the file's is {}: only Double, Float, Half and BFloat16 are converted",
           what, c10::toString(tensor.scalar_type()), c10::toString(spec.dtype));
  }
}

std::size_t position_of(const std::string& name, const Index& index,
                        const std::filesystem::path& path) {
  if (const auto found = index.find(name); found != index.end()) return found->second;
  constexpr std::size_t kNamed = 10;
  const auto first =
      index | std::views::keys | std::views::take(kNamed) | std::views::transform(shown);
  refuse(path, fmt::format("there is no tensor {} among its {}: {}{}", shown(name), index.size(),
                           fmt::join(first, " "), index.size() > kNamed ? " ..." : ""));
}

void for_each_piece(const at::Tensor& tensor, const Spec& spec, bool reads, const UsePiece& use) {
  const at::NoGradGuard no_grad;
  const std::int64_t limit =
      kScratchBytes / static_cast<std::int64_t>(c10::elementSize(spec.dtype));
  const at::Tensor flat = tensor.variable_data().contiguous().view(-1);
  at::Tensor scratch;
  for (std::int64_t first = 0; first < flat.numel(); first += limit) {
    const at::Tensor piece = flat.narrow(0, first, std::min(limit, flat.numel() - first));
    const bool is_like_file = piece.is_cpu() && piece.scalar_type() == spec.dtype;
    // The bytes of a file need not be aligned, those of a tensor must be.
    if (!is_like_file && !scratch.defined()) {
      scratch = at::empty({piece.numel()}, at::TensorOptions(spec.dtype));
    }
    const at::Tensor bytes = is_like_file ? piece : scratch.narrow(0, 0, piece.numel());
    if (!reads && !is_like_file) bytes.copy_(piece);
    use(static_cast<char*>(bytes.mutable_data_ptr()), first, bytes.nbytes());
    if (reads && !is_like_file) piece.copy_(bytes);
  }
  if (reads && !tensor.is_contiguous()) tensor.variable_data().copy_(flat.view(tensor.sizes()));
}

}  // namespace zero::safetensors
