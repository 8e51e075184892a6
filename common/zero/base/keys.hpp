#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace zero::base {

/// The fields of an options struct as keys of a JSON object: reads and writes them. A struct has a
/// function
///
///     void declare(base::Keys& keys, SomeOptions& options)
///
/// in its own namespace, which names each of its fields once.
class Keys {
 public:
  using Json = nlohmann::json;
  /// Every whole number up to here is a double.
  static constexpr std::int64_t kMostCount = 9'000'000'000'000'000;

  /// `where`: for messages.
  explicit Keys(std::string where) : where_(std::move(where)) {}
  Keys(const Keys&) = delete;  // fields refer to it
  Keys& operator=(const Keys&) = delete;

  // Fields must outlive this object.

  void flag(const std::string& key, bool& out);
  /// A whole number from `least` to `most`.
  void count(const std::string& key, std::int64_t least, std::int64_t& out,
             std::int64_t most = kMostCount);
  /// The same for which `is_right`; `right` says what is.
  void count_if(const std::string& key, std::function<bool(std::int64_t)> is_right,
                const std::string& right, std::int64_t& out);
  /// A number of 0 or more.
  void real(const std::string& key, const std::string& right, double& out);
  /// A whole number of `least` or more, or a word that stands for one.
  void count_or(const std::string& key, const std::string& word, std::int64_t meaning,
                std::int64_t& out, std::int64_t least = 0);
  /// A number of MiB, `least` bytes or more.
  void mib(const std::string& key, std::int64_t& bytes, std::int64_t least = 1);
  /// Any other. `take` may refuse().
  void field(const std::string& key, std::function<void(const Json&)> take,
             std::function<Json()> give);
  /// A key that is only read.
  void field(const std::string& key, std::function<void(const Json&)> take);
  /// What must be true of all fields together once they are read.
  void require(std::function<bool()> is_right, std::string wrong);

  bool has(const std::string& key) const { return fields_.contains(key); }
  std::vector<std::string> names() const;

  /// Keys that are left out keep the value of their field. Throws zero::Error for an unknown key,
  /// listing the known ones, and for a value of the wrong type or out of range.
  void read(const Json& object) const;
  void read(const std::string& text) const;
  /// A JSON object with every key that is written too.
  Json json() const;
  /// Its text, each key on a line of its own.
  std::string text() const;
  [[noreturn]] void refuse(const std::string& key, const Json& value,
                           const std::string& right) const;

 private:
  struct Field {
    std::function<void(const Json&)> take;
    std::function<Json()> give;
  };
  struct Rule {
    std::function<bool()> is_right;
    std::string wrong;
  };

  std::string where_;
  std::map<std::string, Field> fields_;
  std::vector<Rule> rules_;
};

/// The object in a text. Throws zero::Error for another text. `what`: for messages.
nlohmann::json json_object(const std::string& text, const std::string& what);

/// The text of an options struct: a JSON object, one key a line.
template <typename Options>
std::string text_of(Options options) {
  Keys keys("options");
  declare(keys, options);
  return keys.text();
}

/// The options in a text; those that are left out keep the value that they have in `options`.
template <typename Options>
Options options_from(const std::string& text, const std::string& where = "options",
                     Options options = {}) {
  Keys keys(where);
  declare(keys, options);
  keys.read(text);
  return options;
}

/// Returns `options`. Throws zero::Error if one is out of range; it names the key and what would be
/// right.
template <typename Options>
Options checked(const Options& options) {
  options_from<Options>(text_of(options));
  return options;
}

}  // namespace zero::base
