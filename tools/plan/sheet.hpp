#pragma once

#include <string>
#include <vector>

#include <zero/base/json.hpp>
#include <zero/base/table.hpp>

#include "quantity.hpp"

namespace zero::plan {

/// Figures that are printed as a table and written as JSON.
class Sheet {
 public:
  /// Bytes are printed in `unit`.
  explicit Sheet(Unit unit) : unit_(unit) {}

  /// More columns, of text or figures in `unit`: name() of the sheet's for bytes, "s" for seconds,
  /// "%" for parts of 1, empty for text and numbers.
  Sheet& columns(const std::vector<std::string>& headers, const std::string& unit = "",
                 const std::string& group = "");

  /// One value for each column: text, a number, a bool or null.
  void add(std::vector<base::Json> row) { rows_.push_back(std::move(row)); }

  std::string to_text() const;
  /// A list of objects. Keys are the headings, as in "model_states_params_bytes".
  base::Json to_json() const;

 private:
  std::string cell(const base::Json& value, const std::string& unit) const;
  std::string key(const base::Column& column) const;

  Unit unit_;
  std::vector<base::Column> columns_;
  std::vector<std::vector<base::Json>> rows_;
};

}  // namespace zero::plan
