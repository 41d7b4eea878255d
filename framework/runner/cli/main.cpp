#include "cli.h"

int main(int argc, char** argv) {
  return vernier::run_command_line(argc, argv);
}
