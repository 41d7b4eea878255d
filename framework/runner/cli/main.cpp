#include <fcntl.h>

#include <csignal>

#include "cli.h"

namespace {

// If standard input, output or error is closed, a file of the run would get its descriptor, and log lines with it.
void open_standard_files() {
  for (int file = 0; file <= 2; ++file) {
    // Gives the lowest free descriptor, which is this one.
    if (::fcntl(file, F_GETFD) < 0) (void)!::open("/dev/null", O_RDWR);
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // beyond `ulimit -f` a write fails, as on a full disk
  return vernier::run_command_line(argc, argv);
}
