// control: a page and an API at which people watch a run and steer it; see docs/guides/control.md.
//   listen = "127.0.0.1:0"        address of this machine alone, and port; port 0: one that the system chooses
//   hosts = []                    further names and ports by which it is reached, as through a tunnel: "localhost:9000"
//   tokens = "control.tokens"     file with the tokens, below the run's folder unless it begins with a slash; it is
//                                 made if there is none
//   requests_per_second = 1000.0  of all clients; more are answered with 429
// Commands take effect between two steps. commands.jsonl in the run's folder has each of them with its step, and a
// resumed run and `vernier replay` repeat those that steered the run at the same steps. Place it behind the other
// callbacks: it shows the numbers that they measure. With several processes rank 0 serves, and takes no commands.
// Source of the rules of the service: RFC 9110, RFC 9457 and the WHATWG's "Server-sent events".
#include <vernier/json_text.h>
#include <vernier/record_queue.h>
#include <vernier/sdk.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

#include "api.h"
#include "commands.h"
#include "journal.h"
#include "service/http/http_server.h"
#include "shared/hyper_parameters.h"
#include "view.h"

namespace control {

namespace fs = std::filesystem;
using vernier::BetweenSteps;
using vernier::Event;
using vernier::Record;
using vernier::Run;

// The service of one run: from RunBegin to the end of the plugin.
class Service {
 public:
  struct Settings {
    std::string listen;
    std::vector<std::string> hosts;
    fs::path tokens;
    vernier::HttpLimits limits;
  };
  Service(const Run& run, const Settings& settings, std::int64_t next_id)
      : view(run),
        board(next_id,
              [this](const vernier::Json& command) {
                view.add_event("command", command);
                wake();
              }),
        service_("Vernier: control of a run", VERNIER_VERSION, tokens_of(settings.tokens), settings.hosts,
                 routes({view, board, vernier::text_in(run.output + "/config.toml"), run.device,
                         run.control->ranks() > 1 ? "several processes train this run: it takes no commands" : ""})),
        server_(
            settings.listen, [this](const vernier::HttpRequest& request) { return service_.answer(request); },
            [this](const vernier::HttpRequest& request) { return service_.refuse(request); },
            limits_of(settings.limits)),
        queue_([this](const Record& record) { view.take(record); }, [this] { wake(); }) {}

  std::string address(const std::string& listen) const {
    return listen.substr(0, listen.rfind(':') + 1) + std::to_string(server_.port());
  }
  void wake() { server_.wake(); }
  void push(const Run& run, Record::Kind kind) {
    queue_.push([&](Record& record) { collector_.collect(run, kind, record); });
  }
  void drain() { queue_.drain(); }

  View view;
  Board board;

 private:
  static vernier::Tokens tokens_of(const fs::path& file) {
    return {file, vernier::Scope::control,
            [](const std::string& text) { vernier::log(vernier::Level::warning, "http", text); }};
  }

  vernier::HttpLimits limits_of(vernier::HttpLimits limits) {
    limits.knows = [this](const vernier::HttpRequest& request) { return service_.knows(request); };
    return limits;
  }

