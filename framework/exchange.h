// Other plugins for some roles while a run stands between two steps. The one door for all who ask: callbacks, recovery,
// a snapshot that is resumed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "wiring.h"

namespace vernier {

// The dtypes in which the task built its parameters and buffers.
using BuiltModel = std::vector<std::pair<torch::Tensor, torch::ScalarType>>;
BuiltModel built_model(const torch::nn::Module& model);

// Makes, attaches and prepares the plugins that the tables name, and hands over what the old ones knew; those are
// destroyed. A new precision finds the model as the task built it, with the values of the masters where there are some,
// and the optimizer is made anew where its tensors are, the scaler where the model's dtype is another, which it may refuse.
// What throws leaves wiring and run as they were; the error says the table's place.
void exchange(Wiring& wiring, Run& run, const BuiltModel& built, const Table& roles);

// Throws what the tables alone show to be wrong.
void try_exchange(const Wiring& wiring, const Table& roles);

// Throws where plugins would contradict each other with these tables, in whatever order they come with the others that
// may be asked for. Leaves the wiring as it was.
void refuse_what_never_fits(Wiring& wiring, const Table& roles, const std::vector<Table>& asked);

// Notices of what is used in this step for the first time.
void tell_exchanged(const Wiring& wiring, Run& run);

// What a snapshot keeps: the tables of the roles that were exchanged, and when, as TOML; "" where none was.
std::string exchanges_of(const Wiring& wiring);

// Exchanges what exchanges_of() of an earlier wiring tells.
void exchange_again(Wiring& wiring, Run& run, const BuiltModel& built, const std::string& exchanges);

// What was asked for and not done yet, for a snapshot; and back.
std::string text_of_asked(const Table& roles);
Table asked_again(const std::string& text);

}  // namespace vernier
