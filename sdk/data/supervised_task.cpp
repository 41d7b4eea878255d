#include <ATen/ops/stack.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <vernier/activation_checkpoint.h>
#include <vernier/copy.h>
#include <vernier/data/digits.h>
#include <vernier/data/supervised_task.h>
#include <vernier/draft/model_parts.h>
#include <vernier/published_model.h>
#include <vernier/task_options.h>
#include <vernier/unchanged.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "base/rank_sums.h"
#include "data/folds.h"
#include "data/tensor_dataset.h"

namespace vernier {

struct SupervisedTask::Impl {
  std::shared_ptr<torch::nn::Module> model;
  Forward forward;
  Loss loss;
  std::optional<std::size_t> target = 1;
  DatasetPtr training;  // the first sample alone if there is a stream
  StreamPtr stream;
  std::vector<std::pair<std::string, DatasetPtr>> held_out;
  std::string held_out_data;  // their fingerprints
  Targets targets;
  std::vector<MetricPtr> metrics;

  DataLoaderOptions options;
  std::optional<Keep> recompute;
  bool has_recomputed = false, keeps_inputs = false, is_size_given = false;
  std::string of_dataset;            // an option that is given, and that a stream has no use for; "": none
  bool gathers = false;              // the loss calls gather_over_ranks()
  std::string unreadable;            // the error of the sample that could not be read; "": none
  std::optional<DataLoader> loader;  // none where a trained model is used without its data

  State learned, target_facts;
  bool is_trained = false, reads_data = true;
  Fold fold;

  // A model without weights, and what it reaches on the first validation set.
  struct Rival {
    Baseline model;
    double loss = NAN, accuracy = NAN;
  };
  std::vector<Rival> rivals;  // baselines of this training; none where a model is used
  bool are_rivals_measured = false;
  std::optional<double> loss_seen, accuracy_seen, r2_seen;  // metrics of the newest validation

  torch::Tensor validate_on(const Task& task, Run& run, const std::string& name, const DatasetPtr& dataset,
                            const Forward& model, const Watch& watch);
  void add_rivals(torch::Tensor& sums, const Batch& batch, double weight);
  void note(const Run& run);
  void warn_of_better(const SupervisedTask& task) const;
  Batch next_of(DataLoader& from);
  void read_held_out(const Run& run) const;
  std::string failure(SupervisedTask& task, const Run& run, std::int64_t samples, bool is_training) const;
  std::string unfit_size(SupervisedTask& task, const Run& run, std::int64_t size, bool drops_last) const;
  void look_into(Stream& from, std::uint64_t seed);
  std::int64_t whole(std::int64_t size) const { return stream ? size : std::min(training->size(), size); }
  void note_example();
  void warn_of_lost_digits(SupervisedTask& task) const;
  void warn_of_copies(SupervisedTask& task) const;
  Batch first_samples(std::int64_t samples) const;
  bool put_together(Control& control, torch::Tensor& sum, double& whole, bool has_gathered);
  DataLoaderOptions in_order() const {
    auto of_order = options;
    of_order.order = Sampler::Order::sequential;
    of_order.weights = torch::Tensor();
    of_order.drop_last = false;
    return of_order;
  }
  torch::Tensor target_of(const Batch& batch) const {
    if (!target) return {};
    if (*target < batch.tensors.size()) return batch.tensors[*target];
    refuse(c10::str("the loss takes tensor ", *target, " of a batch as its target, and a batch has ",
                    batch.tensors.size()));
  }
  torch::Tensor loss_of(const torch::Tensor& output, const Batch& batch) const {
    // Outputs of 16 bits would cost the loss its small differences, and losses take outputs and targets of one dtype.
    const auto wanted = target_of(batch);
    if (!wanted.defined() || !output.is_floating_point()) return loss(output, wanted);
    const auto widest = c10::promoteTypes(output.scalar_type(), wanted.scalar_type());
    const auto dtype = c10::promoteTypes(widest, torch::kFloat32);
    return loss(output.to(dtype), wanted.is_floating_point() ? wanted.to(dtype) : wanted);
  }
};

SupervisedTask::SupervisedTask(Options& options, std::int64_t batch_size) : impl_(std::make_unique<Impl>()) {
  auto& loader = impl_->options;
  impl_->is_size_given = options.given("batch_size");
  loader.batch_size = options.get("batch_size", batch_size, "samples of an update", between(1, 1e9));
  for (const char* key : {"order", "drop_last"}) {
    if (options.given(key)) impl_->of_dataset = key;
  }
  const auto order = options.choose("order", "shuffled", {"shuffled", "sequential", "by_shard"},
                                    "of the samples in an epoch; by_shard: file by file, shuffled within each");
  using Order = Sampler::Order;
  loader.order = order == "shuffled" ? Order::shuffled : order == "by_shard" ? Order::by_shard : Order::sequential;
  loader.drop_last = options.get("drop_last", false, "leave out the last batch of an epoch if it is smaller");
  loader.workers = options.get("workers", 1, "threads that prepare batches; 0: the training thread", between(0, 1024));
  loader.prefetch = options.get("prefetch", 2, "batches that each worker prepares ahead", between(1, 65536));
  const auto fold = options.get("fold", "", "part that is held out instead of a share: \"2/5\", the second of five");
  if (!Fold::parse(fold)) {
    options.refuse("fold", "must be the part and the number of parts, as in \"2/5\"");
  }
  impl_->fold = *Fold::parse(fold);
  options.resumable("workers");
  options.resumable("prefetch");
  impl_->recompute = read_recompute(options);
}

SupervisedTask::~SupervisedTask() = default;

std::string SupervisedTask::memory_remedy() const {
  return !impl_->recompute ? "compute activations again ([task] recompute)" : "";
}

void SupervisedTask::set_model(std::shared_ptr<torch::nn::Module> model, Forward forward, bool keeps_inputs) {
  impl_->keeps_inputs = keeps_inputs;
  impl_->forward = std::move(forward);
  if (const auto list = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model); list && impl_->recompute) {
    impl_->forward = [this, list = list.get()](const Batch& batch) {
      auto x = batch.tensors.at(0);
      for (auto& module : *list) {
        x = recomputed([&module](const torch::Tensor& input) { return module.forward(input); }, x);
      }
      return x;
    };
  }
  impl_->model = std::move(model);
}

