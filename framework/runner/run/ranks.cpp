#include "ranks.h"

#include <ATen/Context.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <vernier/checksum.h>
#include <vernier/draft/model_parts.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

#include "common/text/numbers.h"
#include "files/shards.h"

namespace vernier {

namespace {

constexpr std::int64_t steps_until_named = 100;
constexpr double slower = 1.1;  // than the median, and worth a notice

constexpr std::int64_t compared_bytes = 64 << 10;  // weights that each step compares, in turn; it takes microseconds

// The numbers of one rank in all_reduce().
enum Slot { stop_slot, time_slot, seconds_slot, slots };

torch::Tensor numbers_of(std::int64_t count) {
  return at::zeros({count}, torch::kFloat64);
}

// A hash that a float64 holds without loss.
template <class Pairs>
double digest_of(const Pairs& facts) {
  Checksum sum;
  for (const auto& [key, value] : facts) {
    sum.add(key.c_str(), key.size() + 1);
    sum.add(value.c_str(), value.size() + 1);
  }
  return static_cast<double>(std::stoull(sum.digits().substr(0, 13), nullptr, 16));
}

std::string bits_of(const torch::Tensor& weight) {
  const auto host = here(weight).detach().to(torch::kCPU).contiguous();
  Checksum sum;
  sum.add(host.const_data_ptr(), host.nbytes());
  return sum.digits();
}

// The parameters that are the same on all ranks.
auto same_on_all(const Run& run) {
  return run.parameters | std::views::filter([](const auto& each) { return !draft::ModelParts::is_part(each.name); });
}

// A checksum of all weights that the ranks have alike; or of some of those on the host, others in each step.
std::string bits_of(const Run& run, bool all) {
  Checksum sum;
  std::int64_t bytes = 0;
  for (const auto& parameter : same_on_all(run)) bytes += static_cast<std::int64_t>(parameter.model.nbytes());
  const auto parts = std::max<std::int64_t>(1, (bytes + compared_bytes - 1) / compared_bytes);
  const auto first = run.step % parts * compared_bytes, last = all ? bytes : first + compared_bytes;
  std::int64_t begin = 0;
  for (const auto& parameter : same_on_all(run)) {
    const auto size = static_cast<std::int64_t>(parameter.model.nbytes());
    const auto from = std::max(all ? 0 : first, begin) - begin, to = std::min(last, begin + size) - begin;
    begin += size;
    if (from >= to) continue;
    if (all) {
      const auto bits = bits_of(parameter.model);
      sum.add(bits.data(), bits.size());
    } else if (parameter.model.is_cpu() && parameter.model.is_non_overlapping_and_dense()) {
      const auto weight = here(parameter.model);
      sum.add(static_cast<const char*>(weight.const_data_ptr()) + from, static_cast<std::size_t>(to - from));
    }
  }
  return sum.digits();
}

std::string value_in(const State& facts, const std::string& key) {
  return facts.has(key) ? facts.text(key) : "none";
}

at::Generator host_generator() {
  return at::globalContext().defaultGenerator(torch::kCPU);
}

}  // namespace

void SharedState::watch(const torch::nn::Module& model) {
  parts_.push_back({{}, bits_of(host_generator().get_state())});
  for (const auto& each : model.named_buffers()) {
    const auto& buffer = each.value();
    if (draft::ModelParts::is_part(each.key())) continue;
    parts_.push_back({buffer, bits_of(buffer), static_cast<std::int64_t>(buffer._version())});
  }
}

void SharedState::share() {
  const auto flags = numbers_of(count());
  compares_all_ = true;
  note_written(flags.mutable_data_ptr<double>());
  distributed_->sum(flags)();
  take(flags.const_data_ptr<double>());
}

void SharedState::note_written(double* flags) {
  parts_.front().tensor = host_generator().get_state();
  for (auto& part : parts_) {
    const auto version = static_cast<std::int64_t>(part.tensor._version());
    const bool is_read = compares_all_ || &part == &parts_.front() || version != part.version;
    part.is_written = part.is_written || (is_read && bits_of(part.tensor) != part.bits);
    part.version = version;
    *flags++ = part.is_written ? 1 : 0;
  }
  compares_all_ = false;
}

void SharedState::take(const double* flags) {
  std::vector<torch::Tensor> buffers;
  for (auto& part : parts_) {
    part.is_written = *flags++ > 0;
    if (part.is_written && &part != &parts_.front()) buffers.push_back(part.tensor);
  }
  if (!buffers.empty()) distributed_->broadcast({buffers});
  if (const auto& generator = parts_.front(); generator.is_written) {
    distributed_->broadcast({std::vector<torch::Tensor>{generator.tensor}});  // apart from buffers, some on a GPU
    host_generator().set_state(generator.tensor);
  }
}

void Ranks::refuse_differences(const Facts& facts) const {
  if (!are_several()) return;
  State own;
  for (const auto& [key, value] : facts) own.put(key, value);
  const auto all = distributed_->gather(to_bytes(own));
  const auto first = from_bytes(all[0]);
  for (std::size_t r = 1; r < all.size(); ++r) {
    const auto other = from_bytes(all[r]);
    auto keys = first.tensors;
    keys.insert(other.tensors.begin(), other.tensors.end());
    for (const auto& [key, ignored] : keys) {
      const auto a = value_in(first, key), b = value_in(other, key);
      if (a == b) continue;
      refuse(c10::str("the ranks differ in ", key, ": rank 0 has ", a, ", rank ", r, " has ", b,
                      "; start all of them alike"));
    }
  }
}

void Ranks::share_model(TrainerRun& run) {
  if (!are_several()) return;
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> tensors;
  for (const auto& all : {run.model->named_parameters(), run.model->named_buffers()}) {
    for (const auto& each : all) {
      if (!draft::ModelParts::is_part(each.key())) tensors.push_back(each.value());
    }
  }
  distributed_->broadcast({std::move(tensors)});
  shared_.watch(*run.model);
}

bool Ranks::any(bool here) {
  const auto number = numbers_of(1).fill_(here ? 1 : 0);
  distributed_->sum(number)();
  return number.item<double>() > 0;
}

Batch Ranks::share_of(Batch batch) const {
  if (!are_several() || batch.is_share || draft::ModelParts::current() != nullptr) return batch;
  return batch.share(distributed_->rank(), ranks());
}

std::unique_ptr<RankSums> Ranks::weigh(const Run& run, const Batch& share, std::int64_t parts) {
  if (!std::exchange(is_weighed_, true)) {
    const auto* in_parts = draft::ModelParts::current();
    whole_ = {static_cast<double>(share.samples), share.weight, share.tokens,
              in_parts == nullptr ? 1 : static_cast<double>(in_parts->ranks())};
    parts_ = parts;
    wait_for_weights_ = nullptr;
    is_reduced_ = !are_several();
    if (are_several()) send(run, "the gradients of a step", Compared::part, whole_);
  }
  if (!are_several()) return nullptr;
  return std::make_unique<RankSums>(distributed_->rank(), ranks(), [this, parts](const torch::Tensor& numbers) {
    whole();
    if (are_unequal_ || parts != parts_) refuse_unequal_parts(parts);  // a rank without a further part never answers
    const auto as = calls_.as(distributed_.get());
    distributed_->sum(numbers)();
  });
}

void Ranks::agree(const Run& run, const std::string& doing, Compared compared) {
  if (!are_several()) return;
  const auto as = calls_.as(distributed_.get());
  const auto whole_before = whole_;
  send(run, doing, compared, {});
  whole();
  if (compared == Compared::all) shared_.share();
  whole_ = whole_before;
}

void Ranks::note_alike(const Facts& facts) {
  alike_ = facts;
  alike_digest_ = shortest_number(digest_of(facts));
}

void Ranks::send(const Run& run, const std::string& doing, Compared compared, const WholeBatch& share) {
  run_ = &run;
  message_ = {{"what comes next", doing},
              {"the number of steps", std::to_string(run.step)},
              {"the number of updates", std::to_string(run.updates)},
              {"the plugins", alike_digest_},
              {"the learning rate factor", shortest_number(run.learning_rate_factor)},
              {"the learning rate factor of the step before", shortest_number(last_factor_)},
              {"the batches of an update", std::to_string(run.batches)},
              {"the batches drawn", std::to_string(run.batches_drawn)},
              {"the weights", alike_.empty() ? "" : bits_of(run, compared == Compared::all)}};
  weights_ = numbers_of(6 + ranks());
  auto* numbers = weights_.mutable_data_ptr<double>();
  numbers[0] = share.samples;
  numbers[1] = share.weight.value_or(0);
  numbers[2] = static_cast<double>(share.tokens);
  numbers[3] = share.weight ? share.samples : 0;
  numbers[4] = static_cast<double>(parts_);
  numbers[5] = numbers[4] * numbers[4];
  numbers[6 + distributed_->rank()] = digest_of(message_);
  wait_for_weights_ = distributed_->sum(weights_);
}

// All ranks see the same digests. If these differ, all ranks exchange the facts behind them.
void Ranks::refuse_apart(const double* digests) const {
  if (std::all_of(digests, digests + ranks(), [&](double each) { return each == digests[0]; })) return;
  auto facts = message_;
  facts.insert(facts.end(), alike_.begin(), alike_.end());
  for (const auto& parameter : same_on_all(*run_)) {
    if (alike_.empty()) break;
    facts.emplace_back("the weight " + parameter.name,
                       c10::str("norm ", parameter.model.detach().to(torch::kFloat64).norm().item<double>(),
                                " (checksum ", bits_of(parameter.model).substr(0, 8), ")"));
  }
  State own;
  for (const auto& [key, value] : facts) own.put(key, value);
  std::vector<State> all;
  for (const auto& bytes : distributed_->gather(to_bytes(own))) all.push_back(from_bytes(bytes));
  for (const auto& [key, ignored] : facts) {
    if (key == "the plugins" || key == "the weights") continue;  // differences in them are reported later
    for (std::size_t r = 1; r < all.size(); ++r) {
      const auto a = value_in(all[0], key), b = value_in(all[r], key);
      if (a == b) continue;
      if (key.starts_with("the plugin ")) {
        refuse(c10::str("the ranks differ in ", key, ": rank 0 has ", a, ", rank ", r, " has ", b,
                        "; start all of them with the same options"));
      }
      throw Error(c10::str("the ranks have come apart: ", key, " is ", a, " on rank 0, and ", b, " on rank ", r,
                           "; a plugin decides by what only its own rank knows: let all ranks decide alike, by "
                           "run.control->gather()"));
    }
  }
  throw Error("the ranks have come apart: their weights differ, or what comes next; start them again with --resume");
}

const WholeBatch& Ranks::whole() {
  if (!wait_for_weights_) return whole_;
  const auto as = calls_.as(distributed_.get());
  std::exchange(wait_for_weights_, nullptr)();
  const auto* numbers = weights_.const_data_ptr<double>();
  whole_.samples = numbers[0] / whole_.copies;
  if (whole_.weight) whole_.weight = numbers[1] / whole_.copies;
  whole_.tokens = std::llround(numbers[2] / whole_.copies);
  are_unequal_ = numbers[5] * static_cast<double>(ranks()) != numbers[4] * numbers[4];
  refuse_apart(numbers + 6);
  if (numbers[3] != 0 && numbers[3] != numbers[0]) {
    throw Error("the ranks' micro-batches have a weight in part; give each of them one, or none", Error::Kind::plugin);
  }
  return whole_;
}

void Ranks::all_reduce(TrainerRun& run, const Own& here) {
  if (!are_several()) return;
  const auto as = calls_.as(distributed_.get());
  whole();
  const auto parameters = std::ssize(run.parameters);
  const auto after_slots = slots * ranks();
  const auto sums = numbers_of(after_slots + 1 + parameters + shared_.count());
  auto* numbers = sums.mutable_data_ptr<double>();
  auto* own = numbers + slots * distributed_->rank();
  own[stop_slot] = here.stop;
  own[time_slot] = here.is_out_of_time ? 1 : 0;
  own[seconds_slot] = here.seconds;
  auto* loss = numbers + after_slots;
  *loss = run.loss.defined() ? run.loss.item<double>() : 0;  // a rank without samples has none
  auto *has_gradient = loss + 1, *is_written = has_gradient + parameters;
  for (std::int64_t i = 0; i < parameters; ++i) {
    has_gradient[i] = run.parameters[static_cast<std::size_t>(i)].model.grad().defined() ? 1 : 0;
  }
  shared_.note_written(is_written);

  distributed_->all_reduce(run, sums);
  is_reduced_ = true;

  stop_ = 0;
  is_out_of_time_ = false;
  seconds_.resize(static_cast<std::size_t>(ranks()), 0);
  for (std::int64_t r = 0; r < ranks(); ++r) {
    const auto* slot = numbers + slots * r;
    if (stop_ == 0) stop_ = static_cast<int>(slot[stop_slot]);
    is_out_of_time_ = is_out_of_time_ || slot[time_slot] != 0;
    seconds_[static_cast<std::size_t>(r)] += slot[seconds_slot];
  }
  const auto dtype = c10::promoteTypes(run.parameters.at(0).model.scalar_type(), torch::kFloat32);
  run.loss = at::full({}, *loss, torch::dtype(dtype).device(run.device));
  for (std::int64_t i = 0; i < parameters; ++i) {
    if (has_gradient[i] == 0) run.parameters[static_cast<std::size_t>(i)].model.mutable_grad().reset();
  }
  shared_.take(is_written);
}

void Ranks::end_step(TrainerRun& run) {
  last_factor_ = run.learning_rate_factor;
  if (!are_several() || (run.step + 1) % steps_until_named != 0 || seconds_.empty()) return;
  auto sorted = seconds_;
  std::ranges::sort(sorted);
  const auto median = (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  const auto slowest = std::ranges::max_element(seconds_);
  const auto who = slowest - seconds_.begin();
  const bool is_slow = median > 0 && *slowest > slower * median;
  if (is_slow && who != slowest_) {
    const auto percent = std::lround(100 * (*slowest / median - 1));
    run.notice("slow_rank", {{"rank", std::int64_t{who}}, {"percent", std::int64_t{percent}}},
               c10::str("rank ", who, " is ", percent, " % slower than the median of the ranks"));
  }
  slowest_ = is_slow ? who : -1;
  std::ranges::fill(seconds_, 0);
}

// The largest first, each to the rank that has the fewest elements so far.
void Owners::choose(TrainerRun& run) {
  if (distributed_->ranks() == 1 || !distributed_->shards_optimizer()) return;
  const auto& parameters = run.parameters;
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](auto a, auto b) { return parameters[a].model.numel() > parameters[b].model.numel(); });
  std::vector<std::int64_t> elements(static_cast<std::size_t>(distributed_->ranks()), 0);
  owners_.assign(parameters.size(), 0);
  for (const auto i : order) {
    if (draft::ModelParts::is_part(parameters[i].name)) {
      owners_[i] = each_rank;
      continue;
    }
    const auto least = std::ranges::min_element(elements);
    *least += parameters[i].model.numel();
    owners_[i] = least - elements.begin();
    run.parameters[i].owned = owners_[i] == distributed_->rank();
  }
}

void Owners::refuse_masters_of_others(const Run& run) const {
  for (const auto& parameter : run.parameters) {
    if (parameter.owned || parameter.master.is_same(parameter.model) || parameter.master.storage().nbytes() == 0) {
      continue;
    }
    refuse("the precision keeps a master of " + parameter.name +
           ", which another rank owns; its prepare must heed Parameter::owned, or train with distributed/ddp");
  }
}

void Owners::share_weights(TrainerRun& run, Weights which) {
  if (!are_sharded()) return;
  const auto as = calls_.as(distributed_.get());
  std::vector<std::vector<torch::Tensor>> of_ranks(static_cast<std::size_t>(distributed_->ranks()));
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    const auto& parameter = run.parameters[i];
    if (owners_[i] == each_rank || (which == Weights::trained && parameter.frozen)) continue;
    of_ranks[static_cast<std::size_t>(owners_[i])].push_back(parameter.model);
  }
  distributed_->broadcast(of_ranks);
}

}  // namespace vernier
