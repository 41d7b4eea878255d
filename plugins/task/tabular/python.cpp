#include <c10/util/StringUtil.h>
#include <vernier/json_in.h>

#include <nlohmann/json.hpp>

#include "../python_load.h"
#include "network.h"

namespace tabular {

namespace {

constexpr const char* head =
    R"python(# The network of Vernier's task/tabular, and a model that takes rows by name. It needs PyTorch alone.
#
#   model = load_model()                     # the weights beside this file, or load_model("folder/model.safetensors")
#   model([{"area": 70, "district": "mill"}])           # the predictions of rows by the names of columns
#   model.probabilities(rows)                           # of a classification: a dict for each row
#
# load() gives the network, which takes tensors. FACTS says what the columns are.
import datetime
import json
import math
import re
import warnings

import torch
from torch import nn
from torch.nn import functional as F

)python";

constexpr const char* network = R"python(

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x):
        return x + self.second(F.relu(self.first(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(NUMBERS, dtype=torch.float64))
        self.register_buffer("deviation", torch.ones(NUMBERS, dtype=torch.float64))
        self.register_buffer("target_mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("target_deviation", torch.ones((), dtype=torch.float64))
        widths = [min(50, (codes + 1) // 2) for codes in CATEGORIES]
        self.embeddings = nn.ModuleList(nn.Embedding(c, w) for c, w in zip(CATEGORIES, widths))
        self.layers = nn.ModuleList()
        width = NUMBERS + sum(widths)
        for i, hidden in enumerate(HIDDEN):
            self.layers.append(Block(width) if RESIDUAL and i > 0 else nn.Linear(width, hidden))
            width = hidden
        self.last = nn.Linear(width, OUTPUTS)

    def forward(self, numbers, categories=None):
        """numbers: float64 or float32 [samples, numbers]; categories: int64 [samples, columns]."""
        parts = [(numbers - self.mean) / self.deviation]
        parts += [embed(categories[:, i]) for i, embed in enumerate(self.embeddings)]
        x = torch.cat(parts, 1).to((self.layers[0] if HIDDEN else self.last).weight.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x) if RESIDUAL else F.relu(layer(x))
        x = self.last(x)
        if OUTPUTS > 1:
            return x
        return x.squeeze(1).to(self.target_mean.dtype) * self.target_deviation + self.target_mean

)python";

// Reads values as read_csv() does with the schema of a model: csv_values.cpp and csv_reader.cpp have the same rules.
constexpr const char* values = R"python(
def text_of(value):
    """A value as CSV has it; "" for None and NaN."""
    if isinstance(value, (datetime.date, datetime.datetime)):
        return "" if str(value) == "NaT" else value.isoformat()
    text = "" if value is None else str(value)
    return text if isinstance(value, str) or text not in ("nan", "NaT", "<NA>") else ""


def is_missing(value):
    text = text_of(value).strip(" \t")
    return text == "" or text in FACTS["missing_words"]


class NotRead(ValueError):
    """The end of a message on a value: the caller adds its row and column."""


SIGNS = ("%", "$", "€", "£", "¥", "₹", "EUR", "USD", "GBP", "CHF")


def without_sign(text):
    minus, rest = ("-", text[1:]) if text.startswith("-") else ("", text)
    for sign in SIGNS:
        if rest.startswith(sign):
            return minus + rest[len(sign) :].strip(" ")
    for sign in SIGNS:
        if rest.endswith(sign):
            return minus + rest[: -len(sign)].strip(" ")
    return text


def join_groups(text):
    """Without the signs between groups of three digits; None where the groups are others."""
    head, point, tail = text.partition(FACTS["decimal"])
    first, *others = head.split(FACTS["thousands"])
    if not others:
        return text
    is_right = re.fullmatch(r"[^0-9]*[0-9]{1,3}", first) and all(re.fullmatch("[0-9]{3}", other) for other in others)
    return first + "".join(others) + point + tail if is_right else None


def plain_number(column, text):
    """The text as Python writes numbers; None where it is not a number."""
    if column.get("signs"):
        text = without_sign(text)
    if FACTS["thousands"]:
        text = join_groups(text)
    if text is not None and FACTS["decimal"] != ".":
        text = None if "." in text else text.replace(FACTS["decimal"], ".")
    form = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    return text if text is not None and re.fullmatch(form, text) else None


def number(column, value):
    if isinstance(value, (str, bool)) or not hasattr(value, "__float__"):
        text = plain_number(column, text_of(value).strip(" \t"))
        if text is None:
            raise NotRead(f"is {value!r}, which is not a number")
        value = float(text)
    if not abs(float(value)) < 3.4028235677973366e38:
        raise NotRead(f"is {value!r}, which float32 cannot hold as a finite number")
    return float(value)


MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november")
MONTHS += ("december",)
DAY = (
    r"(?P<name>[A-Za-z]+) (?P<a>[0-9]{1,2})(?:, ?| )(?P<y>[0-9]{4})",  # Jan 31, 2024
    r"(?P<y>[0-9]{4})(?P<m>[0-9]{2})(?P<d>[0-9]{2})",
    r"(?P<a>[0-9]{1,2})(?P<between>[-/. ])(?P<name>[A-Za-z]+)(?P=between)(?P<y>[0-9]{4})",  # 31-Jan-2024
    r"(?P<y>[0-9]{4})(?P<between>[-/.])(?P<m>[0-9]{1,2})(?P=between)(?P<d>[0-9]{1,2})",
    r"(?P<a>[0-9]{1,2})(?P<between>[-/.])(?P<b>[0-9]{1,2})(?P=between)(?P<y>[0-9]{4})",
)
TIME = r"(?:[T ](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}(?:[.,][0-9]*)?))?(?P<zone>%s)?)?"
TIME %= r" UTC|Z|[+-](?:[0-9]{4}|[0-9]{1,2}(?::[0-9]{1,2})?)"


def date_of(parts, order):
    """The day in an order: year, day or month first; None where it does not fit."""
    year, first, second = int(parts["y"]), int(parts.get("a") or 0), int(parts.get("b") or 0)
    if parts.get("name"):
        names = [i for i, name in enumerate(MONTHS) if parts["name"].lower() in (name, name[:3])]
        month, day = names[0] + 1 if names else 0, first
    elif parts.get("m"):
        if order != "year":
            return None
        month, day = int(parts["m"]), int(parts["d"])
    else:
        if order == "year":
            return None
        day, month = (first, second) if order == "day" else (second, first)
    try:
        return datetime.date(year, month, day)
    except ValueError:
        return None


def hours_of(parts):
    """The hours since midnight UTC; None where there is no such time."""
    hour, minute = int(parts["hour"] or 0), int(parts["minute"] or 0)
    second = float((parts["second"] or "0").replace(",", "."))
    if hour > 23 or minute > 59 or second >= 61:
        return None
    hours = hour + minute / 60 + second / 3600
    zone = (parts["zone"] or "Z").strip()
    if zone in ("Z", "UTC"):
        return hours
    digits = zone[1:].split(":")
    if len(zone) == 5 and ":" not in zone:
        digits = [zone[1:3], zone[3:]]
    behind, minutes = int(digits[0]), int(digits[1]) if len(digits) > 1 else 0
    if behind > 23 or minutes > 59:
        return None
    return hours - (behind + minutes / 60) * (-1 if zone[0] == "-" else 1)


def moment(column, value):
    text = text_of(value).strip(" \t")
    form = column["form"].split("-")[0]
    matches = [re.fullmatch(day + TIME, text) for day in DAY]
    parts = next((match.groupdict() for match in matches if match), None)
    day = parts and (date_of(parts, form) or date_of(parts, "year"))
    hours = parts and hours_of(parts)
    if not day or hours is None:
        raise NotRead(f"is {value!r}, and not a date as in training ({column['form']})")
    epoch = datetime.date(1970, 1, 1)
    days = (day - epoch).days + hours / 24
    whole = math.floor(days + 1e-9)
    day = epoch + datetime.timedelta(whole)
    parts = [days, day.year, day.month, day.day, day.weekday(), day.timetuple().tm_yday]
    return (parts + [max(0.0, (days - whole) * 24)])[: len(column["numbers"])]

)python";

constexpr const char* rows = R"python(
def none_unknown(column, unknown, rows):
    """Warns of unknown words, and refuses many rows that have no other."""
    if not unknown:
        return
    text = f"column {column['name']!r}: {len(unknown)} of {rows} values are unknown, such as {unknown[0]!r}"
    if len(unknown) == rows and rows >= 20 and len(set(unknown)) * 2 <= rows:
        raise ValueError(f"{text}; write them as in training, such as {column['words'][:3]}")
    warnings.warn(text, stacklevel=4)


class Rows:
    """A network that takes rows: dicts by the names of columns. Other names in them are left alone."""

    def __init__(self, network):
        self.network = network
        self.codes = [{word: i for i, word in enumerate(column.get("words", []))} for column in FACTS["columns"]]

    def read(self, rows):
        """The numbers and the codes of categories of each row, as vernier predict reads them."""
        numbers, categories = [[] for _ in rows], [[] for _ in rows]
        for column, codes in zip(FACTS["columns"], self.codes):
            unknown = []
            for i, row in enumerate(rows):
                if column["name"] not in row:
                    raise KeyError(f"row {i} has no column {column['name']!r}")
                try:
                    value = row[column["name"]]
                    if column["type"] == "category":
                        categories[i].append(self.code(column, codes, value, unknown))
                    else:
                        numbers[i] += self.numbers(column, value)
                except NotRead as reason:
                    raise ValueError(f"row {i}, column {column['name']!r} {reason}") from None
            none_unknown(column, unknown, len(rows))
        return numbers, categories

    def numbers(self, column, value):
        if not is_missing(value):
            return [number(column, value)] if column["type"] == "number" else moment(column, value)
        if "fill" not in column:
            raise NotRead("has no value, and training filled none")
        return [column["fill"]] if column["type"] == "number" else column["fill"]

    def code(self, column, codes, value, unknown):
        if is_missing(value):
            if not FACTS["fills"] and "" not in codes:
                raise NotRead("has no value, and training filled none")
            return codes.get("", len(codes))
        word = text_of(value)
        if word not in codes:
            word = word.strip(" \t")
        if word not in codes:
            unknown.append(word)
        return codes.get(word, len(codes))

    def tensors(self, rows):
        numbers, categories = self.read(rows)
        numbers = torch.tensor(numbers, dtype=torch.float64).reshape(len(rows), NUMBERS)
        return numbers, torch.tensor(categories, dtype=torch.int64).reshape(len(rows), len(CATEGORIES))

    @torch.no_grad()
    def outputs(self, rows):
        return self.network(*self.tensors(rows)).double()

)python";

// The same for NumPy arrays, which have no names.
constexpr const char* arrays = R"python(
class Rows:
    """A network that takes rows: lists of numbers."""

    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def outputs(self, rows):
        return self.network(torch.as_tensor(rows, dtype=torch.float64)).double()

)python";

// The end of both classes, and what makes one.
constexpr const char* rows_end = R"python(    def __call__(self, rows):
        """The class or the number that is predicted for each row."""
        outputs = self.outputs(rows)
        return [FACTS["classes"][i] for i in outputs.argmax(1)] if OUTPUTS > 1 else outputs.tolist()

    def probabilities(self, rows):
        return [dict(zip(FACTS["classes"], row)) for row in self.outputs(rows).softmax(1).tolist()]


def load_model(path=None):
    return Rows(load(path))

)python";

std::string list(const std::vector<std::int64_t>& numbers) {
  return "[" + c10::Join(", ", numbers) + "]";
}

}  // namespace

std::string python_source(const Shape& shape, const std::string& facts) {
  // A JSON text in quotes of JSON and in ASCII is a literal of Python too.
  const auto json = vernier::json_in<nlohmann::ordered_json>(facts);
  const auto literal = vernier::json_text(nlohmann::json(vernier::json_text(json, -1, true)), -1, true);
  const bool has_names = json.contains("columns");
  return c10::str(head, "NUMBERS, CATEGORIES, HIDDEN, RESIDUAL, OUTPUTS = ", shape.numbers, ", ",
                  list(shape.categories), ", ", list(shape.hidden), ", ", shape.residual ? "True" : "False", ", ",
                  shape.outputs, "\nFACTS = json.loads(", literal, ")\n", network, has_names ? values : "",
                  has_names ? rows : arrays, rows_end, python_load);
}

}  // namespace tabular
