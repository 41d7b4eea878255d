#include "call_settings.h"

#include <vernier/error.h>

#include <algorithm>
#include <iostream>

#include "common/text/quoting.h"
#include "common/verb.h"
#include "limits.h"

namespace vernier {

namespace {

namespace po = boost::program_options;
using Early = BeamOptions::Early;

Early early_of(const std::string& word) {
  if (word == "no") return Early::no;
  if (word == "yes") return Early::yes;
  if (word == "never") return Early::never;
  refuse("--early-stopping is \"" + word + "\", and must be no, yes or never");
}

// Beams are the likeliest texts: nothing is drawn.
void refuse_draws(const po::variables_map& given, const GenerationSettings& settings, const std::string& hint = "") {
  for (const char* option : {"temperature", "top-k", "top-p", "min-p"}) {
    const bool is_neutral = option == std::string("temperature") && settings.options.sampling.temperature == 0;
    if (given[option].defaulted() || is_neutral) continue;
    refuse("--" + std::string(option) + " is for draws, and --beams takes the likeliest texts; leave one of them out" +
           hint);
  }
  if (settings.options.slides) refuse("--slide and --beams do not go together" + hint);
  if (settings.options.likeliest >= 0) {
    refuse("--logprobs and --beams do not go together; beams have a \"score\"" + hint);
  }
  if (settings.batch > 1) {
    refuse("--batch and --beams do not go together: the beams of a prompt are a batch" + hint);
  }
}

void require_enough_beams(const GenerationSettings& settings) {
  if (settings.beams.beams == 1 || settings.count <= settings.beams.beams) return;
  refuse(c10::str("--count is ", settings.count, ", and ", settings.beams.beams, " beams give as many texts at most"));
}

}  // namespace

GenerationSettings read_settings(const po::variables_map& given) {
  GenerationSettings settings;
  const auto number = [&](const char* option, limits::Range range) {
    return number_in(given, option, range.least, range.most);
  };
  const auto whole = [&](const char* option, limits::Range range) {
    return number_in(given, option, static_cast<std::int64_t>(range.least), static_cast<std::int64_t>(range.most));
  };
  auto& [options, beams, stops, seed, count, batch, longest_prompt] = settings;
  longest_prompt = number_in<std::int64_t>(given, "longest-prompt", 0, 1 << 30);
  auto& sampling = options.sampling;
  sampling.temperature = number("temperature", limits::temperature);
  sampling.top_k = whole("top-k", limits::top_k);
  sampling.top_p = number("top-p", limits::top_p);
  sampling.min_p = number("min-p", limits::min_p);
  sampling.repetition_penalty = number("repetition-penalty", limits::repetition_penalty);
  sampling.no_repeat_ngram = whole("no-repeat-ngram", limits::no_repeat_ngram);
  options.max_tokens = whole("max-tokens", limits::max_tokens);
  options.min_tokens = whole("min-tokens", limits::min_tokens);
  options.likeliest = whole("logprobs", {-1, 1000});
  options.uses_cache = given.count("no-cache") == 0;
  options.slides = given.count("slide") != 0;
  beams.beams = whole("beams", limits::beams);
  beams.length_penalty = number("length-penalty", limits::length_penalty);
  beams.early_stopping = early_of(given["early-stopping"].as<std::string>());
  stops = words_in(given, "stop");
  seed = static_cast<std::uint64_t>(number_in<std::int64_t>(given, "seed", 0, INT64_MAX));
  count = whole("count", {1, 10'000});
  batch = whole("batch", {1, 10'000});
  if (std::ranges::count(stops, "") != 0) refuse("--stop needs a text, and this one is empty");
  for (const char* option : {"length-penalty", "early-stopping"}) {
    if (!given[option].defaulted() && beams.beams == 1) refuse("--" + std::string(option) + " is for --beams");
  }
  if (beams.beams > 1) refuse_draws(given, settings);
  require_enough_beams(settings);
  return settings;
}

void apply(const ModelSettings& model, const po::variables_map& given, GenerationSettings& settings) {
  std::string taken;
  const auto note = [&](const char* option, const auto& value) {
    taken += c10::str(taken.empty() ? "" : ", ", option, " ", value);
  };
  const auto take = [&](const char* option, const auto& value, auto& into) {
    if (!value || !given[option].defaulted() || *value == into) return;
    into = *value;
    note(option, *value);
  };
  auto& sampling = settings.options.sampling;
  const bool draws = settings.beams.beams == 1;
  // Whoever asks for a temperature asks for draws.
  if (given["temperature"].defaulted() || sampling.temperature == 0) take("beams", model.beams, settings.beams.beams);
  if (settings.beams.beams > 1) {
    sampling.temperature = 0;
    if (draws) {
      refuse_draws(given, settings,
                   "; the beams are num_beams of the model's generation_config.json, and --beams 1 does without");
    }
    take("length-penalty", model.length_penalty, settings.beams.length_penalty);
    if (model.early_stopping && given["early-stopping"].defaulted()) {
      settings.beams.early_stopping = early_of(*model.early_stopping);
      note("early-stopping", *model.early_stopping);
    }
  } else {
    take("temperature", model.temperature, sampling.temperature);
    // With --listen a request may set a temperature, so that tokens are drawn.
    const bool never_draws =
        given["temperature"].defaulted() && sampling.temperature == 0 && given.count("listen") == 0;
    for (const char* option : {"top-k", "top-p", "min-p"}) {
      if (!never_draws || given[option].defaulted()) continue;
      refuse("--" + std::string(option) +
             " is for draws, and the model's generation_config.json takes the likeliest tokens; --temperature 1 draws");
    }
    take("top-k", model.top_k, sampling.top_k);
    take("top-p", model.top_p, sampling.top_p);
    take("min-p", model.min_p, sampling.min_p);
  }
  take("repetition-penalty", model.repetition_penalty, sampling.repetition_penalty);
  take("no-repeat-ngram", model.no_repeat_ngram, sampling.no_repeat_ngram);
  take("max-tokens", model.max_tokens, settings.options.max_tokens);
  take("min-tokens", model.min_tokens, settings.options.min_tokens);
  if (model.min_length && !model.min_tokens && given["min-tokens"].defaulted() && *model.min_length > 0) {
    settings.options.min_length = *model.min_length;
    note("min_length", *model.min_length);
  }
  require_enough_beams(settings);
  auto& ends = settings.options.ends;
  ends.insert(ends.end(), model.ends.begin(), model.ends.end());
  settings.stops.insert(settings.stops.end(), model.stops.begin(), model.stops.end());
  if (!taken.empty()) std::cerr << "vernier: by the model's generation_config.json: " << taken << '\n';
  if (model.ignored.empty()) return;
  std::cerr << "vernier: of the model's generation_config.json, this is not applied: " << some_of(model.ignored)
            << '\n';
}

}  // namespace vernier