torch::Tensor SupervisedTask::recomputed(const std::function<torch::Tensor(const torch::Tensor&)>& part,
                                         const torch::Tensor& x) const {
  if (!impl_->recompute || !at::GradMode::is_enabled()) return part(x);
  impl_->has_recomputed = true;
  return checkpoint(*impl_->recompute, part, x);
}

void SupervisedTask::use_learned(State learned, bool reads_data) {
  impl_->learned = std::move(learned);
  impl_->is_trained = true;
  impl_->options.drop_last = false;  // a model that is trained is measured on all samples
  impl_->options.order = Sampler::Order::shuffled;
  impl_->reads_data = reads_data;
}

// The names of what this class keeps among the facts of the author.
constexpr const char* own_facts[] = {"example", "targets"};

void SupervisedTask::set_learned(State learned) {
  for (const std::string part : own_facts) {
    const auto given = learned.part(part), kept = impl_->learned.part(part);
    if (!given.tensors.empty() && !impl_->is_trained) {
      throw Error(id() + ": set_learned() has \"" + part + "/" + given.tensors.begin()->first +
                      "\", and SupervisedTask keeps its own facts under \"" + part + "/\"; choose another name",
                  Error::Kind::training, id());
    }
    learned.put(part, kept);
  }
  impl_->learned = std::move(learned);
}

const State& SupervisedTask::learned() const {
  return impl_->learned;
}

bool SupervisedTask::is_trained() const {
  return impl_->is_trained;
}

bool SupervisedTask::reads_data() const {
  return impl_->reads_data;
}

void SupervisedTask::set_training(DatasetPtr dataset, torch::Tensor weights) {
  if (dataset == nullptr || dataset->size() < 1) {
    const auto what = dataset == nullptr ? "is null" : c10::str("has ", dataset->size(), " samples");
    throw Error(id() + ": the training set " + what + "; give set_training() at least one sample",
                Error::Kind::configuration, id());
  }
  impl_->training = std::move(dataset);
  impl_->options.weights = std::move(weights);
}

void SupervisedTask::set_training(StreamPtr stream) {
  impl_->stream = std::move(stream);
}

void SupervisedTask::add_validation(DatasetPtr dataset, const std::string& name) {
  if (!impl_->held_out.empty() && name.empty()) {
    throw Error(id() + ": a second validation set needs a name, as in add_validation(dataset, \"unseen_years\")",
                Error::Kind::training, id());
  }
  if (dataset->size() > 0) impl_->held_out.emplace_back(name, std::move(dataset));
}

