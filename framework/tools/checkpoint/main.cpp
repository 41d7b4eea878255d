#include "checkpoint_tools.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  return vernier::call_run_verb(vernier::checkpoint_verb(), argc, argv);
}
