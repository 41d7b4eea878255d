#include "exported_task.h"

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss_nd.h>
#include <vernier/data/csv.h>
#include <vernier/data/data_source.h>
#include <vernier/data/digits.h>
#include <vernier/data/images.h>
#include <vernier/data/predictor.h>
#include <vernier/data/split.h>
#include <vernier/data/supervised_task.h>
#include <vernier/data/transforms.h>
#include <vernier/draft/model_parts.h>
#include <vernier/json_text.h>
#include <vernier/sdk.h>
#include <vernier/task_options.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "task/predicted.h"

namespace exported {

using vernier::between;
using vernier::refuse;

namespace {

bool is_folder(const std::string& path) {
  std::error_code none;
  return std::filesystem::is_directory(path, none);
}

void require_rows(const std::vector<torch::Tensor>& tensors, const std::vector<std::string>& names) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].size(0) == tensors[0].size(0)) continue;
    refuse(
        c10::str("'", names[0], "' has ", tensors[0].size(0), " samples, and '", names[i], "' ", tensors[i].size(0)));
  }
}

DatasetPtr pixels(const DatasetPtr& images, std::int64_t size) {
  return vernier::transform(vernier::of_one_size(images, size), {vernier::to_float()});
}

}  // namespace

ExportedTask::ExportedTask(Options& options, const char* name, const char* kind_of_file)
    : SupervisedTask(options, 32),
      name_(name),
      model_(options.require<std::string>("model", kind_of_file)),
      inputs_(options.require<std::vector<std::string>>(
          "inputs", "source of each argument of forward(), such as x.npy, x.npz:x, x.csv:a,b; or a folder of images")),
      target_(
          options.get("target", "",
                      "source of the labels or numbers; of a folder of images that of masks, or none: it has classes")),
      held_out_inputs_(
          options.get("validation_inputs", std::vector<std::string>{}, "those held out, in the same form")),
      held_out_target_(options.get("validation_target", "", "their labels or numbers")),
      share_(options.get("validation_share", 0.1, "share held out without validation_inputs", between(0, 0.9))),
      size_(options.get("size", 0, "pixels of a side of a folder's images; 0: as they are", between(0, 65536))),
      loss_(options.choose("loss", "cross_entropy", {"cross_entropy", "nll", "mse", "l1", "huber", "bce", "output"},
                           "of output and target; output: forward() gets the target last and returns the loss")),
      metrics_(
          options.get("metrics", std::vector<std::string>{},
                      "of outputs and targets: accuracy, subset_accuracy, top_5, f1, dice, iou, perplexity, auc, mae, "
                      "rmse, r2")),
      places_(options) {
  const auto weights = options.get("class_weights", std::vector<double>{},
                                   "weight of each class in the loss; of labels, that of the places where it is 1",
                                   vernier::at_least(0));
  if (!weights.empty()) class_weights_ = torch::tensor(weights, torch::kFloat32);
  for (const char* key : {"model", "inputs", "target", "validation_inputs", "validation_target"})
    options.resumable(key);  // content counts, not path
  form_ = vernier::csv_options(options, {"refuse", "zero", "previous"});
  form_.fill_remedy = R"(set missing = "zero" or "previous")";
  refuse_contradictions(options);
}

void ExportedTask::build(Run& run) {
  const std::string rank = "{rank}";
  const auto place = model_.find(rank);
  if (place != std::string::npos && run.control != nullptr) {
    model_.replace(place, rank.size(), std::to_string(run.control->rank()));
  }
  if (is_trained()) {
    recall();
  } else {
    check_data();
    bytes_ = bytes_of(model_);
  }
  network_ = network_of(bytes_, model_);
  if (reads_data()) build_data(run.seed);
  if (!is_trained()) set_learned(facts());
  // With loss = "output" the model takes all tensors of a batch, a target too.
  const bool is_loss = loss_ == "output";
  set_model(network_, [this, is_loss](const Batch& batch) {
    const auto arguments = is_loss ? batch.tensors.size() : std::min(inputs_.size(), batch.tensors.size());
    const auto end = batch.tensors.begin() + static_cast<std::ptrdiff_t>(arguments);
    const auto output = network_->forward(std::vector<torch::Tensor>(batch.tensors.begin(), end));
    return has_classes() ? places_.classes_first(output) : output;
  });
  using Kind = vernier::Targets::Kind;
  vernier::Targets are;  // the loss says it, and nothing else does
  if (has_classes()) are = {Kind::classes, classes_.count, classes_.words};
  if (!has_classes() && !is_loss) are = {loss_ == "bce" ? Kind::labels : Kind::numbers, outputs_, output_names_};
  if (class_weights_.defined() && class_weights_.numel() != are.count) {
    refuse(c10::str("`class_weights` has ", class_weights_.numel(), " numbers, and there are ", are.count,
                    has_classes() ? " classes" : " labels"));
  }
  set_loss([this](const auto& output, const auto& target) { return loss_of(output, target); },
           is_loss ? std::nullopt : std::optional(inputs_.size()), are);
  auto metrics = metrics_;
  if (metrics.empty() && !places_.shape().empty()) metrics = {"accuracy", "iou"};
  if (!metrics.empty()) {
    for (auto& metric : vernier::metrics_by_name(metrics, are)) add_metric(std::move(metric));
  }
  if (!training_ || is_trained() || is_loss) return;
  const auto targets =
      has_images_ ? image_labels_ : training_->get_batch(torch::arange(training_->size()))->at(inputs_.size());
  learn_targets(vernier::target_facts(targets, are));
}

