// References in the strings of a configuration: ${HOME}, ${run.name}, ${SCRATCH:-/tmp}.
#pragma once

#include <vernier/value.h>

namespace vernier {

// Returns the table with the references in its strings replaced. A name without a dot is an environment variable, which
// is text. A name with a dot is the path of a value in the table, or else in `defaults`, as --set writes it. A string
// that is nothing but the reference to a path takes that value with its type. The text after ":-" is used if the name
// has no value or an empty one: as it is for a variable, as TOML for a path. $${ becomes ${, which refers to nothing.
// Throws Error::Kind::configuration, with the place of the string, for an unknown name, a reference to a table or to
// itself, and references that grow over 1 MiB or lead through more than 64 values.
Table expanded(const Table& config, const Table& defaults = {});

// Writes ${ as $${ in every string, so that expanded() returns the table as it was.
Table escaped(Table config);

// The reverse of escaped(). Replaces nothing else.
Table unescaped(Table config);

}  // namespace vernier
