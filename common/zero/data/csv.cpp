#include <fmt/format.h>

#include <algorithm>

#include <zero/base/error.hpp>
#include <zero/data/csv.hpp>

namespace zero::data {
namespace {

class Parser {
 public:
  Parser(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with("\xEF\xBB\xBF")) {
      text_.remove_prefix(3);
    }
  }

  std::vector<CsvRow> rows() {
    std::vector<CsvRow> rows;
    while (at_ < text_.size()) {
      if (end_line()) {
        continue;
      }
      rows.push_back({line_, {}});
      do {
        rows.back().fields.push_back(text_.substr(at_, 1) == "\"" ? quoted() : plain());
      } while (skip(","));
      if (at_ < text_.size() && !end_line()) {
        refuse(line_, "text after the closing quote of a field");
      }
    }
    return rows;
  }

 private:
  [[noreturn]] void refuse(std::int64_t line, const std::string& why) const {
    throw Error(fmt::format("{}, line {}: {}", name_, line, why));
  }

  bool skip(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) {
      return false;
    }
    at_ += what.size();
    return true;
  }

  bool end_line() {
    if (!skip("\n") && !skip("\r\n")) {
      return false;
    }
    ++line_;
    return true;
  }

  std::string plain() {
    std::size_t end = text_.find_first_of(",\n", at_);
    end = std::min(end, text_.size());
    std::string_view field = text_.substr(at_, end - at_);
    if (end < text_.size() && text_[end] == '\n' && field.ends_with('\r')) {
      field.remove_suffix(1);
    }
    if (field.find('"') != std::string_view::npos) {
      refuse(line_,
             "a double quote inside a field that does not start with one; quote the whole "
             "field and double the quotes in it");
    }
    at_ += field.size();
    return std::string(field);
  }

  std::string quoted() {
    const std::int64_t opened = line_;
    ++at_;
    std::string field;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"' && !skip("\"")) {
        return field;
      }
      line_ += c == '\n' ? 1 : 0;
      field += c;
    }
    refuse(opened, "a quoted field that is never closed");
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

}  // namespace

std::vector<CsvRow> parse_csv(std::string_view text, const std::string& name) {
  return Parser(text, name).rows();
}

}  // namespace zero::data