// Finds a batch that the model was not exported for before the first step, where it is the last one of an epoch too.
void ExportedTask::check(const Run& run) {
  const auto first = example(1).tensors;
  const auto size = batch_size();
  const bool drops_last = training_ && batches_per_epoch() * size < training_->size();
  std::int64_t samples = 0;  // samples of the last batch that was looked at
  const auto unmet = [&](std::int64_t batch) -> std::string {
    for (const auto& data : {training_, held_out_}) {
      const auto all = data ? data->size() : 0;
      for (const auto count : {std::min(batch, all), data == training_ && drops_last ? 0 : all % batch}) {
        auto inputs = first;
        for (auto& input : inputs) {
          auto sizes = input.sizes().vec();
          sizes.at(0) = samples = count;
          input = input.expand(sizes);
        }
        if (auto guard = count > 0 ? network_->unmet(inputs) : ""; !guard.empty()) return guard;
      }
    }
    return "";
  };
  // Else a rank has a part of a batch.
  const bool is_alone =
      run.control == nullptr || run.control->ranks() == 1 || vernier::draft::ModelParts::current() != nullptr;
  const auto guard = training_ && is_alone ? unmet(size) : std::string();
  if (guard.empty()) return SupervisedTask::check(run);
  const auto what = c10::str("'", model_, "' was exported for inputs of which ", guard, ", and a batch has ", samples,
                             samples == 1 ? " sample; " : " samples; ");
  for (std::int64_t i = 1; i < std::min<std::int64_t>(size, 1024); ++i) {
    for (const auto other : {size - i, size + i}) {
      if (unmet(other).empty()) refuse(c10::str(what, "set [task] batch_size = ", other));
    }
  }
  refuse(what + "export it with examples of such batches");
}

DatasetPtr ExportedTask::read_several(const std::vector<std::string>& paths) {
  if (loss_ == "output") {
    refuse("loss = \"output\": the model returns its loss, so there is nothing to predict; export the model instead");
  }
  const auto names = sources_of(paths);
  if (has_images_) {
    const auto files = vernier::image_files(names[0], {});
    names_of_files_ = files.names;
    return pixels(files.dataset, size_);
  }
  auto tensors = read_tensors(names);
  require_rows(tensors, names);
  const auto fingerprint = vernier::fingerprint_of(tensors);
  return vernier::dataset_of(std::move(tensors), names[0], fingerprint, where_);
}

std::vector<ExportedTask::Column> ExportedTask::predict(const Batch& batch) {
  const auto output = forward(batch);
  std::vector<Column> columns;
  if (!places_.shape().empty()) {
    columns = columns_of_places(targets(), output, places_.shape(), batch.samples);
  } else if (loss_ == "bce" || (has_classes() && output.dim() <= 2)) {  // softmax keeps log-probabilities
    columns = columns_of(targets(), output, batch.samples);
  } else {
    // The model may have dropped a batch dimension of 1.
    const auto is_of_one = batch.samples == 1 && output.numel() == outputs_ && output.dim() <= 1;
    columns = {{"output", is_of_one ? output.reshape({1, -1}) : output}};
  }
  if (!names_of_files_.empty()) columns.insert(columns.begin(), {"image", batch.tensors.at(1), names_of_files_});
  return columns;
}

