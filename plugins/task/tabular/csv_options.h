// The options of task/tabular on the text of a CSV file.
#pragma once

#include <vernier/csv.h>
#include <vernier/options.h>

namespace tabular {

// types
void read_types(vernier::Options& options, vernier::CsvOptions& csv);
// separator, decimal, thousands, encoding, header, skip_lines
void read_text_options(vernier::Options& options, vernier::CsvOptions& csv);

}  // namespace tabular
