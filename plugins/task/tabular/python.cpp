#include <c10/util/StringUtil.h>
#include <vernier/json_text.h>

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

constexpr const char* rows = R"python(
def is_missing(value):
    if value is None or isinstance(value, float) and math.isnan(value):
        return True
    return isinstance(value, str) and value.strip() in FACTS["missing_words"]


def number(column, value):
    if isinstance(value, str) and column.get("signs"):
        value = re.sub(r"[%$€£¥₹]|EUR|USD|GBP|CHF", "", value)
    return float(value)


MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
PLACES = {"year": (0, 1, 2), "day": (2, 1, 0), "month": (2, 0, 1)}  # of year, month and day


def moment(column, value):
    if isinstance(value, (datetime.date, datetime.datetime)):
        value = value.isoformat()
        form = "year"
    else:
        form = column["form"].split("-")[0]
    text = re.sub(r"^(\d{4})(\d\d)(\d\d)(?!\d)", r"\1-\2-\3", str(value).strip())
    parts = re.match(r"(\w+)[-/. ](\w+),?[-/. ](\w+?)(?:[T ](\d+):(\d+)(?::(\d+(?:[.,]\d+)?))?)?"
                     r" ?(?:(Z|UTC)|([+-]\d\d):?(\d\d)?)?$", text)
    if not parts:
        raise ValueError(f"column {column['name']!r}: {value!r} is not a date ({column['form']})")
    day = list(parts.groups()[:3])
    if any(part.isalpha() for part in day):  # 31-Jan-2024, Jan 31, 2024
        name = next(part for part in day if part.isalpha())
        day.remove(name)
        date = datetime.date(int(day[1]), MONTHS.index(name[:3].lower()) + 1, int(day[0]))
    else:
        date = datetime.date(*(int(day[place]) for place in PLACES[form]))
    hour, minute, second, _, zone, zone_minutes = parts.groups()[3:]
    hours = int(hour or 0) + int(minute or 0) / 60 + float((second or "0").replace(",", ".")) / 3600
    if zone:
        hours -= int(zone) + math.copysign(int(zone_minutes or 0) / 60, int(zone[0] + "1"))
    days = (date - datetime.date(1970, 1, 1)).days + hours / 24
    whole = math.floor(days + 1e-9)
    date = datetime.date(1970, 1, 1) + datetime.timedelta(whole)
    parts = [days, date.year, date.month, date.day, date.weekday(), date.timetuple().tm_yday]
    return (parts + [max(0.0, (days - whole) * 24)])[: len(column["numbers"])]


class Rows:
    """A network that takes rows: dicts by the names of columns. Other names in them are left alone."""

    def __init__(self, network):
        self.network = network

    def tensors(self, rows):
        numbers, categories = [], []
        for row in rows:
            numbers.append([])
            categories.append([])
            for column in FACTS["columns"]:
                name = column["name"]
                if name not in row:
                    raise KeyError(f"a row has no column {name!r}")
                value, kind = row[name], column["type"]
                if kind == "category":
                    word = "" if is_missing(value) else str(value).strip()
                    words = column["words"]
                    categories[-1].append(words.index(word) if word in words else len(words))
                elif not is_missing(value):
                    numbers[-1] += [number(column, value)] if kind == "number" else moment(column, value)
                elif "fill" in column:
                    numbers[-1] += [column["fill"]] if kind == "number" else column["fill"]
                else:
                    raise ValueError(f"a row has no value in column {name!r}")
        return torch.tensor(numbers, dtype=torch.float64), torch.tensor(categories, dtype=torch.int64)

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
  const auto json = nlohmann::ordered_json::parse(facts);
  const auto literal = vernier::json_text(nlohmann::json(vernier::json_text(json, -1, true)), -1, true);
  return c10::str(head, "NUMBERS, CATEGORIES, HIDDEN, RESIDUAL, OUTPUTS = ", shape.numbers, ", ",
                  list(shape.categories), ", ", list(shape.hidden), ", ", shape.residual ? "True" : "False", ", ",
                  shape.outputs, "\nFACTS = json.loads(", literal, ")\n", network,
                  json.contains("columns") ? rows : arrays, rows_end, python_load);
}

}  // namespace tabular
