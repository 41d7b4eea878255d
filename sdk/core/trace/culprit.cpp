#include <vernier/culprit.h>

#include <ATen/Context.h>
#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <vernier/roles.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace vernier {

namespace {

using Rows = std::vector<std::int64_t>;

constexpr std::size_t most_guilty = 8;  // guilty samples that one search finds

std::string plural(std::size_t count, const char* one, const char* many) {
  return count == 1 ? one : many;
}

bool has_running_statistics(const torch::nn::Module& model) {
  return std::ranges::any_of(model.named_buffers(),
                             [](const auto& buffer) { return buffer.key().ends_with("running_mean"); });
}

torch::Tensor random_state(torch::Device device) {
  auto generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

// These rows of a batch, which are in ascending order.
Batch rows_of(const Batch& batch, const Rows& rows) {
  std::vector<Batch> parts;
  for (std::size_t i = 0; i < rows.size();) {
    std::size_t end = i + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    parts.push_back(batch.narrow(rows[i], static_cast<std::int64_t>(end - i)));
    i = end;
  }
  if (parts.empty()) parts.push_back(batch.narrow(0, 0));
  auto part = parts.size() == 1 ? std::move(parts.front()) : Batch::concatenated(parts);
  part.is_share = batch.is_share;
  return part;
}

}  // namespace

Symptom not_finite(Run& run) {
  const auto loss = run.loss.item<double>();
  const bool is_of_loss = !std::isfinite(loss), is_scaled = run.found_inf.defined();
  const auto is_bad = [is_of_loss, is_scaled](Run& part, double) {
    if (!std::isfinite(part.loss.item<double>())) return true;
    if (is_scaled) return !is_of_loss && part.found_inf.item<float>() != 0;
    return !std::isfinite(part.gradient_norm().item<double>());
  };
  return {!is_of_loss ? "the gradients not finite" : std::isnan(loss) ? "the loss nan" : "the loss inf", is_bad};
}

std::string Culprits::numbers() const {
  std::string text;
  for (const auto number : indices.empty() ? rows : indices) text += (text.empty() ? "" : " ") + std::to_string(number);
  return text;
}

std::string Culprits::text() const {
  const auto cost = c10::str(" (", reruns, " reruns)");
  if (is_transient) return "no sample is to blame: the same batch once more is " + good;
  if (is_everywhere) return "no single sample is to blame: every part of the batch makes " + what + cost;
  std::string all;
  if (!names.empty()) {
    all = some_of(names) + plural(names.size(), " alone makes ", " each make ") + what;
    if (!is_complete) all += ", and others may do so too";
  }
  for (const auto& part : together) {
    all += (all.empty() ? "" : "; ") + part + " make " + what + " only together";
  }
  if (all.empty()) return "no part of the batch makes " + what + " alone" + cost;
  const auto others = samples - static_cast<std::int64_t>(names.size());
  if (!names.empty() && others > 0) {
    const auto* verb = others == 1 ? " is " : " are ";
    const auto count = others == 1 ? "the other one" : c10::str("the other ", others);
    if (is_rest_good) all += "; " + count + verb + good;
    if (!is_rest_good && is_complete) all += "; " + count + (others == 1 ? " makes " : " make ") + what + " too";
  }
  return all + (caveat.empty() ? "" : "; " + caveat);
}

// One search. Rows are those of the whole batch, over all ranks; each rank computes those that it has.
struct CulpritSearch::Search {
  Search(Run& of, const Symptom& looked_for, const Task* namer) : run(of), symptom(looked_for), task(namer) {
    gather_rows();
    found.samples = std::ssize(weights);
    found.what = symptom.what;
    found.good = symptom.good;
    whole_weight = std::accumulate(weights.begin(), weights.end(), 0.0);
    own_weight = run.batch.weight.value_or(0);
    // Statistics of a batch need several samples in each micro-batch.
    has_statistics = has_running_statistics(*run.model);
    least = has_statistics ? 2 * run.micro_batches : run.micro_batches;
    limit = static_cast<std::int64_t>(most_guilty) * (2 * std::bit_width(weights.size()) + 4);
  }

