// Code in the files of a run that somebody else made: a TorchScript module in its checkpoints, a library that its
// configuration names. Vernier does not run it, unless the user trusts the run (`--trust`).
#pragma once

#include <sys/stat.h>
#include <vernier/abi.h>

#include <string>

namespace vernier {

// Throws Error::Kind::configuration if the files that are used now are of such a run. A task calls it before it runs
// code from a file that its options or its checkpoint name. what: "the TorchScript in 'model.pt'".
VERNIER_API void refuse_foreign_code(const std::string& what);

// Throws Error::Kind::plugin if anybody but this user, the group that has nobody else, and root may write to the path.
// what: "plugin", for the message. Unlike refuse_a_shared_folder(), it allows the user's own group.
VERNIER_API void refuse_other_writers(const std::string& path, const struct stat& status, const char* what);

// Opens a library for the rest of the process, so that its static objects register what it has, such as operators. It
// throws as the two above do, and Error::Kind::plugin with the loader's reason.
VERNIER_API void open_library(const std::string& file);

// While one lives, the files that are used are those of such a run. run: its path, or "" if it is this user's. Main
// thread only.
class VERNIER_API ForeignRun {
 public:
  explicit ForeignRun(std::string run);
  ~ForeignRun();
  ForeignRun(const ForeignRun&) = delete;
  ForeignRun& operator=(const ForeignRun&) = delete;

 private:
  std::string run_;
};

}  // namespace vernier
