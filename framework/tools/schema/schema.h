// `vernier config --schema`: a JSON Schema of the TOML files of a run, for editors.
#pragma once

#include "files/json.h"
#include "wiring/host.h"

namespace vernier {

// Returns the schema, of draft 7, for [run] and for every plugin in the host's folders: their options by type, range,
// default and meaning. It describes a file alone, so it requires no table or option that another file may have. Every
// library is opened. One that cannot be used is left out, with a warning.
OrderedJson schema_of(const Host& host);

// Returns the schema of the table of plugin "role/name", or of [run] for "run". Throws Error::Kind::configuration for
// others.
OrderedJson schema_of_table(const Host& host, const std::string& id);

int call_schema(int argc, char** argv);  // vernier-check is the program of this verb

}  // namespace vernier
