// `vernier evaluate FILE --folds NUMBER`: cross-validation.
#pragma once

#include <boost/program_options.hpp>

namespace vernier {

// Has `vernier compare` train a run for each fold, and prints what their validations measure. Returns the exit status.
int cross_validate(const boost::program_options::variables_map& given);

}  // namespace vernier