void SupervisedTask::set_loss(Loss loss, std::optional<std::size_t> target, Targets are) {
  impl_->loss = std::move(loss);
  if (!impl_->loss && !target) impl_->loss = [](const auto& output, const auto&) { return output; };
  impl_->target = target;
  impl_->targets = std::move(are);
}

const Targets& SupervisedTask::targets() const {
  return impl_->targets;
}

void SupervisedTask::add_metric(MetricPtr metric) {
  const auto name = metric->name();
  const auto classes = impl_->targets.kind == Targets::Kind::classes ? impl_->targets.count : 0;
  if (classes > 0 && name.starts_with("top_") && std::atoll(name.c_str() + 4) >= classes) {
    warn("`metrics` has \"", name, "\", which is always 1, because there are ", classes, " classes");
  }
  impl_->metrics.push_back(std::move(metric));
}

void SupervisedTask::learn_targets(State facts) {
  impl_->target_facts = std::move(facts);
}

void SupervisedTask::attach(Bus& bus) {
  bus.on(Event::Validated, [this](Run& run) { impl_->note(run); });
  bus.on(Event::RunEnd, [this](Run& run) {
    impl_->note(run);  // another listener may have put better weights and their metrics in
    impl_->warn_of_better(*this);
  });
}

void SupervisedTask::prepare(Run& run) {
  {
    const FoldScope fold(impl_->fold);
    build(run);
    if (!impl_->is_trained) fold.require_used(id());
  }
  if (impl_->stream) {
    const auto& option = impl_->of_dataset;
    if (!option.empty())
      refuse(id() + ": a stream never ends, and its order is its own; leave [task] " + option + " out", id());
    impl_->look_into(*impl_->stream, run.seed);
  }
  const auto require = [this](bool is_there, const char* function) {
    if (!is_there) throw Error(id() + ": build() must call " + function, Error::Kind::training, id());
  };
  require(impl_->model != nullptr, "set_model()");
  require(impl_->training != nullptr || !impl_->reads_data, "set_training()");
  require(impl_->loss != nullptr, "set_loss()");
  run.set_model(impl_->model);
  if (!impl_->training) return;
  impl_->note_example();
  if (!impl_->is_trained) impl_->learned.put("targets", impl_->target_facts);
  impl_->options.seed = run.seed;
  impl_->options.pin_memory = run.device.is_cuda();
  if (run.control != nullptr && draft::ModelParts::current() == nullptr) {
    impl_->options.rank = run.control->rank();
    impl_->options.ranks = run.control->ranks();
  }
  if (impl_->stream) {
    impl_->loader.emplace(impl_->stream, impl_->options);
  } else {
    impl_->loader.emplace(impl_->training, impl_->options);
  }
  std::string sizes = impl_->stream ? "a stream" : c10::str(impl_->training->size(), " samples");
  for (const auto& [name, dataset] : impl_->held_out) {
    sizes += c10::str(", ", dataset->size(), " held out", name.empty() ? "" : " as ", name);
    impl_->held_out_data += (impl_->held_out_data.empty() ? "" : ", ") + dataset->fingerprint();
  }
  info(sizes);
  if (impl_->is_trained) return;
  impl_->warn_of_lost_digits(*this);
  impl_->read_held_out(run);
  impl_->warn_of_copies(*this);
  const auto samples = impl_->training->size(), size = impl_->options.batch_size;
  if (impl_->is_size_given && size > samples && !impl_->stream) {
    warn("batch_size = ", size, " is more than the ", samples, " samples, so each update is of all of them");
  }
  if (impl_->held_out.empty()) return;
  for (auto& baseline : baselines_of(impl_->target_facts)) impl_->rivals.push_back({std::move(baseline)});
}

// Puts the first sample into `training`, for all that looks at one sample, and leaves the stream as it was.
void SupervisedTask::Impl::look_into(Stream& from, std::uint64_t seed) {
  const auto place = clone_of(from.save());
  Random random(seed, 0, 0);
  try {
    const torch::NoGradGuard no_grad;
    auto sample = from.next(random);
    sample = from.finish(std::move(sample), random);
    for (auto& tensor : sample) tensor = tensor.unsqueeze(0);
    training = tensor_dataset(std::move(sample));
  } catch (...) {
    const auto [text, kind] = caught();
    throw Error("the first sample of the stream: " + text, kind);
  }
  from.load(place);
}

