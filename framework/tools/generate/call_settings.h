// The settings of a call: what its options say, or else the model's folder.
#pragma once

#include <boost/program_options.hpp>

#include "generator.h"
#include "model_settings.h"

namespace vernier {

// Throws boost::program_options::error or Error for options that cannot be.
GenerationSettings read_settings(const boost::program_options::variables_map& given);

// Puts what the model's folder says in the place of defaults, and says so on standard error.
void apply(const ModelSettings& model, const boost::program_options::variables_map& given,
           GenerationSettings& settings);

}  // namespace vernier
