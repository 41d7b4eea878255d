#include "class_table.h"

#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/data/evaluation.h>
#include <vernier/error.h>

#include <vernier/json_text.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "common/text/numbers.h"
#include "common/text/text_table.h"
#include "files/json.h"

namespace vernier {

namespace {

constexpr std::size_t most_rows = 30;     // most classes that are all shown
constexpr std::size_t worst_rows = 20;    // rows shown if there are more classes
constexpr std::size_t most_columns = 12;  // most classes in the confusion matrix
constexpr std::size_t most_pairs = 10;

struct Score {
  std::int64_t hits = 0, said = 0, are = 0;
  double precision() const { return said == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(said); }
  double recall() const { return are == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(are); }
  double f1() const { return 2 * static_cast<double>(hits) / static_cast<double>(said + are); }
};

// Cuts between characters of UTF-8.
std::string cut(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  auto end = most - 1;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + "…";
}

std::string name_of(std::int64_t number, const std::vector<std::string>& names, std::size_t most) {
  const auto place = static_cast<std::size_t>(number);
  return cut(place < names.size() ? printable(names[place]) : std::to_string(number), most);
}

}  // namespace

std::string indented(const std::string& lines) {
  std::string text = "  ";
  for (const char c : lines) text += c == '\n' ? "\n  " : std::string(1, c);
  text.resize(text.size() - 2);  // after the last line
  return text;
}

void ClassTable::update(const torch::Tensor& output, const torch::Tensor& target) {
  const auto targets = target.reshape({-1});
  const auto is_known = (targets >= 0).nonzero().squeeze(1);
  const auto logits =
      output.movedim(1, -1).reshape({-1, output.size(1)}).index_select(0, is_known).to(torch::kCPU, torch::kFloat32);
  const auto [largest, place] = logits.max(1);
  const auto is_number = largest.isnan().logical_not();
  const auto predicted = at::where(is_number, place, -1).contiguous();  // -1: no class, as in the metric accuracy
  const auto right = targets.index_select(0, is_known).to(torch::kCPU, torch::kInt64).contiguous();
  const auto *codes = right.const_data_ptr<std::int64_t>(), *outputs = predicted.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < right.numel(); ++i) ++pairs_[{codes[i], outputs[i]}];
  if (output.dim() != 2) return;  // every pixel or token: their probabilities would fill the memory
  const auto rows = is_number.nonzero().squeeze(1);
  if (rows.numel() == 0) return;
  chances_.push_back(logits.index_select(0, rows).softmax(1));
  targets_.push_back(right.index_select(0, rows));
}

std::vector<std::int64_t> ClassTable::classes() const {
  std::set<std::int64_t> all;
  for (const auto& [pair, count] : pairs_) all.insert({pair.first, pair.second});
  all.erase(-1);
  return {all.begin(), all.end()};
}

// Fawcett, "An introduction to ROC analysis", 2006: a point for each threshold, equal scores together. The area is that
// of the trapezoids; null where the class is all samples or none.
OrderedJson ClassTable::roc_of(std::int64_t number) const {
  constexpr std::int64_t most_points = 200;
  if (chances_.empty()) return {{"auc", nullptr}, {"points", OrderedJson::array()}};
  const auto [scores, order] = at::cat(chances_).select(1, number).sort(0, /*descending=*/true);
  const auto is_class = (at::cat(targets_).index_select(0, order) == number).to(torch::kFloat64);
  const auto positives = is_class.sum().item<double>(), negatives = static_cast<double>(is_class.numel()) - positives;
  if (positives == 0 || negatives == 0) return {{"auc", nullptr}, {"points", OrderedJson::array()}};
  const auto last = at::ones({1}, torch::kBool);
  const auto ends = at::cat({scores.slice(0, 1) != scores.slice(0, 0, -1), last}).nonzero().squeeze(1);
  const auto zero = at::zeros({1}, torch::kFloat64);
  const auto hits = at::cat({zero, is_class.cumsum(0).index_select(0, ends) / positives});
  const auto misses = at::cat({zero, (1 - is_class).cumsum(0).index_select(0, ends) / negatives});
  OrderedJson points = OrderedJson::array();
  const auto count = hits.numel(), stride = (count + most_points - 1) / most_points;
  for (std::int64_t i = 0; i < count; i = i + 1 == count ? count : std::min(i + stride, count - 1)) {
    points.push_back({misses[i].item<double>(), hits[i].item<double>()});
  }
  return {{"auc", at::trapezoid(hits, misses).item<double>()}, {"points", std::move(points)}};
}