namespace {

// Returns a hash of each sample of a dataset in memory; none for another one, or a large one. The last value of a row
// counts once, since texts are filled up to different lengths.
std::vector<std::size_t> hashes_of(const Dataset& dataset) {
  constexpr std::int64_t most_bytes = 1 << 26;
  Random random(0, 0, 0);
  std::int64_t bytes = 0;
  if (dataset.size() > 0 && dataset.size() < most_bytes) {
    for (const auto& tensor : dataset.get(0, random)) bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  if (bytes == 0 || bytes * dataset.size() > most_bytes) return {};
  const auto all = dataset.get_batch(at::arange(dataset.size()));
  if (!all) return {};
  std::vector<std::size_t> hashes(static_cast<std::size_t>(dataset.size()));
  for (const auto& each : *all) {
    const auto rows = each.contiguous();
    const std::size_t width = rows.element_size(), length = rows.nbytes() / hashes.size();
    const auto* begin = static_cast<const char*>(rows.const_data_ptr());
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      std::string_view row(begin + i * length, length);
      while (row.size() >= 2 * width && row.substr(row.size() - width) == row.substr(row.size() - 2 * width, width)) {
        row.remove_suffix(width);
      }
      hashes[i] = hashes[i] * 0x9E3779B97F4A7C15U + std::hash<std::string_view>{}(row);
    }
  }
  return hashes;
}

}  // namespace

// Warns before training if at least 5 samples and 1 % of a held-out set are training samples too. It does not warn if
// fewer than 50, or 5 %, of the training samples are distinct, because copies are then expected, such as in a small
// table, or in rows of three yes-or-no values.
void SupervisedTask::Impl::warn_of_copies(SupervisedTask& task) const {
  constexpr std::int64_t fewest_distinct = 50, fewest_copies = 5;
  if (held_out.empty()) return;
  const auto own = hashes_of(*training);
  const std::unordered_set<std::size_t> seen(own.begin(), own.end());
  if (std::ssize(seen) < fewest_distinct || seen.size() * 20 < own.size()) return;
  for (const auto& [name, dataset] : held_out) {
    const auto others = hashes_of(*dataset);
    const auto copies = std::ranges::count_if(others, [&](auto hash) { return seen.contains(hash); });
    if (copies < fewest_copies || copies * 100 < std::ssize(others)) continue;
    task.warn(copies, " of ", others.size(), " held-out samples", name.empty() ? "" : " of " + name,
              " are training samples too, so the model has seen their targets; take the copies out of the data");
  }
}

// A sample that cannot be read is found before the first step.
void SupervisedTask::Impl::read_held_out(const Run& run) const {
  for (const auto& [name, dataset] : held_out) {
    DataLoader each(dataset, in_order());
    for (auto left = each.batches_per_epoch(); left > 0 && !run.is_stopping(); --left) each.next();
  }
}

constexpr const char* lone_remedy =
    "batch normalisation cannot train on a batch of one sample; set [task] drop_last = true, another batch_size, or "
    "larger micro-batches";

// LibTorch's batch normalisation throws an error of the general type, so only its text tells it from others.
bool is_of_lone_sample(const std::exception& error) {
  return std::string_view(error.what()).find("more than 1 value per channel") != std::string_view::npos;
}

// Why forward() and loss fail for so many samples; "": they do not. It leaves buffers and random numbers as they are.
std::string SupervisedTask::Impl::failure(SupervisedTask& task, const Run& run, std::int64_t samples,
                                          bool is_training) const {
  const Unchanged unchanged(*model);
  const torch::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  std::string reason;
  try {
    Random none(options.seed, 0, 0);
    const std::vector<Sample> one = {training->get(0, none)};
    auto batch = stack(one).to(run.device);
    for (auto& tensor : batch.tensors) tensor = tensor.repeat_interleave(samples, 0);
    batch.samples = samples;
    model->train(is_training);
    loss_of(task.forward(batch), batch);
  } catch (const std::exception& error) {
    reason = is_of_lone_sample(error) ? lone_remedy : caught().message;
  }
  model->train(was_training);
  return reason;
}