  vernier::Collector collector_;
  vernier::HttpService service_;
  vernier::HttpServer server_;  // its thread uses all of the above
  vernier::RecordQueue queue_;  // its thread uses the server
};

class Control final : public vernier::Callback {
 public:
  explicit Control(vernier::Options& options) {
    settings_.listen = options.get("listen", "127.0.0.1:0", "address of this machine alone, and port; 0: any");
    settings_.hosts =
        options.get("hosts", std::vector<std::string>(), "further names and ports by which it is reached");
    settings_.tokens = options.get("tokens", "control.tokens", "file with the tokens; made where there is none");
    settings_.limits.requests_per_second =
        options.get("requests_per_second", 1000.0, "of all clients, at most", vernier::between(1, 1e6));
    for (const char* key : {"listen", "hosts", "tokens", "requests_per_second"}) options.resumable(key);
    const auto trouble = vernier::trouble_with_listen(settings_.listen);
    if (!trouble.empty()) options.refuse("listen", trouble);
    if (!vernier::is_loopback(settings_.listen)) {
      options.refuse("listen",
                     "is reached by other machines, and there is no encryption; listen at 127.0.0.1, and "
                     "reach it from elsewhere through ssh -L");
    }
    if (settings_.tokens.empty()) options.refuse("tokens", "must name a file");
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](Run& run) { begin(run); });
    bus.on(Event::StepBegin, [this](Run& run) { run.learning_rate_factor *= factor_; });
    bus.on(Event::StepEnd, [this](Run& run) {
      trained_ += 1;
      steered_ = 0;
      if (!service_) return;
      service_->push(run, Record::Kind::step);
      service_->view.set_state("running", run, factor_);
    });
    bus.on(Event::Validated, [this](Run& run) {
      if (service_) service_->push(run, Record::Kind::validation);
    });
    bus.on(Event::RunEnd, [this](Run& run) { end(run, "ended"); });
    bus.on(Event::RunFailed, [this](Run& run) { end(run, "failed"); });
  }

  void prepare(Run& run) override {
    if (run.control->ranks() == 1) {
      run.control->between_steps(*this, [this, &run](BetweenSteps& between) { return look(run, between); });
    }
  }

  vernier::State save() const override {
    vernier::State state;
    state.put("factor", factor_);
    state.put("trained", trained_);
    state.put("steered", steered_);
    for (const auto& [monitor, every] : intervals_) state.put("every/" + monitor, every);
    return state;
  }
  // Later than RunBegin it is a rewind, or a step that is undone: commands stay in force.
  void load(const vernier::State& state) override {
    if (has_begun_) return;
    factor_ = state.real("factor");
    trained_ = state.integer("trained");
    steered_ = state.integer("steered");
    const auto every = state.part("every");
    for (const auto& [monitor, ignored] : every.tensors) intervals_[monitor] = every.integer(monitor);
  }

 private:
  void begin(Run& run) {
    has_begun_ = true;
    const bool is_replay = !run.replayed_from.empty();
    if (run.control->rank() > 0) return;
    const auto file = fs::path(is_replay ? run.replayed_from : run.output) / "commands.jsonl";
    std::int64_t next_id = 1;
    recorded_ = read_journal(file, next_id);
    // The checkpoint has seen the first `steered_` commands of its own moment, and all earlier ones.
    const auto is_over = [&, of_now = std::int64_t{0}](const Recorded& each) mutable {
      return each.moment < trained_ || (each.moment == trained_ && of_now++ < steered_);
    };
    std::erase_if(recorded_, is_over);
    if (is_replay) return;
    auto settings = settings_;
    settings.tokens = fs::path(run.output) / settings_.tokens;
    journal_ = std::make_unique<Journal>(file);
    serve(run, std::move(settings), next_id);
  }

  void serve(const Run& run, Service::Settings settings, std::int64_t next_id) {
    url_file_ = fs::path(run.output) / "control.url";
    if (std::error_code none; fs::exists(url_file_, none)) vernier::Tokens::forget(settings.tokens);
    service_ = std::make_unique<Service>(run, settings, next_id);
    const auto url = "http://" + service_->address(settings_.listen) + "/";
    std::ofstream(url_file_) << url << '\n';
    info("this run is at ", url, ", with a token of ", settings.tokens.string());
    if (!recorded_.empty()) info("commands of commands.jsonl that this run repeats at their steps: ", recorded_.size());
    service_->view.set_state("running", run, factor_);
  }

  // Between two steps. True: to be called again.
  bool look(Run& run, BetweenSteps& between) {
    if (!std::exchange(has_looked_, true)) restore_intervals(between);
    while (!recorded_.empty() && recorded_.front().moment <= trained_ && !run.control->finishes()) {
      const auto next = std::move(recorded_.front());
      recorded_.erase(recorded_.begin());
      const auto result = carry_out(run, between, next.id, next.command);
      info("step ", run.step, ": command ", next.id, " is repeated: ", result.text);
    }
    if (!service_) return false;
    while (const auto asked = run.control->finishes() ? std::nullopt : service_->board.take())
      obey(run, between, *asked);
    service_->view.set_state(is_paused_ ? "paused" : "running", run, factor_);
    if (!is_paused_ || run.control->finishes()) return false;
    service_->wake();
    service_->board.wait(std::chrono::milliseconds(100));
    return true;
  }

  // A command is on the disk before it takes effect, so that no checkpoint has one that is not recorded.
  void obey(Run& run, BetweenSteps& between, const Board::Asked& asked) {
    const auto step = run.step;
    try {
      journal_->asked(asked, step, trained_);
    } catch (const vernier::Error& error) {
      warn(error.what());
      return service_->board.answer(asked.id, step, {false, error.what()});
    }
    const auto result = carry_out(run, between, asked.id, asked.command);
    try {
      journal_->answered(asked.id, result);
    } catch (const vernier::Error& error) {
      warn(error.what());  // the command is recorded, and took effect
    }
    info("step ", step, ": command ", asked.id, " of ", asked.who, ", ", vernier::json_text(asked.command.body), ": ",
         result.text);
    service_->board.answer(asked.id, step, result);
  }

  Result carry_out(Run& run, BetweenSteps& between, std::int64_t id, const Command& command) {
    if (!command.steers()) return carry_out_quietly(run, between, command);
    steered_ += 1;
    Result result;
    if (command.name == "scale_learning_rate") {
      result = scale(command.factor);
    } else if (command.name == "swap") {
      result = swap(between, command);
    } else if (command.name == "set_interval") {
      result = set_interval(between, command);
    } else {
      const bool stops = command.name == "stop";
      // finish() comes first: in the validation, callback/early_stopping asks whether the run ends.
      if (stops) run.control->finish(*this, c10::str("command ", id, " stopped it"));
      result = validate(between);
      if (stops) result = {true, "the run ends; " + result.text};
    }
    run.notice("commanded", {{"command", command.name}, {"id", id}, {"done", std::int64_t{result.is_done}}},
               c10::str("command ", id, ", ", command.name, ": ", result.text));
    return result;
  }

  // Those that change no number of the run.
  Result carry_out_quietly(const Run& run, BetweenSteps& between, const Command& command) {
    if (command.name == "save") return save(run, between);
    is_paused_ = command.name == "pause";
    return {true, c10::str(is_paused_ ? "the run waits after step " : "the run goes on after step ", run.step)};
  }

  static Result save(const Run& run, BetweenSteps& between) {
    if (run.step == 0) return {false, "no step was trained yet"};
    try {
      return {true, c10::str(between.save(), " has got the run as it is after step ", run.step)};
    } catch (...) {
      return {false, vernier::caught().message};
    }
  }

  Result scale(double factor) {
    const double scaled = factor_ * factor;
    if (!(scaled >= 1e-12 && scaled <= 1e12)) return {false, c10::str("the factor would be ", scaled)};
    factor_ = scaled;
    return {true, c10::str("the learning rate is ", factor_, " times that of its schedule")};
  }

  static Result swap(BetweenSteps& between, const Command& command) {
    try {
      between.swap(command.tables);
    } catch (...) {
      return {false, vernier::caught().message};
    }
    std::string text;
    for (const auto& [role, table] : command.roles.items()) {
      text += (text.empty() ? "" : ", ") + role + "/" + table.at("use").get<std::string>();
    }
    return {true, text + (command.roles.size() == 1 ? " takes over" : " take over")};
  }

  Result set_interval(BetweenSteps& between, const Command& command) {
    try {
      between.set_every(command.monitor, command.every);
    } catch (...) {
      return {false, vernier::caught().message};
    }
    intervals_[command.monitor] = command.every;
    return {true, c10::str("monitor/", command.monitor, " looks every ", command.every, " steps")};
  }
  // A resumed run has those of its configuration, which may lack a monitor.
  void restore_intervals(BetweenSteps& between) {
    for (const auto& [monitor, every] : intervals_) {
      try {
        between.set_every(monitor, every);
      } catch (const vernier::Error& error) {
        warn(error.what());
      }
    }
  }

  static Result validate(BetweenSteps& between) {
    const auto loss = between.validate();
    if (!loss) return {false, "there is no validation: nothing is held out, or the run is stopping"};
    return {true, c10::str("the validation loss is ", *loss)};
  }

  void end(const Run& run, const char* how) {
    if (!service_) return;
    service_->drain();
    service_->push(run, Record::Kind::end);
    service_->drain();
    service_->board.close("the run has ended", run.step);
    service_->view.set_state(how, run, factor_);
    service_->wake();
    std::error_code none;
    fs::remove(url_file_, none);
  }

  Service::Settings settings_;
  double factor_ = 1;                              // the learning rate's factor
  std::int64_t trained_ = 0;                       // steps, those that a rewind gave up included
  std::int64_t steered_ = 0;                       // commands since the last of them that steer()
  std::map<std::string, std::int64_t> intervals_;  // intervals of monitors that commands have set
  bool has_begun_ = false, has_looked_ = false, is_paused_ = false;
  std::vector<Recorded> recorded_;  // commands to repeat
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<Service> service_;
  fs::path url_file_;
};

}  // namespace control

VERNIER_PLUGIN(control::Control, "control", "1.0.0")