std::string ExportedTask::description() const {
  nlohmann::ordered_json all = {{"task", name_}, {"inputs", nlohmann::ordered_json::array()}};
  for (std::size_t i = 0; i < inputs_.size() && i < forms_.size(); ++i) {
    const auto& form = forms_[i];
    nlohmann::ordered_json input = {{"name", inputs_[i]}, {"dtype", name_of(form.dtype)}};
    input["shape"] = {"samples"};
    for (const auto size : form.shape) input["shape"].push_back(size);
    if (!form.columns.empty()) input["columns"] = form.columns;
    if (!form.words.empty()) input["words"] = form.words;
    all["inputs"].push_back(input);
  }
  if (has_images_) {
    all["inputs"] = {{{"dtype", "float32"}, {"shape", {"samples", 3, "height", "width"}}, {"range", {0, 1}}}};
    if (size_ > 0) all["inputs"][0]["size"] = size_;
  }
  auto& output = all["output"];
  output["is"] = loss_ == "cross_entropy" ? "logits"
                 : loss_ == "nll"         ? "log-probabilities"
                 : loss_ == "bce"         ? "logit of a probability"
                 : loss_ == "output"      ? "the loss"
                                          : "numbers, in the units of the target";
  if (has_classes()) output["classes"] = names_of(classes_);
  if (loss_ == "bce" && !output_names_.empty()) output["labels"] = output_names_;
  return vernier::json_text(all, 2);
}

void ExportedTask::refuse_contradictions(const Options& options) const {
  if (inputs_.empty()) return;  // the options are only described
  vernier::refuse_recompute(options);
  if (loss_ == "output" && !metrics_.empty()) options.refuse("metrics", "need outputs, and the model returns its loss");
  for (const char* key : {"ignore_index", "class_weights"}) {
    if (options.given(key) && !has_classes() && loss_ != "bce") {
      options.refuse(key, "is for loss = \"cross_entropy\", \"nll\" and \"bce\"; leave it out");
    }
  }
}

void ExportedTask::check_data() {
  if (!held_out_inputs_.empty() && held_out_inputs_.size() != inputs_.size()) {
    refuse(
        c10::str("`validation_inputs` has ", held_out_inputs_.size(), " sources, and `inputs` has ", inputs_.size()));
  }
  if (!target_.empty() && held_out_inputs_.empty() != held_out_target_.empty()) {
    refuse("`validation_inputs` and `validation_target` are given both or not at all");
  }
  has_images_ = is_folder(inputs_[0]);
  if (has_images_ && inputs_.size() > 1) refuse("`inputs` has a folder of images and others");
  const bool has_masks = has_images_ && !target_.empty();
  if (has_masks && !is_folder(target_)) {
    refuse("'" + target_ +
           "' is not a folder; of pictures, `target` is the folder of their masks, or is left out for a "
           "folder of classes");
  }
  if (has_masks && !has_classes() && loss_ != "bce") {
    refuse("masks of pictures are for loss = \"cross_entropy\", \"nll\" and \"bce\"");
  }
  if (has_images_ && target_.empty()) places_.refuse_ignore_index("is for files and masks; a folder has its classes");
  if (target_.empty() && !has_images_ && loss_ != "output") refuse("`target` is needed for loss = \"" + loss_ + "\"");
}

vernier::State ExportedTask::facts() const {
  auto state = data_facts_;
  state.put("given/module", bytes_);
  vernier::put_words(state, "inputs", inputs_);
  state.put("images", static_cast<std::int64_t>(has_images_));
  state.put("classes", classes_.count);
  vernier::put_words(state, "words", classes_.words);
  state.put("outputs", outputs_);
  state.put("places", torch::tensor(places_.shape(), torch::kInt64));
  vernier::put_words(state, "output_names", output_names_);
  for (std::size_t i = 0; i < forms_.size(); ++i) {
    vernier::State form;
    form.put("dtype", torch::zeros({0}, forms_[i].dtype));
    form.put("shape", torch::tensor(forms_[i].shape, torch::kInt64));
    vernier::put_words(form, "columns", forms_[i].columns);
    vernier::put_words(form, "words", forms_[i].words);
    state.put(c10::str("form/", i), form);
  }
  return state;
}