  void gather_rows() {
    State own;
    std::vector<double> row_weights;
    for (std::int64_t i = 0; i < run.batch.samples; ++i) {
      const auto weight = task == nullptr ? std::nullopt : task->weight_of(run.batch.narrow(i, 1));
      row_weights.push_back(weight.value_or(1));
    }
    own.put("weights", torch::tensor(row_weights, torch::kFloat64));
    own.put("indices", torch::tensor(run.batch.indices, torch::kInt64));
    const auto all = run.control->gather(own);
    for (const auto& state : all) {
      first_of_rank.push_back(std::ssize(weights));
      const auto tensor = state.tensor("weights"), numbers = state.tensor("indices");
      const auto* from = tensor.const_data_ptr<double>();
      weights.insert(weights.end(), from, from + tensor.numel());
      const auto* index = numbers.const_data_ptr<std::int64_t>();
      indices.insert(indices.end(), index, index + numbers.numel());
    }
    first_of_rank.push_back(std::ssize(weights));
    if (indices.size() != weights.size()) indices.clear();
    for (std::int64_t row = 0; row < std::ssize(weights); ++row) {
      if (weights[static_cast<std::size_t>(row)] > 0) candidates.push_back(row);
    }
  }

  bool can_be_filled_up(Rows rows) const { return fill_up(rows); }

  // Adds good rows where a rank has fewer than it has micro-batches, or too few for the statistics of a batch. False:
  // there are not enough for these.
  bool fill_up(Rows& rows) const {
    for (std::size_t rank = 0; rank + 1 < first_of_rank.size(); ++rank) {
      const auto is_here = [&](std::int64_t row) {
        return row >= first_of_rank[rank] && row < first_of_rank[rank + 1];
      };
      auto count = std::ranges::count_if(rows, is_here);
      for (auto row = good_rows.begin(); row != good_rows.end() && count > 0 && count < least; ++row) {
        if (!is_here(*row) || std::ranges::find(rows, *row) != rows.end()) continue;
        rows.push_back(*row);
        ++count;
      }
      if (has_statistics && count > 0 && count < least) return false;
    }
    std::ranges::sort(rows);
    return true;
  }

  // Computes a part. Returns whether it is bad. result: gets what was computed if it is good.
  bool is_bad(Rows rows, StepResult* result = nullptr) try {
    fill_up(rows);
    ++found.reruns;
    double weight = 0;
    for (const auto row : rows) weight += weights[static_cast<std::size_t>(row)];
    share = result != nullptr ? 1 : weight / whole_weight;
    is_part = result == nullptr;
    bool bad = true;
    torch::Tensor random;
    const auto begin = [&] {
      random = random_state(run.device);
      const auto rank = static_cast<std::size_t>(run.control->rank());
      Rows own;
      for (const auto row : rows) {
        if (row >= first_of_rank[rank] && row < first_of_rank[rank + 1]) own.push_back(row - first_of_rank[rank]);
      }
      if (std::ssize(own) < run.batch.samples) run.batch = rows_of(run.batch, own);
    };
    run.control->rerun(begin, [&] {
      bad = symptom.is_bad(run, share);
      draws = draws || !random_state(run.device).equal(random);
      if (result != nullptr && !bad) result->take(run);
    });
    return bad;
  } catch (const std::exception&) {  // such as a part that has only padding
    is_uncertain = true;
    return false;
  }

  bool is_done() {
    if (found.rows.size() < most_guilty && found.reruns < limit) return false;
    found.is_complete = false;
    return true;
  }

  Rows candidates_in(std::size_t from, std::size_t to) const {
    return {candidates.begin() + static_cast<std::ptrdiff_t>(from),
            candidates.begin() + static_cast<std::ptrdiff_t>(to)};
  }

  // Candidates from … to - 1 are bad: computed so, or else because a larger part was, and its first half is good.
  // computed: the smallest part around these that was computed.
  void halve(std::size_t from, std::size_t to, std::pair<std::size_t, std::size_t> computed) {
    const bool is_computed = computed == std::pair(from, to);
    const bool is_one = to - from == 1;
    if (is_one && is_computed) return found.rows.push_back(candidates[from]);
    const auto middle = from + (to - from + 1) / 2;
    const bool can_compute = can_be_filled_up(candidates_in(from, middle));
    if (!can_compute && !is_last_pass) return deferred.push_back({from, to, computed});
    is_uncertain = is_uncertain || !can_compute;
    if (is_one && can_compute && is_bad(candidates_in(from, to))) return found.rows.push_back(candidates[from]);
    if (is_one || !can_compute) {
      const auto first = name_of(candidates[computed.first]), last = name_of(candidates[computed.second - 1]);
      const auto count = computed.second - computed.first;
      return found.together.push_back(c10::str("the ", count, " samples from ", first, " to ", last));
    }
    if (is_bad(candidates_in(from, middle))) {
      halve(from, middle, {from, middle});
      if (!is_done() && is_bad(candidates_in(middle, to))) {
        halve(middle, to, {middle, to});
      } else if (found.is_complete) {
        note_good(middle, to);
      }
    } else {
      note_good(from, middle);
      halve(middle, to, computed);
    }
  }