// Which smaller last batch the model fails for, if the others have `size` samples; "": none. Ranks share a batch.
std::string SupervisedTask::Impl::unfit_size(SupervisedTask& task, const Run& run, std::int64_t size,
                                             bool drops_last) const {
  const auto look = [&](const DatasetPtr& data, const std::string& what, bool is_training) -> std::string {
    const auto all = data->size(), last = is_training && drops_last ? 0 : all % size;
    for (const auto samples : {last / options.ranks, (last + options.ranks - 1) / options.ranks}) {
      if (samples == 0) continue;
      const auto reason = failure(task, run, samples, is_training);
      // The first step reports what fails for a whole batch too.
      if (reason.empty() || !failure(task, run, whole(size), is_training).empty()) continue;
      return c10::str("the last batch of ", what, " has ", samples == 1 ? "one sample" : c10::str(samples, " samples"),
                      options.ranks > 1 ? " on a rank" : "", ", of ", all, " in batches of ", size, ": ", reason);
    }
    return "";
  };
  auto unfit = stream ? "" : look(training, "an epoch", true);
  for (const auto& [name, dataset] : held_out) {
    if (unfit.empty()) unfit = look(dataset, name.empty() ? "a validation" : "the validation " + name, false);
  }
  return unfit;
}

// The last batch of an epoch or a validation would end the run.
void SupervisedTask::check(const Run& run) {
  // Published models take any number of rows.
  if (!impl_->training || impl_->is_trained || dynamic_cast<const PublishedModel*>(this) != nullptr) return;
  const auto size = batch_size();
  if (size == 1 && impl_->failure(*this, run, 1, true) == lone_remedy) {
    refuse(c10::str(id(), ": each batch has one sample: ", lone_remedy), id());
  }
  const bool drops_last = impl_->options.drop_last;
  const auto unfit = impl_->unfit_size(*this, run, size, drops_last);
  if (unfit.empty()) return;
  if (unfit.ends_with(lone_remedy)) refuse(id() + ": " + unfit, id());
  std::string remedy;
  if (impl_->unfit_size(*this, run, size, true).empty()) remedy = "set [task] drop_last = true, or ";
  constexpr std::int64_t most = 16;  // other sizes that are tried
  for (auto other = std::max<std::int64_t>(2, size - most); remedy.empty() && other <= size + most; ++other) {
    if (!impl_->failure(*this, run, impl_->whole(other), true).empty()) continue;
    if (impl_->unfit_size(*this, run, other, drops_last).empty())
      remedy = c10::str("set [task] batch_size = ", other, ", or ");
  }
  refuse(id() + ": " + unfit + "; " + remedy +
             "make forward() take any number of samples: squeeze() drops the dimension of a single one",
         id());
}

Batch SupervisedTask::next() {
  if (!impl_->loader) refuse(id() + ": a trained model was loaded without its data, and cannot be trained", id());
  return impl_->next_of(*impl_->loader);
}

Batch SupervisedTask::Impl::next_of(DataLoader& from) {
  try {
    return from.next();
  } catch (...) {
    unreadable = caught().message;
    throw;
  }
}

std::int64_t SupervisedTask::batches_per_epoch() const {
  return impl_->loader ? impl_->loader->batches_per_epoch() : 1;
}

std::string SupervisedTask::where(std::int64_t index) const {
  if (impl_->stream) return Task::where(index) + " of the stream";
  return impl_->training ? impl_->training->where(index) : Task::where(index);
}

std::optional<std::vector<MetricInfo>> SupervisedTask::measures() const {
  if (!impl_->reads_data) return std::nullopt;  // a trained model is used, and nothing is judged
  std::vector<MetricInfo> all;
  for (const auto& [name, dataset] : impl_->held_out) {
    const auto prefix = name.empty() ? "" : name + "_";
    all.push_back({all.empty() ? "validation_loss" : prefix + "loss", Better::lower});
    for (const auto& metric : impl_->metrics) {
      all.push_back(metric->info());
      all.back().name = prefix + metric->name();
    }
  }
  return all;
}

torch::Tensor SupervisedTask::forward(const Batch& batch) {
  if (impl_->keeps_inputs) return impl_->forward(batch);
  const auto parameters = impl_->model->parameters();
  const auto first = std::ranges::find_if(
      parameters, [](const auto& tensor) { return tensor.is_floating_point() && tensor.element_size() > 1; });
  const auto dtype = first == parameters.end() ? torch::kFloat32 : first->scalar_type();
  const auto needs_other = [&](const torch::Tensor& tensor) {
    return tensor.is_floating_point() && tensor.scalar_type() != dtype;
  };
  Batch inputs = batch;
  for (std::size_t i = 0; i < inputs.tensors.size(); ++i) {
    auto& tensor = inputs.tensors[i];
    if (i != impl_->target && needs_other(tensor)) tensor = tensor.to(dtype);
  }
  return impl_->forward(inputs);
}

