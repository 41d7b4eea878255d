#include <vernier/data/data_source.h>

#include <ATen/ops/_unique2.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/csv.h>
#include <vernier/data/digits.h>
#include <vernier/data/numpy.h>
#include <vernier/data/transforms.h>
#include <vernier/error.h>
#include <vernier/plugin.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>
#include <unordered_map>

#include "csv/csv_fit.h"
#include "csv/csv_values.h"
#include "data/tensor_dataset.h"

namespace vernier {

namespace {

struct Name {
  std::string path, part;  // "x.npz", "images"
};

std::string ending_of(const std::string& path) {
  const auto ending = std::filesystem::path(path).extension().string();
  return ending == ".npy" || ending == ".npz" || ending == ".csv" || ending == ".safetensors" ? ending : "";
}

Name parse(const std::string& name) {
  for (auto colon = name.find(':'); colon != std::string::npos; colon = name.find(':', colon + 1)) {
    if (!ending_of(name.substr(0, colon)).empty()) return {name.substr(0, colon), name.substr(colon + 1)};
  }
  return {name, ""};
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

Tensors read_tensors(const std::string& path) {
  try {
    return load_safetensors(path);
  } catch (const Error& error) {
    refuse(error.what());
  }
}

torch::Tensor pick(const Tensors& tensors, const Name& name) {
  const auto found = tensors.find(name.part);
  if (found != tensors.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [key, tensor] : tensors) names.push_back(key);
  const auto has = names.empty() ? "nothing" : some_of(names);
  if (name.part.empty()) refuse("'" + name.path + "' has " + has + "; name one, as in \"" + name.path + ":NAME\"");
  refuse("'" + name.path + "' has no '" + name.part + "'; it has " + has);
}

bool is_whole_number(const std::string& word) {
  std::int64_t number = 0;
  const auto* end = word.data() + word.size();
  const auto [last, error] = std::from_chars(word.data(), end, number);
  return error == std::errc() && last == end;
}

void refuse_other_order(const std::string& path, const std::vector<std::string>& now,
                        const std::vector<std::string>& before) {
  if (now == before || now.size() != before.size() || !std::ranges::is_permutation(now, before)) return;
  refuse("'" + path + "' is named with the columns " + some_of(now) + ", and the model learned from " +
         some_of(before) + ", in this order; name the file alone");
}

// words, columns: of another file. Numbers that became words are numbers here too.
void read_table(const Name& name, const std::vector<std::string>& words, const std::vector<std::string>& columns,
                const CsvOptions& form, Source& source) {
  auto options = form;
  options.columns = name.part.empty() ? columns : split_at_commas(name.part);
  refuse_other_order(name.path, options.columns, columns);
  options.sorted = true;
  CsvSchema schema;
  if (!words.empty() && options.columns.size() == 1 && !std::ranges::all_of(words, is_whole_number)) {
    schema.columns = {{options.columns[0], CsvType::category, words, {}}};
  }
  const auto table = schema.columns.empty() ? read_csv(name.path, options) : read_csv(name.path, schema, options);
  for (const auto& column : table.schema.columns) source.columns.push_back(column.name);
  CsvTable lines;  // without the numbers, which the source may copy
  lines.path = table.path, lines.first_line = table.first_line, lines.long_rows = table.long_rows;
  lines.more_files = table.more_files;
  source.where = [lines](std::int64_t row) { return lines.where(row); };
  if (source.columns.size() == 1 && table.schema.columns[0].type == CsvType::category) {
    source.tensor = table.categories.select(1, 0);
    source.words = table.schema.columns[0].vocabulary;
    return;
  }
  for (const auto& column : table.schema.columns) {
    if (column.type != CsvType::number) {
      refuse("'" + name.path + "' has " + (column.type == CsvType::category ? "words" : "dates") + " in column '" +
             column.name + "'; name the columns of numbers, as in \"" + name.path + ":first,second\"");
    }
  }
  source.tensor = options.columns.size() == 1 ? table.numbers.select(1, 0) : table.numbers;
}

// LibTorch copies unsigned integers of more than 8 bits, but does not compute with them.
torch::Tensor without_unsigned(const std::string& name, const torch::Tensor& numbers) {
  const auto type = numbers.scalar_type();
  if (type != torch::kUInt16 && type != torch::kUInt32 && type != torch::kUInt64) return numbers;
  const auto wide = numbers.to(torch::kInt64);
  const auto bad = wide.reshape({wide.size(0), -1}).lt(0).any(1).nonzero();
  if (bad.numel() == 0) return wide;
  refuse(c10::str("'", name, "' has a number of 2^63 or more in row ", bad[0][0].item<std::int64_t>(),
                  ", which int64 cannot hold"));
}

class SourceDataset final : public TensorDataset {
 public:
  SourceDataset(std::vector<torch::Tensor> tensors, std::string name, std::string fingerprint,
                std::function<std::string(std::int64_t)> where)
      : TensorDataset(std::move(tensors)),
        name_(std::move(name)),
        fingerprint_(std::move(fingerprint)),
        where_(std::move(where)) {}
  std::string where(std::int64_t index) const override {
    return where_ ? where_(index) : c10::str("'", name_, "' sample ", index);
  }
  std::string fingerprint() const override { return c10::str(size(), " samples, ", fingerprint_); }

 private:
  std::string name_, fingerprint_;
  std::function<std::string(std::int64_t)> where_;
};

}  // namespace

Source read_source(const std::string& name, const std::vector<std::string>& words,
                   const std::vector<std::string>& columns, const CsvOptions& form) {
  const auto parts = parse(name);
  const auto ending = ending_of(parts.path);
  Source source;
  source.name = name;
  if (ending == ".npy") {
    if (!parts.part.empty()) refuse("\"" + name + "\": a .npy file has one array; write \"" + parts.path + "\"");
    source.tensor = read_npy(parts.path);
  } else if (ending == ".npz") {
    source.tensor = parts.part.empty() ? pick(read_npz(parts.path), parts) : read_npz(parts.path, parts.part);
  } else if (ending == ".safetensors") {
    source.tensor = pick(read_tensors(parts.path), parts);
  } else if (ending == ".csv") {
    read_table(parts, words, columns, form, source);
  } else {
    refuse("'" + name +
           "' is not a source of data; name a file that ends in .npy, .npz:NAME, .safetensors:NAME, .csv or "
           ".csv:COLUMN,COLUMN");
  }
  if (source.tensor.dim() == 0) refuse("'" + name + "' has one number and no dimension of samples");
  if (source.tensor.size(0) == 0) refuse("'" + name + "' has no samples");
  if (source.tensor.numel() == 0) {
    refuse(c10::str("'", name, "' has the shape ", source.tensor.sizes(), ", which has no number; give it some"));
  }
  if (source.tensor.is_floating_point()) source.tensor = as_floats(source.tensor);
  source.tensor = without_unsigned(name, source.tensor);
  source.tensor = source.tensor.contiguous();
  return source;
}

std::string file_of(const std::string& name) {
  return parse(name).path;
}

std::string same_part(const std::string& name, const std::string& file) {
  const auto part = parse(name).part;
  if (part.empty() || !parse(file).part.empty() || ending_of(file) == ".npy") return file;
  return file + ":" + part;
}

void warn_if_in_both(const std::string& id, const std::vector<std::string>& data,
                     const std::vector<std::string>& validation) {
  // The files of a source, whatever columns it names; or the array that it names in a file of several.
  const auto parts_of = [](const std::string& source) {
    const auto path = file_of(source), ending = ending_of(path);
    auto parts = csv_files(path);
    if (ending != ".npz" && ending != ".safetensors") return parts;
    for (auto& part : parts) part += source.substr(path.size());
    return parts;
  };
  const auto id_of = [](const std::string& part) { return std::filesystem::weakly_canonical(part).string(); };
  std::set<std::string> trained_on, in_both;
  for (const auto& source : data) {
    for (const auto& part : parts_of(source)) trained_on.insert(id_of(part));
  }
  for (const auto& source : validation) {
    auto parts = parts_of(source);
    std::erase_if(parts, [&](const auto& part) { return !trained_on.contains(id_of(part)); });
    if (parts.empty()) return;  // its samples are others
    in_both.insert(parts.begin(), parts.end());
  }
  for (const auto& part : in_both) {
    log(Level::warning, id,
        "'" + part + "' is in the training data and in the validation, so the model trains on what is held out");
  }
}

namespace {

// A file alone, as in --set task.data=new.csv, has the parts of the one that was trained on. before: what its option
// named then.
NamedData::Files with_parts(NamedData::Files files, const NamedData::Files& trained, const NamedData::Files& before) {
  const auto has_part = [](const std::string& name) { return name != file_of(name); };
  if (files.names.size() == 1 && !has_part(files.names[0]) && std::ranges::all_of(trained.names, has_part)) {
    files.names = std::vector(trained.names.size(), files.names[0]);
  }
  const bool follows = files.targets.empty() || (files.targets == before.targets && before.is_one_file());
  if (follows && trained.is_one_file()) files.targets = file_of(files.names[0]);
  if (!files.targets.empty()) files.targets = same_part(trained.targets, files.targets);
  std::ranges::transform(trained.names, files.names, files.names.begin(), same_part);
  return files;
}

}  // namespace

State NamedData::facts(const std::vector<std::string>& contents, const DatasetPtr& held_out) const {
  State facts;
  put_words(facts, "named/data", training.names);
  facts.put("named/targets", training.targets);
  put_words(facts, "named/validation", validation.names);
  facts.put("named/validation_targets", validation.targets);
  put_words(facts, "named/contents", contents);
  facts.put("named/held_out", held_out ? held_out->fingerprint() : "");
  return facts;
}

void NamedData::read_again(const State& learned, const std::function<std::vector<std::string>(const Files&)>& read,
                           const std::function<DatasetPtr()>& hold_out) const {
  const Files trained{words_of(learned, "named/data"), learned.text("named/targets")};
  const Files held{words_of(learned, "named/validation"), learned.text("named/validation_targets")};
  const auto remedy = "; name other data, as in --set " +
                      (is_list ? "'task." + option + "=[\"FILE\"]'" : "task." + option + "=FILE") +
                      (trained.targets.empty() ? "" : " --set task." + targets_option + "=FILE");
  const auto read_all = [&](const Files& files) {
    for (const auto& name : files.names) {
      if (csv_files(file_of(name)).empty()) refuse("'" + file_of(name) + "' is not here" + remedy);
    }
    if (files.targets.empty() && !trained.targets.empty()) refuse("'" + files.names[0] + "' has no targets" + remedy);
    return read(files);
  };
  // Several paths may name a file.
  const auto are_same = [](const Files& files, const Files& others) {
    const auto path_of = [](const std::string& name) {
      return std::filesystem::weakly_canonical(std::filesystem::current_path() / name);
    };
    return std::ranges::equal(files.names, others.names, {}, path_of, path_of);
  };
  const auto data = with_parts(training, trained, trained);
  const bool validates_others = validation.is_given() && !are_same(validation, held);
  const bool is_other = !validates_others && !are_same(data, trained);
  const auto own = validates_others ? with_parts(validation, trained, held) : validation.is_given() ? validation : held;
  if (!is_other && own.is_given()) return void(read_all(own));
  const auto before = words_of(learned, "named/contents"), now = read_all(data);
  if (is_other && std::ranges::find_first_of(now, before) == now.end()) return;
  if (now == before) {
    if (own.is_given()) return void(read_all(own));
    const auto part = hold_out();
    if (!part || part->size() == 0 || part->fingerprint() == learned.text("named/held_out")) return;
  }
  refuse("'" + c10::Join("', '", data.names) +
         "': the model was trained on it, and since then it has changed, or options that read it or hold samples out" +
         remedy);
}

void require_finite(const Source& source) {
  if (!source.tensor.is_floating_point()) return;
  const auto flat = source.tensor.reshape({source.tensor.size(0), -1});
  const auto bad = at::isfinite(flat).all(1).logical_not().nonzero();
  if (bad.numel() == 0) return;
  refuse(c10::str("'", source.name, "' has a NaN or infinite number in row ", bad[0][0].item<std::int64_t>(),
                  ", counted from 0, and in ", bad.size(0) - 1, " others; remove or fill them"));
}

namespace {

std::string named(const Classes& classes) {
  if (classes.words.empty()) return c10::str("0 to ", classes.count - 1);
  return some_of(classes.words);
}

// The labels as whole numbers, int64 [samples].
torch::Tensor whole_numbers(const Source& source) {
  require_finite(source);
  const auto& tensor = source.tensor;
  const auto labels = tensor.to(torch::kInt64).contiguous();
  const auto refuse_label = [&](const torch::Tensor& rows, const char* reason) {
    if (rows.numel() == 0) return;
    const auto row = rows[0][0].item<std::int64_t>();
    refuse(c10::str("'", source.name, "' has the label ", tensor[row].item<double>(), " in row ", row, reason));
  };
  refuse_label((labels != tensor).nonzero(), "; labels are whole numbers, or words");
  refuse_label((labels == -100).nonzero(),
               ", which PyTorch's losses leave out; delete the samples that have it, or "
               "give the class a name");
  if (tensor.is_floating_point()) {
    const bool is_wide = tensor.scalar_type() == torch::kFloat64;
    refuse_label((tensor.abs() >= (is_wide ? 0x1p53 : 0x1p24)).nonzero(),
                 is_wide ? ", too large to be exact in float64; save labels as int64"
                         : ", too large to be exact in float32; save labels as int64");
  }
  return labels;
}

void refuse_too_many(const Source& source, std::int64_t classes, const std::string& range,
                     const std::string& for_numbers) {
  const auto samples = source.tensor.size(0);
  if (samples < 20 || classes * 2 <= samples) return;
  refuse(c10::str("'", source.name, "' has ", classes, " different labels in ", samples, " samples", range,
                  ", too many for classes", for_numbers.empty() ? "" : "; to predict numbers, " + for_numbers));
}

// Learns the classes of a source.
torch::Tensor first_codes(const Source& source, Classes& classes, const std::string& for_numbers) {
  if (!source.words.empty()) {
    refuse_too_many(source, std::ssize(source.words), "", "");
    classes = {std::ssize(source.words), source.words};
    return source.tensor.to(torch::kInt64);
  }
  const auto numbers = whole_numbers(source);
  const auto [different, codes, none] = at::_unique2(numbers, /*sorted=*/true, /*return_inverse=*/true);
  const auto* label = different.const_data_ptr<std::int64_t>();
  const auto count = different.numel();
  refuse_too_many(source, count, c10::str(", from ", label[0], " to ", label[count - 1]), for_numbers);
  classes = {count, {}};
  if (label[0] == 0 && label[count - 1] == count - 1) return numbers;
  for (std::int64_t i = 0; i < count; ++i) classes.words.push_back(std::to_string(label[i]));
  return codes;
}

}  // namespace

torch::Tensor codes_of(const Source& source, Classes& classes, const std::string& for_numbers) {
  if (source.tensor.dim() != 1) {
    refuse(c10::str("'", source.name, "' has the shape ", source.tensor.sizes(), "; labels have [samples]"));
  }
  refuse_left_out(source.name, source.words);
  if (classes.count == 0) return first_codes(source, classes, for_numbers);
  if (!source.words.empty() && source.words == classes.words) return source.tensor.to(torch::kInt64);
  std::unordered_map<std::string, std::int64_t> codes;
  for (std::size_t i = 0; i < classes.words.size(); ++i) codes[classes.words[i]] = static_cast<std::int64_t>(i);
  auto labels = (source.words.empty() ? whole_numbers(source) : source.tensor.to(torch::kInt64)).clone();
  auto* label = labels.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < labels.numel(); ++row) {
    const auto word =
        source.words.empty() ? std::to_string(label[row]) : source.words.at(static_cast<std::size_t>(label[row]));
    const auto found = codes.find(word);
    if (found != codes.end()) {
      label[row] = found->second;
    } else if (!classes.words.empty() || !source.words.empty() || label[row] < 0 || label[row] >= classes.count) {
      refuse(
          c10::str("'", source.name, "' has the label ", word, " in row ", row, "; the classes are ", named(classes)));
    }
  }
  return labels;
}

torch::Tensor codes_of(const Source& source, std::int64_t classes, std::int64_t left_out) {
  require_finite(source);
  const auto& all = source.tensor;
  const auto labels = all.to(torch::kInt64);
  const auto counts = all != left_out;
  const auto refuse_some = [&](const torch::Tensor& are_wrong, const std::string& reason) {
    const auto places = are_wrong.nonzero();
    if (places.size(0) == 0) return;
    refuse(c10::str("'", source.name, "' has the label ", all.masked_select(are_wrong)[0].item<double>(), " in row ",
                    places[0][0].item<std::int64_t>(), reason));
  };
  refuse_some(labels != all, "; labels are whole numbers");
  refuse_some(counts & ((labels < 0) | (labels >= classes)), c10::str("; the model has the classes 0 to ", classes - 1,
                                                                      ", and ignore_index names a label to leave out"));
  return labels.masked_fill(~counts, -100);
}

std::vector<std::string> names_of(const Classes& classes) {
  auto names = classes.words;
  for (auto i = std::ssize(names); i < classes.count; ++i) names.push_back(std::to_string(i));
  return names;
}

namespace {

// Returns whether whole numbers in order are counts, by how often each is there. A part of the samples gives the same
// answer: rare numbers hardly change the expected number of different ones in half of the samples.
bool are_counts(const torch::Tensor& different, const torch::Tensor& times, std::int64_t samples) {
  constexpr double smooth = 1.8, rare = 0.25, few = 9.3, most_drawn = 1000;
  const auto all = static_cast<double>(samples), drawn = std::min(most_drawn, all / 2);
  const auto count = different.numel();
  double before = 0, changes = 0, expected = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto here = times[i].item<double>();
    const bool is_next = i > 0 && different[i].item<double>() == different[i - 1].item<double>() + 1;
    changes += is_next ? std::abs(here - before) : here + before;
    expected += 1 - std::pow(1 - here / all, drawn);
    before = here;
  }
  changes += before;
  return expected > few && changes <= smooth * 2 * times.max().item<double>() &&
         times.min().item<double>() * static_cast<double>(count) < rare * all;
}

}  // namespace