void ExportedTask::recall() {
  const auto& facts = learned();
  bytes_ = facts.tensor("given/module").to(torch::kCPU);
  has_images_ = facts.integer("images") != 0;
  classes_ = {facts.integer("classes"), vernier::words_of(facts, "words")};
  places_.recall(facts);
  outputs_ = facts.integer("outputs"), output_names_ = vernier::words_of(facts, "output_names");
  forms_.clear();
  for (std::size_t i = 0; facts.has(c10::str("form/", i, "/dtype")); ++i) {
    const auto form = facts.part(c10::str("form/", i));
    forms_.push_back({form.tensor("dtype").scalar_type(), sizes_in(form.tensor("shape")),
                      vernier::words_of(form, "columns"), vernier::words_of(form, "words")});
  }
}

std::vector<std::string> ExportedTask::sources_of(const std::vector<std::string>& files) const {
  const auto wanted = inputs_.size();
  const bool has_parts = std::ranges::all_of(inputs_, [](const auto& name) { return name != vernier::file_of(name); });
  const bool is_one_for_all = has_parts && files.size() == 1 && wanted > 1 && files[0] == vernier::file_of(files[0]);
  if (files.size() != wanted && !is_one_for_all) {
    refuse(c10::str("the model takes ", wanted, " inputs, and ",
                    files.size() == 1 ? "'" + files[0] + "' is one" : c10::str(files.size(), " are given"), "; name ",
                    has_parts ? "one file that has all of them, such as new.npz, or " : "",
                    "a file for each, in the order of `inputs`: ", c10::Join(", ", inputs_)));
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < wanted; ++i) {
    names.push_back(vernier::same_part(inputs_[i], files[is_one_for_all ? 0 : i]));
  }
  return names;
}

void ExportedTask::build_data(std::uint64_t seed) {
  const vernier::NamedData named = {
      {inputs_, target_}, {held_out_inputs_, held_out_target_}, "validation_inputs", "validation_target", true};
  DatasetPtr training, held_out;
  const auto read_all = [&](const vernier::NamedData::Files& files) {
    training = held_out = read(sources_of(files.names), files.targets);
    return std::vector{training->fingerprint()};
  };
  const auto hold_out = [&] {
    held_out.reset();
    if (share_ > 0) std::tie(training, held_out) = vernier::split(training, share_, seed);
    return held_out;
  };
  if (is_trained()) {
    inputs_ = vernier::words_of(learned(), "inputs");
    named.read_again(learned(), read_all, hold_out);
  } else {
    const auto contents = read_all(named.training);
    vernier::warn_if_in_both(id(), inputs_, held_out_inputs_);
    held_out = held_out_inputs_.empty() ? hold_out() : read(held_out_inputs_, held_out_target_);
    data_facts_ = named.facts(contents, held_out);
    if (has_images_ && held_out_inputs_.empty() && share_ > 0) {
      const auto split = vernier::split_random(image_labels_.size(0), share_, seed);
      image_labels_ = image_labels_.index_select(0, split.training);
    }
  }
  if (training->size() == 0) refuse("'" + inputs_[0] + "' has no sample left to train on; hold out less");
  set_training(training);
  training_ = training, held_out_ = held_out;
  if (held_out) add_validation(held_out);
}

DatasetPtr ExportedTask::read(const std::vector<std::string>& inputs, const std::string& target) {
  if (has_images_ && !target.empty()) {
    const auto masked = masked_pictures(inputs[0], target, size_);
    if (!masked.left_out.empty()) warn(masked.left_out);
    vernier::Random none(0, 0, 0);
    const auto picture = masked.pictures->get(0, none).at(0);
    const auto output = network_->try_two({picture.unsqueeze(0).repeat({2, 1, 1, 1})});
    auto labels = read_target(masked.masks, output, picture.sizes());
    if (!labels.is_floating_point()) labels = labels.to(torch::kInt16);
    if (!image_labels_.defined()) image_labels_ = labels;
    return with_labels(masked.pictures, labels);
  }
  if (has_images_) {
    const auto folder = vernier::image_folder(inputs[0], {.classes = classes_.words});
    classes_ = {std::ssize(folder.classes), folder.classes};
    if (!image_labels_.defined()) image_labels_ = folder.labels;  // before training, the training data are read first
    return pixels(folder.dataset, size_);
  }
  const bool is_first = forms_.empty();
  auto names = inputs;
  if (loss_ == "output" && !target.empty()) names.push_back(target);  // an argument of forward() as well
  auto tensors = read_tensors(names);
  torch::Tensor output;
  if (is_first) output = fit_dtypes(tensors);
  if (loss_ != "output") {
    names.push_back(target);
    const auto source = vernier::read_source(target, classes_.words, {}, form_);
    tensors.push_back(read_target(source, output, forms_.at(0).shape));
  }
  require_rows(tensors, names);
  return vernier::dataset_of(tensors, inputs[0], vernier::fingerprint_of(tensors), where_);
}

