// The model of task/tabular as a function of the columns of a table, for ONNX.
#pragma once

#include <vernier/exported_model.h>

#include "data.h"
#include "network.h"

namespace tabular {

// Each column is an input [samples, 1]: float64 numbers, texts, and for a date the days since 1970. NaN has no value,
// and becomes what `fill` says, or what training filled in; else it stays NaN. What read_csv() does with a row, the
// graph does. Arrays have one input, float64 [samples, numbers].
vernier::ExportedModel onnx_model(Network& network, const Facts& facts, vernier::CsvFill fill);

}  // namespace tabular
