#include "sheet.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace zero::plan {

Sheet& Sheet::columns(const std::vector<std::string>& headers, const std::string& unit,
                      const std::string& group) {
  for (const std::string& header : headers) {
    columns_.push_back({header, base::Align::kLeft, unit, group});
  }
  return *this;
}

std::string Sheet::cell(const base::Json& value, const std::string& unit) const {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (unit == name(unit_)) return in(value.get<double>(), unit_);
  if (unit == "%") return base::fixed(100 * value.get<double>(), 1);
  if (value.is_number_integer()) return base::with_thousands(value.get<std::int64_t>());
  return base::fixed(value.get<double>(), 3);
}

std::string Sheet::key(const base::Column& column) const {
  std::string key = column.group + (column.group.empty() ? "" : "_") + column.header;
  std::ranges::replace(key, ' ', '_');
  return key + (column.unit == name(unit_) ? "_bytes" : column.unit == "s" ? "_seconds" : "");
}

std::string Sheet::to_text() const {
  std::vector<base::Column> columns = columns_;
  for (const std::vector<base::Json>& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].is_number()) columns[i].align = base::Align::kRight;
    }
  }
  base::Table table(columns);
  for (const std::vector<base::Json>& row : rows_) {
    std::vector<std::string> cells;
    for (std::size_t i = 0; i < row.size(); ++i) cells.push_back(cell(row[i], columns[i].unit));
    table.add_row(std::move(cells));
  }
  return table.to_text();
}

base::Json Sheet::to_json() const {
  base::Json list = base::Json::array();
  for (const std::vector<base::Json>& row : rows_) {
    base::Json& object = list.emplace_back(base::Json::object());
    for (std::size_t i = 0; i < row.size(); ++i) object[key(columns_[i])] = row[i];
  }
  return list;
}

}  // namespace zero::plan