torch::Tensor class_numbers(const torch::Tensor& numbers) {
  constexpr std::int64_t most = 20;
  constexpr double largest = 1e6;
  if (numbers.numel() == 0 || !((numbers.trunc() == numbers) & (numbers.abs() < largest)).all().item<bool>()) return {};
  const auto [different, none, times] = at::_unique2(numbers, /*sorted=*/true, false, /*return_counts=*/true);
  const auto count = different.numel();
  if (count < 2 || count > most || are_counts(different, times, numbers.numel())) return {};
  const auto first = different[0].item<double>(), last = different[count - 1].item<double>();
  const bool is_counted = (first == 0 || first == 1) && last - first == static_cast<double>(count - 1);
  // No table has 3.1 rows of each class, so 80 % of it are judged alike.
  const auto enough = (is_counted ? 3.1 : 6.2) * static_cast<double>(count);
  return static_cast<double>(numbers.numel()) >= enough ? different : torch::Tensor();
}

bool are_few_whole(const torch::Tensor& numbers) {
  constexpr std::int64_t most = 50;
  return numbers.trunc().equal(numbers) && std::get<0>(at::_unique(numbers)).numel() <= most;
}

std::string alike_words(const std::vector<std::string>& words) {
  constexpr std::size_t most = 1000, exact_digits = 15;
  if (words.size() > most) return "";
  std::unordered_map<std::string, std::string> seen;
  for (const auto& word : words) {
    std::string plain;
    for (const char c : word) plain += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
    const auto begin = plain.find_first_not_of(" \t\n"), end = plain.find_last_not_of(" \t\n");
    if (begin == std::string::npos) continue;
    plain = plain.substr(begin, end + 1 - begin);
    if (double number = 0; plain.size() <= exact_digits && parse_number(plain, {}, number)) {
      plain.assign(64, 0);
      plain.resize(std::to_chars(plain.data(), plain.data() + plain.size(), number).ptr - plain.data());
    }
    const auto [same, is_new] = seen.emplace(plain, word);
    if (is_new) continue;
    return "'" + shortened(same->second) + "' and '" + shortened(word) +
           "', which are two words; write them alike if they are one class";
  }
  return "";
}

