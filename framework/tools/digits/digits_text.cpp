// The digits of a step as a table and as JSON.
#include <algorithm>

#include "common/text/numbers.h"
#include "common/text/text_table.h"
#include "files/json.h"
#include "step_digits.h"

namespace vernier {

namespace {

std::string cell(std::optional<double> digits) {
  return digits ? print_number("%.1f", *digits) : "-";
}

std::optional<double> digits_in(const std::optional<NumbersDigits>& numbers) {
  return numbers ? std::optional(numbers->digits) : std::nullopt;
}

// "lost first: sub, after the layer 'fc1', has 1.6 digits, from inputs with 7.2"
std::string lost_line(const StepDigits& digits) {
  const auto has = [](const OperatorDigits& each) {
    return each.place() + ": its output has " + cell(each.output) + " digits, and its inputs have " + cell(each.input);
  };
  if (digits.first) return "digits are lost first at " + has(*digits.first) + '\n';
  if (!digits.most) return "no operator of the forward pass was seen\n";
  const auto text = "no operator of the forward pass loses " + print_number("%.0f", markedly) + " digit or more";
  return digits.most->lost() < 0.05 ? text + '\n' : text + "; most is lost at " + has(*digits.most) + '\n';
}

OrderedJson json_of(const std::optional<NumbersDigits>& numbers) {
  if (!numbers) return nullptr;
  return {{"digits", numbers->digits},
          {"median", numbers->median},
          {"deviation", json_number(numbers->deviation)},
          {"rms", json_number(numbers->rms)}};
}

OrderedJson json_of(const std::optional<OperatorDigits>& each) {
  if (!each) return nullptr;
  return {{"operator", each->name},
          {"layer", each->layer},
          {"after", each->after},
          {"input", each->input},
          {"output", each->output}};
}

}  // namespace

std::string text_of(const StepDigits& digits) {
  const auto [low, high] = std::ranges::minmax(digits.losses);
  const auto count = std::to_string(digits.losses.size());
  std::string text = "step " + std::to_string(digits.step) + " under " + digits.precision + ", " + count +
                     " times with random last bits of " + std::to_string(digits.rounded) +
                     " operators\nloss: " + cell(digits.loss_digits) + " digits, " + print_number("%.9g", low) +
                     " to " + print_number("%.9g", high) + '\n';
  TextRows rows{{"layer", "output", "gradient", "update"}};
  for (const auto& layer : digits.layers) {
    rows.push_back({layer.layer.empty() ? "(the model)" : layer.layer, cell(layer.output),
                    cell(digits_in(layer.gradient)), cell(digits_in(layer.update))});
  }
  text += aligned(rows, "lrrr");
  if (digits.skipped > 0) text += "the update is skipped in " + std::to_string(digits.skipped) + " of " + count + '\n';
  if (digits.other_way) text += "the samples call other operators from " + *digits.other_way + " on\n";
  return text + lost_line(digits);
}

std::string json_of(const StepDigits& digits) {
  OrderedJson layers = OrderedJson::array(), operators = OrderedJson::array(), losses = OrderedJson::array();
  for (const auto& layer : digits.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"output", layer.output ? OrderedJson(*layer.output) : OrderedJson(nullptr)},
                      {"gradient", json_of(layer.gradient)},
                      {"update", json_of(layer.update)}});
  }
  for (const auto& each : digits.operators) operators.push_back(json_of(std::optional(each)));
  for (const double loss : digits.losses) losses.push_back(OrderedJson(json_number(loss)));
  const OrderedJson all = {{"step", digits.step},
                           {"precision", digits.precision},
                           {"samples", digits.losses.size()},
                           {"skipped", digits.skipped},
                           {"loss", {{"digits", digits.loss_digits}, {"samples", losses}}},
                           {"layers", layers},
                           {"operators", operators},
                           {"lost_first", json_of(digits.first)},
                           {"lost_most", json_of(digits.most)},
                           {"other_way", digits.other_way ? OrderedJson(*digits.other_way) : OrderedJson(nullptr)}};
  return all.dump(2, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace) + '\n';
}

}  // namespace vernier