std::vector<torch::Tensor> ExportedTask::read_tensors(const std::vector<std::string>& names) {
  const bool is_first = forms_.empty();
  std::vector<torch::Tensor> tensors;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto known = is_first ? Form() : forms_.at(i);
    auto source = vernier::read_source(names[i], known.words, known.columns, form_);
    vernier::require_finite(source);
    if (i == 0) where_ = source.where;
    if (is_first && source.tensor.is_floating_point()) source.tensor = fitted(source.tensor, source);
    if (!is_first && source.words.empty() != known.words.empty()) {
      refuse("'" + names[i] + "' has " +
             (source.words.empty() ? "numbers, and the model learned from words"
                                   : "words, and the model learned from numbers"));
    }
    if (is_first) {
      const auto& tensor = source.tensor;
      const bool is_whole =
          !tensor.is_floating_point() || (!source.columns.empty() && (tensor == tensor.round()).all().item<bool>());
      forms_.push_back({tensor.scalar_type(), tensor.sizes().slice(1).vec(), source.columns, source.words,
                        is_whole && tensor.scalar_type() != torch::kInt64});
    } else if (source.tensor.sizes().slice(1) != c10::IntArrayRef(known.shape)) {
      refuse(c10::str("'", names[i], "' has samples of the shape ", source.tensor.sizes().slice(1),
                      ", and the model learned from ", c10::IntArrayRef(known.shape)));
    }
    tensors.push_back(is_first ? source.tensor : source.tensor.to(known.dtype));
  }
  return tensors;
}

torch::Tensor ExportedTask::fitted(const torch::Tensor& numbers, const vernier::Source& source) const {
  if (network_->parameters().front().scalar_type() == torch::kFloat64) return numbers.to(torch::kFloat64);
  const auto lost = vernier::lost_digits(numbers.dim() > 1 ? numbers : numbers.unsqueeze(1), /*is_centred=*/false,
                                         numbers.dim() == 2 ? source.columns : std::vector<std::string>{});
  if (!lost.empty()) {
    warn("'", source.name, "': ", lost,
         "; the network is float32: take the mean off the data, or export it in float64, "
         "as in torch.jit.script(module.double())");
  }
  return numbers.to(torch::kFloat32);
}

torch::Tensor ExportedTask::fit_dtypes(std::vector<torch::Tensor>& tensors) {
  std::vector<std::size_t> choices;
  for (std::size_t i = 0; i < tensors.size() && choices.size() < 6; ++i) {
    if (forms_[i].may_be_codes) choices.push_back(i);
  }
  std::vector<unsigned> changes(std::size_t{1} << choices.size());
  for (unsigned i = 0; i < changes.size(); ++i) changes[i] = i;
  std::ranges::stable_sort(changes, {}, [](unsigned bits) { return std::popcount(bits); });
  std::string trouble;  // with their own dtypes
  for (const auto bits : changes) {
    auto changed = tensors;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if ((bits >> i & 1) != 0) changed[choices[i]] = tensors[choices[i]].to(torch::kInt64);
    }
    try {
      const auto output = network_->try_two(changed);
      for (std::size_t i = 0; i < changed.size(); ++i) forms_[i].dtype = changed[i].scalar_type();
      tensors = changed;
      return output;
    } catch (const vernier::Error& error) {
      if (trouble.empty()) trouble = error.what();
    }
  }
  refuse("'" + model_ + "' does not take `inputs`: " + trouble);
}

// PyTorch divides by the sum of the weights of all labels that count.
std::optional<double> ExportedTask::weight_of(const Batch& part) const {
  if (!has_classes() || (!places_.are_left_out() && !class_weights_.defined())) return std::nullopt;
  if (part.tensors.empty()) return 0;
  const auto labels = part.tensors.at(inputs_.size()).flatten();
  const auto counted = labels.masked_select(labels >= 0);
  return class_weights_.defined() ? class_weights_.index_select(0, counted).sum(torch::kFloat64).item<double>()
                                  : static_cast<double>(counted.numel());
}