// Guo et al., "On calibration of modern neural networks", 2017: ten bins of equal width of the probability of the
// predicted class. The error is the mean over the samples of the distance of accuracy and probability in their bin.
OrderedJson ClassTable::calibration() const {
  if (chances_.empty()) return OrderedJson::object();
  constexpr int bins = 10;
  const auto [sure, predicted] = at::cat(chances_).to(torch::kFloat64).max(1);
  const auto is_right = (predicted == at::cat(targets_)).to(torch::kFloat64);
  const auto places = (sure * bins).ceil().clamp(1, bins).to(torch::kInt64) - 1;
  double error = 0;
  OrderedJson rows = OrderedJson::array();
  for (int bin = 0; bin < bins; ++bin) {
    const auto own = (places == bin).nonzero().squeeze(1);
    if (own.numel() == 0) continue;
    const auto mean = sure.index_select(0, own).mean().item<double>();
    const auto accuracy = is_right.index_select(0, own).mean().item<double>();
    error += std::abs(mean - accuracy) * static_cast<double>(own.numel()) / static_cast<double>(sure.numel());
    rows.push_back({{"above", 0.1 * bin}, {"samples", own.numel()}, {"probability", mean}, {"accuracy", accuracy}});
  }
  return {{"ece", error}, {"reliability", std::move(rows)}};
}

std::int64_t ClassTable::without_class() const {
  std::int64_t sum = 0;
  for (const auto& [pair, count] : pairs_) sum += pair.second < 0 ? count : 0;
  return sum;
}

OrderedJson ClassTable::json(const std::vector<std::string>& names) const {
  OrderedJson found = {{"ece", nullptr}, {"reliability", OrderedJson::array()}};
  found.update(calibration());
  const auto order = classes();
  OrderedJson words = OrderedJson::array(), matrix = OrderedJson::array(), curves = OrderedJson::array();
  for (const auto number : order) {
    words.push_back(name_of(number, names, 32));
    if (order.size() > most_columns) continue;
    OrderedJson row = OrderedJson::array();
    for (const auto other : order) {
      const auto pair = pairs_.find({number, other});
      row.push_back(pair == pairs_.end() ? 0 : pair->second);
    }
    matrix.push_back(std::move(row));
    curves.push_back(roc_of(number));
  }
  found["without_class"] = without_class();
  found.update({{"classes", std::move(words)}, {"confusion", std::move(matrix)}, {"roc", std::move(curves)}});
  return found;
}