torch::Tensor SupervisedTask::loss(const Batch& micro_batch) {
  const auto loss = [&] {
    try {
      return impl_->loss_of(forward(micro_batch), micro_batch);
    } catch (const std::exception& error) {  // TorchScript has its own
      if (!is_of_lone_sample(error)) throw;
      refuse(id() + ": " + lone_remedy, id());
    }
  }();
  if (impl_->recompute && !impl_->has_recomputed) {
    refuse(id() +
               ": option recompute has no effect, since the model is not a torch::nn::Sequential and calls no "
               "part of itself through recomputed(); leave the option out",
           id());
  }
  return loss;
}

torch::Tensor SupervisedTask::validate(Run& run) {
  return validate_with(run, [this](const Batch& batch) { return forward(batch); });
}

torch::Tensor SupervisedTask::validate_batch(Run& run, const Batch& batch) {
  const auto output = forward(batch);
  for (const auto& metric : impl_->metrics) {
    metric->reset();
    metric->update(output, impl_->target_of(batch));
    run.metrics.set(metric->name().c_str(), metric->value());
  }
  return impl_->loss_of(output, batch);
}

torch::Tensor SupervisedTask::validate_with(Run& run, const Forward& model, const Watch& watch) {
  torch::Tensor first;
  for (const auto& [name, dataset] : impl_->held_out) {
    const auto loss = impl_->validate_on(*this, run, name, dataset, model, watch);
    if (!loss.defined()) return {};
    const auto prefix = name.empty() ? "" : name + "_";
    for (const auto& metric : impl_->metrics) run.metrics.set((prefix + metric->name()).c_str(), metric->value());
    if (first.defined()) {
      run.metrics.set((prefix + "loss").c_str(), loss);
    } else {
      first = loss;
    }
  }
  return first;
}

void SupervisedTask::Impl::note(const Run& run) {
  const auto loss = run.metrics.value("validation_loss");
  if (!loss) return;
  loss_seen = loss;
  accuracy_seen = run.metrics.value("accuracy");
  r2_seen = run.metrics.value("r2");
}

// At the end of a run. The loss of its newest validation is compared with those of models that have learned nothing. On
// few samples it is a matter of chance which one is better, so another model needs half the loss, but for a forecast.
void SupervisedTask::Impl::warn_of_better(const SupervisedTask& task) const {
  constexpr std::int64_t few = 10;
  if (rivals.empty() || !loss_seen) return;
  const bool is_forecast = target_facts.has("season");
  const bool is_chance = held_out.front().second->size() < few && !is_forecast;
  double least = is_chance ? *loss_seen / 2 : *loss_seen;
  const Rival* best = nullptr;
  for (const auto& rival : rivals) {
    if (std::isnan(rival.loss) || rival.loss >= least) continue;  // the model's may be NaN, worse than all
    best = &rival;
    least = rival.loss;
  }
  if (best == nullptr && is_forecast && r2_seen && *r2_seen < 0) {
    task.warn("the forecast is worse than the mean of the held-out steps, which no model knows before: its r2 is ",
              *r2_seen);
  }
  if (best == nullptr) return;
  const bool is_right_more_often = accuracy_seen && *accuracy_seen > best->accuracy;
  task.warn(is_right_more_often ? "by its validation loss, " : "", "the model is worse than no model: \"",
            best->model.name, "\" has the validation loss ", best->loss, ", and the model ", *loss_seen,
            is_right_more_often ? c10::str("; its accuracy is better, ", *accuracy_seen, " against ", best->accuracy,
                                           ", so its probabilities are too sure")
                                : "",
            "; `vernier evaluate` compares their metrics");
}

// Adds loss and hits of each rival to its two sums. One whose outputs the loss does not take gets none.
void SupervisedTask::Impl::add_rivals(torch::Tensor& sums, const Batch& batch, double weight) {
  const auto wanted = target_of(batch);
  for (std::size_t i = 0; i < rivals.size(); ++i) {
    const auto place = 1 + 2 * static_cast<std::int64_t>(i);
    try {
      const auto output = rivals[i].model.forward(batch);
      sums[place] += loss_of(output, batch).to(torch::kFloat64) * weight;
      const bool has_classes =
          targets.kind == Targets::Kind::classes && output.dim() == 2 && wanted.ge(0).all().item<bool>();
      const auto hits =
          has_classes ? (output.argmax(1) == wanted).to(torch::kFloat64).mean() : at::full({}, NAN, sums.options());
      sums[place + 1] += hits * weight;
    } catch (const std::exception&) {
      sums[place].fill_(NAN);
    }
  }
}

