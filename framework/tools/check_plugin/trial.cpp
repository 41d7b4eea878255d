#include "trial.h"

#include <ATen/Context.h>
#include <torch/nn/module.h>
#include <vernier/error.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <tuple>

#include "common/text/numbers.h"
#include "output/recorded_run.h"
#include "run/state/snapshot.h"

namespace vernier {

namespace {

template <class Base, class Seen>
class Listener final : public Base {
 public:
  Listener(Event event, std::function<void(Seen&)> call) : event_(event), call_(std::move(call)) {
    HostApi::set_id(*this, "check");
  }
  void attach(Bus& bus) override { bus.on(event_, call_); }

 private:
  Event event_;
  std::function<void(Seen&)> call_;
};

// Without a device the run is on the CPU, whatever the machine has.
Table in_folder(Table config, const std::string& output) {
  auto& run = config.try_emplace("run", Value{Table{}, "check"}).first->second;
  auto& table = std::get<Table>(run.data);
  table.insert_or_assign("output", Value{output, "check"});
  table.try_emplace("device", Value{std::string("cpu"), "check"});
  return config;
}

// A weight that something else than the optimizer wrote cannot be undone.
bool has_injected_weights(const Run& run) {
  return std::ranges::any_of(run.notices, [](const Notice& notice) {
    return notice.name == "injected" && notice.text().find("where=weight") != std::string::npos;
  });
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Trained& trained) {
  out << trained.digest << " after " << trained.updates << " updates\n";
  for (const auto& [step, loss] : trained.losses) out << "step " << step << ": " << loss << '\n';
  return out;
}

bool Trained::operator==(const Trained& other) const {
  return std::tie(digest, losses, updates) == std::tie(other.digest, other.losses, other.updates);
}

namespace {

// Numbers as they are, and else dtype, shape and digest.
std::string described(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "nothing";
  const auto kind = c10::str(tensor.scalar_type(), " ", tensor.sizes(), " ");
  const bool is_number = tensor.numel() == 1 && !tensor.is_complex();
  return kind + (is_number ? printed("%.17g", tensor.item<double>()) : digest(Tensors{{"", tensor}}).substr(0, 12));
}

}  // namespace

std::string difference(const Trained& trained, const Trained& other) {
  for (const auto& [step, loss] : trained.losses) {
    const auto found = other.losses.find(step);
    if (found == other.losses.end()) return c10::str("step ", step, " is missing");
    if (found->second != loss) return c10::str("the loss of step ", step, " is ", found->second, " and not ", loss);
  }
  if (trained.losses != other.losses) return "there are more steps";
  if (trained.updates != other.updates)
    return c10::str(other.updates, " updates were applied and not ", trained.updates);
  for (const auto& [step, facts] : trained.facts) {
    const auto others = other.facts.contains(step) ? other.facts.at(step) : facts;
    for (const auto& [name, fact] : facts) {
      const auto now = others.contains(name) ? others.at(name) : "nothing";
      if (now != fact) return c10::str("after step ", step, " ", name, " ", now, " and not ", fact);
    }
  }
  return trained == other ? "" : "the losses are the same, and the weights at the end are not";
}

Trial::Trial(const Host& host, Table config, int threads, Folder folder)
    : folder_(std::move(folder)),
      prepared_(prepare(
          in_folder(std::move(config), folder_->path()), "check", host, stop_,
          [](const Wiring& wiring, const RunOptions&, const std::string& output) {
            return OutputFolder::is_there(output, *wiring.checkpoint);
          },
          threads)) {
  run().quiet = true;
}

void Trial::keep_losses(const std::string& id) {
  on(Event::StepEnd, [this](Run& run) { losses_[run.step] = printed("%.9g", run.loss.item<double>()); });
  on_last(Event::BackwardDone, [this](const Run& run) {
    Tensors gradients;
    for (const auto& each : run.parameters) {
      if (each.model.grad().defined()) gradients[each.name] = each.model.grad();
    }
    facts_[run.step + 1]["the scaled gradients are"] = digest(gradients).substr(0, 12);
  });
  on_last(Event::StepEnd, [this, id](const Run& run) {
    auto& facts = facts_[run.step];
    facts["LibTorch's random generator is"] = described(random_state());
    facts["run.loss is"] = described(run.loss);
    const auto* plugin = id.empty() ? nullptr : find(id);
    if (plugin == nullptr) return;
    for (const auto& [name, tensor] : plugin->save().tensors) {
      facts["its save() returns for `" + name + "`"] = described(tensor);
    }
  });
}

void Trial::attach(std::unique_ptr<Plugin> listener, bool monitor) {
  listeners_.push_back(std::move(listener));
  HostApi::attach(wiring().bus, *listeners_.back(), monitor);
}

void Trial::on(Event event, std::function<void(Run&)> listener) {
  attach(std::make_unique<Listener<Callback, Run>>(event, std::move(listener)), false);
}

void Trial::on_last(Event event, std::function<void(const Run&)> listener) {
  attach(std::make_unique<Listener<Monitor, const Run>>(event, std::move(listener)), true);
}

void Trial::stop_after(std::int64_t steps) {
  on(Event::StepEnd, [this, steps](Run& run) {
    if (run.step == steps) stop_ = SIGINT;
  });
}

bool Trial::resume() {
  const bool is_alone = wiring().distributed->ranks() == 1;
  if (!prepared_->resumes && is_alone && wiring().checkpoint->read(run(), "")) {
    throw Error(wiring().checkpoint->id() +
                ": read() finds a snapshot in the run's folder, and snapshots() names none there, so that --resume and "
                "`launch --restarts` begin again from the start");
  }
  if (!prepared_->resumes && is_alone) return false;
  opened_.emplace(open_run(*prepared_, "", /*allow_inexact=*/false, [](const std::string&) {}));
  return prepared_->resumes;
}

Outcome Trial::train() {
  return prepared_->trainer.train(run());
}

Trained Trial::trained() const {
  return {digest(*prepared_->run.model), losses_, prepared_->run.updates, facts_};
}

Plugin* Trial::find(const std::string& id) const {
  const auto plugins = prepared_->wiring->plugins();
  const auto in_run = id.starts_with("quantizer/") ? "precision/format" : id;
  const auto found = std::ranges::find(plugins, in_run, [](const Plugin* plugin) { return plugin->id(); });
  return found == plugins.end() ? nullptr : *found;
}

Plugin& Trial::plugin(const std::string& id) const {
  if (auto* plugin = find(id)) return *plugin;
  throw Error("the run has no plugin " + id);
}

Trained train_twice(const Subject& subject, const Table& config) {
  auto trained = train(subject.host, config, 1, subject.id());
  const auto again = train(subject.host, config, 1, subject.id());
  std::set<std::string> varying;
  for (const auto& [step, facts] : trained.facts) {
    for (const auto& [name, fact] : facts) {
      const auto& others = again.facts.at(step);
      if (!others.contains(name) || others.at(name) != fact) varying.insert(name);
    }
  }
  for (auto& [step, facts] : trained.facts)
    std::erase_if(facts, [&](auto& each) { return varying.contains(each.first); });
  return trained;
}

torch::Tensor random_state() {
  return at::globalContext().defaultGenerator(torch::kCPU).get_state();
}

Trained train(const Host& host, const Table& config, int threads, const std::string& id) {
  Trial trial(host, config, threads);
  trial.keep_losses(id);
  trial.train();
  return trial.trained();
}

std::optional<Trained> train_in_two_parts(const Host& host, const Table& config, std::int64_t stop, int threads,
                                          Trial::Folder folder, const std::function<void()>& between,
                                          const std::string& id) {
  Trained before;
  {
    Trial first(host, config, threads, folder);
    first.resume();
    first.keep_losses(id);
    first.stop_after(stop);
    if (first.train().signal != SIGINT) throw Error(c10::str("the run did not stop after step ", stop));
    stop = first.run().step;  // several ranks stop one step later, when all of them know
    before = first.trained();
  }
  between();
  Trial second(host, config, threads, folder);
  second.keep_losses(id);
  if (!second.resume()) return std::nullopt;
  if (second.run().step != stop) {
    throw Error(c10::str("the checkpoint of a run that stopped after step ", stop, " is of step ", second.run().step));
  }
  second.train();
  auto trained = second.trained();
  trained.losses.insert(before.losses.begin(), before.losses.end());
  trained.facts.insert(before.facts.begin(), before.facts.end());
  return trained;
}

AfterFailure train_after_failure(const Host& host, const Table& config, Event event,
                                 const std::function<bool(const Run&)>& fails) {
  const auto folder = std::make_shared<const ScratchFolder>();
  AfterFailure after;
  Trained before;
  {
    Trial first(host, config, 1, folder);
    first.keep_losses();
    first.on(event, [&](Run& run) {
      if (!fails(run)) return;
      after.may_be_lost = first.wiring().optimizer->steps_in_backward() || has_injected_weights(run);
      throw Error("boom");
    });
    std::string text;
    try {
      first.train();
    } catch (const Error& error) {
      text = error.what();
    }
    if (text.find("boom") == std::string::npos) throw Error("the run did not end where it was to fail: " + text);
    before = first.trained();
    after.failed_at = first.run().step;
  }
  Trial second(host, config, 1, folder);
  second.keep_losses();
  after.is_resumed = second.resume();
  after.resumed_at = second.run().step;
  second.train();
  after.trained = second.trained();
  if (!after.is_resumed) return after;
  std::erase_if(before.losses, [&](const auto& entry) { return entry.first > after.resumed_at; });
  after.trained.losses.insert(before.losses.begin(), before.losses.end());
  return after;
}

}  // namespace vernier