  void search() {
    halve(0, candidates.size(), {0, candidates.size()});
    is_last_pass = true;
    for (const auto& part : std::exchange(deferred, {})) {
      if (!is_done()) halve(part.from, part.to, part.computed);
    }
  }

  void note_good(std::size_t from, std::size_t to) {
    const auto rows = candidates_in(from, to);
    good_rows.insert(good_rows.end(), rows.begin(), rows.end());
  }

  std::string name_of(std::int64_t row) const {
    if (indices.empty()) return c10::str("row ", row, " of the batch");
    const auto index = indices[static_cast<std::size_t>(row)];
    const auto name = c10::str("sample ", index);
    const auto where = task == nullptr ? name : task->where(index);
    return where == name ? name : name + " (" + where + ")";
  }

  // Searches the rest as well, as long as that finds more: beside a large spike a smaller one does not show.
  void search_rest(StepResult& good) {
    std::size_t before = 0;
    while (found.rows.size() > before && found.is_complete) {
      before = found.rows.size();
      std::erase_if(candidates, [&](auto row) { return std::ranges::find(found.rows, row) != found.rows.end(); });
      if (candidates.empty()) return;
      found.is_rest_good = !is_bad(candidates, &good);
      if (found.is_rest_good || !found.together.empty() || is_done()) return;
      good_rows.clear();
      is_last_pass = false;
      search();
    }
  }

  void conclude(StepResult& good) {
    found.is_everywhere = found.rows.size() > 1 && good_rows.empty() && found.together.empty();
    if (found.is_everywhere) found.rows.clear();
    search_rest(good);
    std::ranges::sort(found.rows);
    for (const auto row : found.rows) {
      found.names.push_back(name_of(row));
      if (!indices.empty()) found.indices.push_back(indices[static_cast<std::size_t>(row)]);
    }
    const auto add = [&](bool applies, const char* text) {
      if (applies) found.caveat += (found.caveat.empty() ? "" : "; ") + std::string(text);
    };
    add(has_statistics, "samples influence each other through the statistics of the batch");
    add(is_uncertain, "some parts were too small to be computed alone");
    add(draws, "the parts drew other random numbers than the batch");
  }

  // At LossReady of a rerun: the part counts as in the whole batch, so that it overflows only where it did there.
  void weigh() const {
    if (!is_part) return;
    const bool is_alone = first_of_rank.size() == 2;
    const bool is_weighed = is_alone && own_weight > 0 && run.batch.weight.has_value();
    run.micro_batch_loss = run.micro_batch_loss * (is_weighed ? *run.batch.weight / own_weight : share);
  }

  Run& run;
  const Symptom& symptom;
  const Task* task;
  Culprits found;
  std::vector<double> weights;              // one for each row
  Rows indices, candidates, good_rows;      // candidates: rows with a weight
  std::vector<std::int64_t> first_of_rank;  // and the end
  double whole_weight = 0, own_weight = 0, share = 1;
  std::int64_t least = 0, limit = 0;
  // A bad part that is halved when the whole batch was looked at: the good rows that fill it up are known only then.
  struct Deferred {
    std::size_t from, to;
    std::pair<std::size_t, std::size_t> computed;
  };
  std::vector<Deferred> deferred;
  bool is_last_pass = false;
  bool has_statistics = false, is_part = false, is_uncertain = false, draws = false;
};

void CulpritSearch::meet(const Plugin& other) const {
  if (const auto* task = dynamic_cast<const Task*>(&other)) task_ = task;
}

void CulpritSearch::attach(Bus& bus) {
  bus.on(Event::LossReady, [this](Run&) {
    if (search_ != nullptr) search_->weigh();
  });
}

Culprits CulpritSearch::find(Run& run, const Symptom& symptom, bool is_repeated) {
  good_.clear();
  Search search(run, symptom, task_);
  search_ = &search;
  const auto end = c10::make_scope_exit([this] { search_ = nullptr; });
  if (search.candidates.empty()) return search.found;
  if (!is_repeated) {
    search.found.is_transient = !search.is_bad(search.candidates, &good_);
    if (search.found.is_transient) return search.found;
  }
  search.search();
  search.conclude(good_);
  return search.found;
}

bool CulpritSearch::leave_out(Run& run) const {
  if (!good_.is_taken()) return false;
  good_.put(run);
  return true;
}

}  // namespace vernier