// The mean loss over the samples, or over what Task::weight_of() says; undefined where a signal cut it short. Several
// ranks share the work if all metrics can be put together. The first validation in training measures the rivals too.
torch::Tensor SupervisedTask::Impl::validate_on(const Task& task, Run& run, const std::string& name,
                                                const DatasetPtr& dataset, const Forward& model, const Watch& watch) {
  auto options = in_order();
  const auto lone_before = lone_gathers();
  const bool is_shared = options.ranks > 1 && !gathers && std::ranges::all_of(metrics, [](const auto& metric) {
                           metric->reset();
                           return metric->state_dict().has_value();
                         });
  if (!is_shared) options.rank = 0, options.ranks = 1;
  const bool with_rivals = !rivals.empty() && !are_rivals_measured && dataset == held_out.front().second;
  DataLoader loader(dataset, options);
  for (const auto& metric : metrics) metric->reset();
  auto sums =
      at::zeros({1 + (with_rivals ? 2 * std::ssize(rivals) : 0)}, at::TensorOptions(run.device).dtype(torch::kFloat64));
  double whole = 0;
  for (auto left = loader.batches_per_epoch(); left > 0; --left) {
    if (run.is_stopping()) return {};
    auto batch = next_of(loader);
    if (batch.samples == 0) continue;  // no sample is this rank's
    const auto weight = task.weight_of(batch).value_or(static_cast<double>(batch.samples));
    batch = batch.to(run.device);
    const auto output = model(batch);
    sums[0] += loss_of(output, batch).to(torch::kFloat64) * weight;
    if (with_rivals) add_rivals(sums, batch, weight);
    for (const auto& metric : metrics) metric->update(output, target_of(batch));
    if (watch) {
      watch({name, batch, output, target_of(batch), *dataset,
             [this](const torch::Tensor& of, const Batch& some) { return loss_of(of, some); }});
    }
    whole += weight;
  }
  // Outside of a step a loss has the samples of its own rank alone. So each rank validates on all of them.
  if (is_shared && put_together(*run.control, sums, whole, lone_gathers() != lone_before)) {
    gathers = true;
    return validate_on(task, run, name, dataset, model, watch);
  }
  const auto means = sums / whole;
  if (with_rivals) {
    const auto seen = means.cpu();
    for (std::size_t i = 0; i < rivals.size(); ++i) {
      rivals[i].loss = seen[1 + 2 * static_cast<std::int64_t>(i)].item<double>();
      rivals[i].accuracy = seen[2 + 2 * static_cast<std::int64_t>(i)].item<double>();
    }
    are_rivals_measured = true;
  }
  return means[0];
}

// Gathers the results of all ranks, in their order. Returns true if the loss of any of them has gathered tensors.
bool SupervisedTask::Impl::put_together(Control& control, torch::Tensor& sum, double& whole, bool has_gathered) {
  State own;
  own.put("sum", sum);
  own.put("whole", whole);
  own.put("gathers", has_gathered);
  for (const auto& metric : metrics) own.put(metric->name(), *metric->state_dict());
  sum = at::zeros_like(sum);
  whole = 0;
  for (const auto& metric : metrics) metric->reset();
  for (const auto& state : control.gather(own)) {
    sum += state.tensor("sum");
    whole += state.real("whole");
    has_gathered = has_gathered || state.integer("gathers") != 0;
    for (const auto& metric : metrics) metric->add(state.part(metric->name()));
  }
  return has_gathered;
}

State SupervisedTask::save() const {
  State state;
  if (impl_->loader) {
    state = impl_->loader->state_dict();
    state.put("held_out", impl_->held_out_data);
    if (!impl_->unreadable.empty()) state.put("unreadable", impl_->unreadable);
  }
  state.put("learned", impl_->learned);
  return state;
}

namespace {

std::string given_files(const State& learned) {
  std::vector<torch::Tensor> files;
  for (const auto& [name, bytes] : learned.part("given").tensors) files.push_back(bytes.to(torch::kCPU));
  return c10::str(files.size(), " with XXH3 ", checksum_of_all(files));
}

}  // namespace