torch::Tensor ExportedTask::read_target(vernier::Source source, const torch::Tensor& output, c10::IntArrayRef input) {
  const bool is_bce = loss_ == "bce", is_first = (has_classes() ? classes_.count : outputs_) == 0;
  if ((has_classes() || is_bce) && places_.take(source, output, has_classes())) {
    source.tensor = places_.read(source, output, input, has_classes(), has_classes() ? classes_.count : outputs_);
    if (is_first && !places_.doubt().empty()) warn(places_.doubt());
    const auto& labels = source.tensor;
    if (is_first && has_classes()) info(vernier::counted(classes_, labels.masked_select(labels >= 0)));
    if (has_classes()) return labels;
  }
  if (has_classes()) {
    const auto outputs = output.defined() && output.dim() > 1 ? output.size(1) : 0;
    // A model that has been trained before knows its classes by their numbers, also where some do not occur.
    if (is_first && source.words.empty() && source.tensor.dim() == 1) {
      const auto [least, most] = source.tensor.aminmax();
      if (least.item<double>() >= 0 && most.item<double>() < static_cast<double>(outputs))
        classes_.count = most.item<std::int64_t>() + 1;
    }
    const auto labels = vernier::codes_of(source, classes_, "set loss = \"mse\"");
    if (is_first) info(vernier::counted(classes_, labels));
    if (const auto alike = vernier::alike_words(classes_.words); is_first && !alike.empty()) {
      warn("'", source.name, "' has ", alike);
    }
    return labels;
  }
  if (!source.words.empty()) {
    refuse("'" + source.name + "' has words; they are for loss = \"cross_entropy\" or \"nll\"");
  }
  if (is_bce) source.tensor = vernier::as_floats(source.tensor).masked_fill(source.tensor == places_.left_out(), NAN);
  auto known = source;
  if (is_bce) known.tensor = known.tensor.nan_to_num(0, HUGE_VAL, -HUGE_VAL);
  vernier::require_finite(known);
  const auto numbers = fitted(vernier::as_floats(source.tensor), source);
  if (is_bce && ((numbers < 0) | (numbers > 1)).any().item<bool>()) {
    refuse("'" + source.name + "' has numbers below 0 or above 1; loss = \"bce\" takes probabilities");
  }
  misses_labels_ = misses_labels_ || (is_bce && numbers.isnan().any().item<bool>());
  const auto sizes = numbers.sizes();
  if (outputs_ == 0) {
    outputs_ = numbers.dim() < 2 ? 1 : is_bce ? sizes[1] : numbers.numel() / std::max<std::int64_t>(sizes[0], 1);
    if (std::ssize(source.columns) == outputs_) output_names_ = source.columns;
  }
  return numbers;
}

torch::Tensor ExportedTask::loss_of(const torch::Tensor& output, const torch::Tensor& target) const {
  if (loss_ == "output") return output.mean();
  if (has_classes()) {
    require_logits(output, classes_.count);
    auto weights = class_weights_;
    if (weights.defined()) {  // a model may have outputs of no class
      weights = at::constant_pad_nd(weights.to(output.options()), {0, output.size(1) - weights.numel()}, 1);
    }
    const auto loss =
        loss_ == "nll" ? at::nll_loss_nd(output, target, weights) : at::cross_entropy_loss(output, target, weights);
    if (!places_.are_left_out() && !weights.defined()) return loss;
    auto counts = target >= 0;
    if (weights.defined()) {
      counts = counts & weights.index_select(0, target.clamp_min(0).flatten()).ne(0).view(target.sizes());
    }
    return at::where(counts.any(), loss, at::zeros_like(loss));  // the mean of none is NaN
  }
  const auto numbers = as_target(output, target);
  if (loss_ == "mse") return at::mse_loss(numbers, target);
  if (loss_ == "l1") return at::l1_loss(numbers, target);
  if (loss_ == "huber") return at::huber_loss(numbers, target);
  auto weights = class_weights_;
  if (weights.defined()) {
    std::vector<std::int64_t> sizes(std::max<std::size_t>(target.dim(), 2) - 1, 1);
    sizes[0] = weights.numel();
    weights = weights.to(numbers.options()).view(sizes);
  }
  if (!misses_labels_) return at::binary_cross_entropy_with_logits(numbers, target, {}, weights);
  return at::binary_cross_entropy_with_logits(numbers, target.nan_to_num(), ~target.isnan(), weights);
}

}  // namespace exported
