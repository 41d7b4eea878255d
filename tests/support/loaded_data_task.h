// A loaded task as what it is built on.
#pragma once

#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>

#include "loaded_task.h"

inline vernier::SupervisedTask& supervised(const LoadedTask& task) {
  return dynamic_cast<vernier::SupervisedTask&>(*task.task);
}
inline vernier::Predictor& predictor(const LoadedTask& task) {
  return dynamic_cast<vernier::Predictor&>(*task.task);
}