// A sample that could not be read has ended the run that was saved, so other bytes of the data are its remedy.
void SupervisedTask::load(const State& state) {
  auto wanted = state;
  const auto own = impl_->loader->state_dict();
  const bool has_same_size = state.integer("size") == own.integer("size");
  const bool is_mended = state.has("unreadable") && has_same_size, allows = state.has("allow_inexact");
  const auto compare = [&](const std::string& what, const std::string& before, const std::string& now) {
    if (before == now) return;
    const auto difference = what + " have changed since this run was saved: then " + before + ", now " + now;
    if (is_mended) return warn(difference, "; the run goes on, because it had ended with: ", state.text("unreadable"));
    if (allows) return warn(difference, "; the run is resumed all the same");
    refuse(id() + ": " + difference +
               "; give the same files, give --allow-inexact to resume all the same, or start a new run",
           id());
  };
  compare("the files of the model", given_files(state.part("learned")), given_files(impl_->learned));
  compare("the data", state.text("data"), own.text("data"));
  compare("the held-out data", state.text("held_out"), impl_->held_out_data);
  if (is_mended || allows) wanted.put("data", own.text("data"));
  if (allows) {
    for (const char* entry : {"size", "seed", "order"}) wanted.put(entry, own.integer(entry));
    if (state.integer("position") >= own.integer("size")) {  // the data had fewer samples
      wanted.put("position", std::int64_t{0});
      wanted.put("epoch", state.integer("epoch") + 1);
    }
  }
  impl_->loader->load_state_dict(wanted);
}

std::int64_t SupervisedTask::batch_size() const {
  return impl_->options.batch_size;
}

DataLoader SupervisedTask::loader_of(const DatasetPtr& dataset) const {
  return DataLoader(dataset, impl_->in_order());
}

// Keeps dtypes and shapes of a sample's inputs, as tensors of 0 samples.
void SupervisedTask::Impl::note_example() {
  const auto batch = first_samples(1);
  for (std::size_t i = 0; i < batch.tensors.size(); ++i) {
    learned.put(c10::str("example/", i), batch.tensors[i].narrow(0, 0, 0).clone());
  }
}

// float64 inputs become float32, unless the model has another dtype or takes them as they are.
void SupervisedTask::Impl::warn_of_lost_digits(SupervisedTask& task) const {
  constexpr std::int64_t most = 256;
  const auto parameters = model->parameters();
  const auto is_wide = [](const torch::Tensor& tensor) { return tensor.scalar_type() == torch::kFloat64; };
  if (keeps_inputs || std::ranges::any_of(parameters, is_wide)) return;
  if (std::ranges::none_of(first_samples(1).tensors, is_wide)) return;
  std::vector<Sample> some;
  const auto size = training->size(), count = std::min(most, size);
  for (std::int64_t i = 0; i < count; ++i) {
    Random random(options.seed, 0, i * size / count);
    some.push_back(training->get(i * size / count, random));
  }
  for (std::size_t place = 0; place < some[0].size(); ++place) {
    if (place == target || !is_wide(some[0][place])) continue;
    std::vector<torch::Tensor> rows;
    for (const auto& sample : some) {
      if (sample[place].sizes() != some[0][place].sizes()) return;
      rows.push_back(sample[place].reshape({-1}));
    }
    const auto lost = lost_digits(at::stack(rows), /*is_centred=*/false);
    if (lost.empty()) continue;
    return task.warn(training->where(0), " and others: ", lost, "; the model gets float32: take the mean off the data");
  }
}

Batch SupervisedTask::Impl::first_samples(std::int64_t samples) const {
  std::vector<Sample> some;
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto index = i % training->size();
    Random random(options.seed, 0, index);
    some.push_back(training->get(index, random));
  }
  auto batch = stack(some);
  if (target && *target < batch.tensors.size()) {
    batch.tensors.erase(batch.tensors.begin() + static_cast<std::ptrdiff_t>(*target));
  }
  return batch;
}

Batch SupervisedTask::example(std::int64_t samples) const {
  if (impl_->training) return impl_->first_samples(samples);
  Batch batch;
  batch.samples = samples;
  const auto shapes = impl_->learned.part("example");
  for (std::size_t i = 0; shapes.has(std::to_string(i)); ++i) {
    const auto shape = shapes.tensor(std::to_string(i));
    auto sizes = shape.sizes().vec();
    sizes[0] = samples;
    batch.tensors.push_back(shape.is_floating_point() ? at::rand(sizes, shape.options())
                                                      : at::zeros(sizes, shape.options()));
  }
  return batch;
}

}  // namespace vernier
