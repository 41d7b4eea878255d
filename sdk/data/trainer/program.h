#pragma once

namespace vernier {

// The text of trainer.cpp.in. "// @model@" stands for the constants of the model.
extern const char* const trainer_source;

}  // namespace vernier
