#include "class_table.h"

#include <ATen/ATen.h>
#include <vernier/data/evaluation.h>
#include <vernier/error.h>

#include <algorithm>

#include "common/text/numbers.h"
#include "common/text/text_table.h"

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

std::string indented(const std::string& lines) {
  std::string text = "  ";
  for (const char c : lines) text += c == '\n' ? "\n  " : std::string(1, c);
  text.resize(text.size() - 2);  // after the last line
  return text;
}

}  // namespace

void ClassTable::update(const torch::Tensor& output, const torch::Tensor& target) {
  const auto predicted = output.argmax(1).to(torch::kCPU).contiguous();
  const auto right = target.to(torch::kCPU, torch::kInt64).contiguous();
  const auto *targets = right.const_data_ptr<std::int64_t>(), *outputs = predicted.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < right.numel(); ++i) {
    if (targets[i] >= 0) ++pairs_[{targets[i], outputs[i]}];
  }
}

std::string ClassTable::text(const std::vector<std::string>& names) const {
  std::map<std::int64_t, Score> scores;
  std::vector<std::pair<std::int64_t, std::pair<std::int64_t, std::int64_t>>> confused;
  for (const auto& [pair, count] : pairs_) {
    scores[pair.first].are += count;
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
  TextRows rows = {{"class", "precision", "recall", "f1", "support"}};
  for (const auto number : order) {
    const auto& score = scores[number];
    rows.push_back({name_of(number, names, 32), print_number("%.3g", score.precision()),
                    print_number("%.3g", score.recall()), print_number("%.3g", score.f1()), std::to_string(score.are)});
  }
  auto text = indented(aligned(rows, "lrrrr"));
  if (are_many) text += printed("  the worst of %zu classes\n", scores.size());
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
    return text + '\n' + indented(aligned(matrix, "l" + std::string(order.size(), 'r')));
  }
  if (confused.empty()) return text;
  std::ranges::sort(confused);
  TextRows most = {{"confused most: target", "prediction", "times"}};
  for (const auto& [count, pair] : confused) {
    if (most.size() > most_pairs) break;
    most.push_back({name_of(pair.first, names, 32), name_of(pair.second, names, 32), std::to_string(-count)});
  }
  return text + '\n' + indented(aligned(most, "llr"));
}

void LabelTable::update(const torch::Tensor& output, const torch::Tensor& target) {
  const auto rows = [&](const torch::Tensor& tensor) {
    if (labels_ == 1) return tensor.reshape({-1, 1}).to(torch::kCPU, torch::kFloat64);
    return tensor.reshape(target.sizes()).movedim(1, -1).reshape({-1, labels_}).to(torch::kCPU, torch::kFloat64);
  };
  outputs_.push_back(rows(output)), targets_.push_back(rows(target));
}

std::string LabelTable::text(const std::vector<std::string>& names) const {
  const auto outputs = at::cat(outputs_), targets = at::cat(targets_);
  TextRows rows = {{"label", "precision", "recall", "f1", "auc", "support"}};
  std::vector<std::string> without;
  for (std::int64_t i = 0; i < labels_; ++i) {
    const auto known = (~targets.select(1, i).isnan()).nonzero().squeeze(1);
    const auto logits = outputs.select(1, i).index_select(0, known),
               target = targets.select(1, i).index_select(0, known);
    const auto says = logits > 0, is = target > 0.5;
    const auto count = [](const torch::Tensor& some) { return some.sum().item<std::int64_t>(); };
    const Score score{count(says & is), count(says), count(is)};
    const auto name = name_of(i, names, 40);
    const bool has_both = score.are > 0 && score.are < known.numel();
    if (!has_both) without.push_back("'" + name + "'");
    const auto area = metric_by_name("auc", {Targets::Kind::labels, 1, {}});
    area->update(logits, is.to(torch::kFloat64));
    rows.push_back({name, print_number("%.4g", score.precision()), print_number("%.4g", score.recall()),
                    print_number("%.4g", score.said + score.are == 0 ? 0 : score.f1()),
                    has_both ? print_number("%.4g", area->value().item<double>()) : "-", std::to_string(score.are)});
  }
  const auto text = indented(aligned(rows, "lrrrrr"));
  if (without.empty()) return text;
  return text + "auc is not defined where all targets of a label are the same: " + some_of(without) + '\n';
}

}  // namespace vernier
