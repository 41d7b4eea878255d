#include <c10/util/StringUtil.h>
#include <vernier/checksum.h>
#include <vernier/data/csv.h>

#include <algorithm>

#include "data/tensor_dataset.h"

namespace vernier {

namespace {

class CsvDataset final : public TensorDataset {
 public:
  explicit CsvDataset(CsvTable table) : TensorDataset({table.numbers}), table_(std::move(table)) {
    if (table_.categories.size(1) > 0) tensors_.push_back(table_.categories);
    if (table_.target.defined()) tensors_.push_back(table_.target);
  }
  std::string where(std::int64_t index) const override { return table_.where(index); }
  // The fingerprint of what was read: another choice of columns is another dataset.
  std::string fingerprint() const override {
    Checksum sum;
    for (const auto& tensor : tensors_) sum.add(tensor.const_data_ptr(), tensor.nbytes());
    return c10::str(size(), " rows, XXH3 ", sum.digits());
  }

 private:
  CsvTable table_;
};

}  // namespace

std::string CsvTable::where(std::int64_t row) const {
  const auto next = std::ranges::upper_bound(more_files, row, {}, &File::first_row);
  const auto file = next == more_files.begin() ? File{path, 0, first_line} : *std::prev(next);
  const auto after = std::ranges::lower_bound(long_rows, row, {}, [](const auto& entry) { return entry.first; });
  const bool has_long = after != long_rows.begin() && std::prev(after)->first >= file.first_row;
  const auto more = has_long ? std::prev(after)->second : 0;
  return c10::str("'", file.path, "' line ", file.first_line + row - file.first_row + more);
}

DatasetPtr csv_dataset(CsvTable table) {
  return std::make_shared<CsvDataset>(std::move(table));
}

}  // namespace vernier
