// Images that a CSV file lists, with their labels.
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/csv.h>
#include <vernier/error.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "../csv/csv_fit.h"
#include "listed.h"

namespace vernier {

namespace {

// The code of each label of the list among the classes.
std::vector<std::int64_t> codes_among(const std::string& path, const std::vector<std::string>& labels,
                                      const std::vector<std::string>& classes) {
  std::vector<std::int64_t> codes;
  for (const auto& label : labels) {
    const auto place = std::ranges::find(classes, label);
    if (place == classes.end()) {
      refuse("'" + path + "' has the label '" + shortened(label) + "', which is none of the classes " +
             shortened(some_of(classes)));
    }
    codes.push_back(place - classes.begin());
  }
  return codes;
}

std::string why_not(const std::string& image) {
  try {
    read_image(image);
    return "'" + image + "' has changed while it was read";
  } catch (const Error& error) {
    return error.what();
  }
}

// Reads columns of words of a list.
CsvTable read_list(const std::string& path, const std::vector<std::string>& columns) {
  CsvOptions csv;
  csv.columns = columns;
  for (const auto& column : columns) csv.types[column] = CsvType::category;
  csv.missing = {""};
  csv.fill_remedy = "";
  csv.sorted = true;
  return read_csv(path, csv);
}

// Looks at the image or clip that a row names.
ListedImage image_in(const CsvTable& table, std::int64_t row, const std::string& path, std::int64_t label,
                     const ImageOptions& options, LeftOut& others) {
  namespace fs = std::filesystem;
  const auto file = table.categories[row][0].item<std::int64_t>();
  const auto& name = table.schema.columns.at(0).vocabulary[static_cast<std::size_t>(file)];
  const auto image = fs::path(path).parent_path() / name;
  std::error_code none;
  if (!fs::is_regular_file(image, none) && (options.frames == 0 || !fs::is_directory(image, none))) {
    refuse(table.where(row) + ": '" + shortened(image.string()) +
           (fs::exists(image, none) ? "' is not a file" : "' does not exist") +
           "; file names are relative to the folder of the list");
  }
  if (options.frames == 0 && !is_taken(image, false, others)) refuse(table.where(row) + ": " + why_not(image));
  return listed_image(image, name, label, options, others);
}

}  // namespace

std::vector<ListedImage> images_in_list(const std::string& path, const ImageOptions& options, LeftOut& left_out) {
  const auto table = read_list(path, {"file"});
  std::vector<ListedImage> images;
  for (std::int64_t row = 0; row < table.categories.size(0); ++row) {
    images.push_back(image_in(table, row, path, row, options, left_out));
  }
  return images;
}

bool is_image_list(const std::string& path) {
  auto ending = std::filesystem::path(path).extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".csv";
}

ImageFolder image_list(const std::string& path, const ImageOptions& options) {
  const auto table = read_list(path, {"file", "label"});
  const auto &files = table.schema.columns.at(0).vocabulary, &labels = table.schema.columns.at(1).vocabulary;
  refuse_left_out(path, labels);
  auto all = options;
  if (all.classes.empty()) all.classes = labels;
  const auto codes = codes_among(path, labels, all.classes);
  std::vector<ListedImage> images;
  std::map<std::int64_t, std::int64_t> rows;  // rows of each file
  LeftOut others;
  const auto columns = table.categories.contiguous();
  const auto* column = columns.const_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < columns.size(0); ++row, column += 2) {
    const auto file = column[0], label = codes[static_cast<std::size_t>(column[1])];
    const auto [first, is_new] = rows.emplace(file, row);
    if (!is_new) {
      refuse(table.where(row) + " has '" + shortened(files[static_cast<std::size_t>(file)]) + "' again, which " +
             table.where(first->second) + " has; name each file once");
    }
    images.push_back(image_in(table, row, path, label, options, others));
  }
  return folder_of_images(all, std::move(images), others);
}

}  // namespace vernier