std::string counted(const Classes& classes, const torch::Tensor& codes) {
  constexpr std::int64_t most = 10;
  const auto counts = codes.bincount({}, classes.count);
  const auto names = names_of(classes);
  auto line = c10::str(classes.count, classes.count == 1 ? " class: " : " classes: ");
  for (std::int64_t i = 0; i < std::min(most, classes.count); ++i) {
    const auto& name = names[static_cast<std::size_t>(i)];
    line += c10::str(i > 0 ? ", " : "", shortened(name, 40), " ", counts[i].item<std::int64_t>());
  }
  return classes.count > most ? c10::str(line, " and ", classes.count - most, " more") : line;
}

std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& target)> balanced_cross_entropy(
    const torch::Tensor& counts) {
  const auto wide = counts.to(torch::kFloat32);
  const auto weights = wide.sum() / (wide.clamp_min(1) * (wide > 0).sum());
  return [weights](const torch::Tensor& output, const torch::Tensor& target) {
    const auto each = at::cross_entropy_loss(output, target, {}, at::Reduction::None);
    return (each * weights.to(output.device(), output.scalar_type()).index_select(0, target)).mean();
  };
}

// A zero byte ends each: words may have line ends.
void put_words(State& state, const std::string& name, const std::vector<std::string>& words) {
  std::string all;
  for (const auto& word : words) all += word + '\0';
  state.put(name, all);
}

std::vector<std::string> words_of(const State& state, const std::string& name) {
  std::vector<std::string> words;
  std::istringstream in(state.text(name));
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  return words;
}

std::string fingerprint_of(const std::vector<torch::Tensor>& tensors) {
  return checksum_of_all(tensors);
}

DatasetPtr dataset_of(std::vector<torch::Tensor> tensors, std::string name, std::string fingerprint,
                      std::function<std::string(std::int64_t)> where) {
  return std::make_shared<SourceDataset>(std::move(tensors), std::move(name), std::move(fingerprint), std::move(where));
}

DatasetPtr of_one_size(const DatasetPtr& images, std::int64_t size, Pixels pixels) {
  if (size > 0) return transform(images, {resize_shorter(size, pixels), center_crop(size, size)});
  Random none(0, 0, 0);
  const auto first = images->get(0, none).at(0).sizes().vec();
  return transform(images, {[first](const torch::Tensor& image, Random&) {
                     if (image.sizes() == first) return image;
                     refuse(c10::str(first.size() == 4 ? "the clip" : "the image", " has the shape ", image.sizes(),
                                     ", and the first one ", c10::IntArrayRef(first), "; set `size`"));
                   }});
}

}  // namespace vernier