std::string ClassTable::text(const std::vector<std::string>& names) const {
  const auto calibration_text = [this] {
    const auto found = calibration();
    if (found.empty()) return std::string();
    TextRows bins = {{"probability above", "samples", "mean probability", "accuracy"}};
    for (const auto& bin : found["reliability"]) {
      bins.push_back({print_number("%.1f", bin["above"]), json_text(bin["samples"]),
                      print_number("%.3g", bin["probability"]), print_number("%.3g", bin["accuracy"])});
    }
    return printed("\n  calibration: expected error %.4g", found["ece"].get<double>()) +
           ", the mean distance of accuracy and probability of the predicted class\n" + indented(aligned(bins, "rrrr"));
  };
  std::map<std::int64_t, Score> scores;
  std::vector<std::pair<std::int64_t, std::pair<std::int64_t, std::int64_t>>> confused;
  for (const auto& [pair, count] : pairs_) {
    scores[pair.first].are += count;
    if (pair.second < 0) continue;
    scores[pair.second].said += count;
    if (pair.first == pair.second) scores[pair.first].hits += count;
    if (pair.first != pair.second) confused.emplace_back(-count, pair);
  }
  std::vector<std::int64_t> order;
  for (const auto& [number, score] : scores) order.push_back(number);
  const bool are_many = order.size() > most_rows;
  if (are_many) {
    std::ranges::stable_sort(order, {}, [&](std::int64_t number) { return scores[number].f1(); });
    order.resize(worst_rows);
  }
  TextRows rows = {{"class", "precision", "recall", "f1", "support", "roc auc"}};
  double areas = 0;
  int with_area = 0;
  for (const auto number : order) {
    const auto& score = scores[number];
    const auto area = roc_of(number)["auc"];
    if (area.is_number()) areas += area.get<double>(), ++with_area;
    rows.push_back({name_of(number, names, 32), print_number("%.3g", score.precision()),
                    print_number("%.3g", score.recall()), print_number("%.3g", score.f1()), std::to_string(score.are),
                    area.is_number() ? print_number("%.4g", area.get<double>()) : ""});
  }
  auto text = indented(aligned(rows, "lrrrrr"));
  if (with_area > 2 && !are_many) {
    text += printed("  roc auc, each class against the others: mean %.4g\n", areas / with_area);
  }
  if (are_many) text += printed("  the worst of %zu classes\n", scores.size());
  if (const auto none = without_class(); none > 0) {
    text += c10::str("  outputs that have a NaN, and so no class: ", none, "; they count as wrong\n");
  }
  if (scores.size() <= most_columns) {
    TextRows matrix = {{"target \\ prediction"}};
    for (const auto number : order) matrix[0].push_back(name_of(number, names, 12));
    for (const auto number : order) {
      matrix.push_back({name_of(number, names, 32)});
      for (const auto other : order) {
        const auto found = pairs_.find({number, other});
        matrix.back().push_back(std::to_string(found == pairs_.end() ? 0 : found->second));
      }
    }
    return text + '\n' + indented(aligned(matrix, "l" + std::string(order.size(), 'r'))) + calibration_text();
  }
  if (confused.empty()) return text + calibration_text();
  std::ranges::sort(confused);
  TextRows most = {{"confused most: target", "prediction", "times"}};
  for (const auto& [count, pair] : confused) {
    if (most.size() > most_pairs) break;
    most.push_back({name_of(pair.first, names, 32), name_of(pair.second, names, 32), std::to_string(-count)});
  }
  return text + '\n' + indented(aligned(most, "llr")) + calibration_text();
}

void LabelTable::update(const torch::Tensor& output, const torch::Tensor& target) {
  const auto rows = [&](const torch::Tensor& tensor) {
    if (labels_ == 1) return tensor.reshape({-1, 1}).to(torch::kCPU, torch::kFloat64);
    return tensor.reshape(target.sizes()).movedim(1, -1).reshape({-1, labels_}).to(torch::kCPU, torch::kFloat64);
  };
  const auto logits = rows(output), are = rows(target);
  const auto says = (logits > 0) & ~are.isnan(), is = are > 0.5;
  const auto counts = at::stack({(says & is).sum(0), says.sum(0), is.sum(0), (~are.isnan()).sum(0)});
  counts_ = counts_.defined() ? counts_ + counts : counts;
  if (target.dim() > 2) return;  // a row for each pixel: its logits would fill the memory
  outputs_.push_back(logits), targets_.push_back(are);
}

std::string LabelTable::text(const std::vector<std::string>& names) const {
  TextRows rows = {{"label", "precision", "recall", "f1", "auc", "support"}};
  std::vector<std::string> without;
  for (std::int64_t i = 0; i < labels_; ++i) {
    const auto count = [&](std::int64_t of) { return counts_[of][i].item<std::int64_t>(); };
    const Score score{count(0), count(1), count(2)};
    const auto name = name_of(i, names, 40);
    const bool has_both = score.are > 0 && score.are < count(3) && !outputs_.empty();
    if (!has_both && !outputs_.empty()) without.push_back("'" + name + "'");
    const auto area = metric_by_name("auc", {Targets::Kind::labels, 1, {}});
    if (has_both) {
      const auto all = at::cat(targets_).select(1, i), known = (~all.isnan()).nonzero().squeeze(1);
      area->update(at::cat(outputs_).select(1, i).index_select(0, known),
                   (all.index_select(0, known) > 0.5).to(torch::kFloat64));
    }
    rows.push_back({name, print_number("%.4g", score.precision()), print_number("%.4g", score.recall()),
                    print_number("%.4g", score.said + score.are == 0 ? 0 : score.f1()),
                    has_both ? print_number("%.4g", area->value().item<double>()) : "-", std::to_string(score.are)});
  }
  const auto text = indented(aligned(rows, "lrrrrr"));
  if (without.empty()) return text;
  return text + "auc is not defined where all targets of a label are the same: " + some_of(without) + '\n';
}

}  // namespace vernier
