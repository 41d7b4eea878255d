/* A network learns the force on an oscillator while the simulation runs, and then takes the place of that force. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <vernier.h>

#define ROWS 512

static double states[ROWS][2], forces[ROWS]; /* position and speed, and the force there */

static double force(const double* state) {
  return -state[0] - state[0] * state[0] * state[0] - 0.05 * state[1];
}

static void move(double* state, double by) {
  state[1] += 0.05 * by;
  state[0] += 0.05 * state[1];
}

static void must(int status) {
  if (status == VERNIER_OK) return;
  fprintf(stderr, "%s\n", vernier_error());
  exit(status);
}

int main(int argc, char** argv) {
  const vernier_array inputs = {states, VERNIER_FLOAT64, 2, {ROWS, 2}, {0}};
  const vernier_array targets = {forces, VERNIER_FLOAT64, 1, {ROWS}, {0}};
  double state[2] = {1.5, 0}, copy[2], predicted, furthest = 0;
  const vernier_array here = {copy, VERNIER_FLOAT64, 2, {1, 2}, {0}};
  const vernier_array there = {&predicted, VERNIER_FLOAT64, 1, {1}, {0}};
  vernier_trainer* trainer;
  int trained = 1;
  for (int i = 0; i < ROWS; ++i) {
    states[i][0] = state[0], states[i][1] = state[1];
    forces[i] = force(state);
    move(state, forces[i]);
  }

  must(vernier_open(argc > 1 ? argv[1] : "oscillator.toml", NULL, &trainer));
  must(vernier_give(trainer, "states.npy", &inputs));
  must(vernier_give(trainer, "forces.npy", &targets));
  while (trained) {
    must(vernier_step(trainer, &trained));
    move(state, force(state)); /* the simulation goes on */
  }

  copy[0] = state[0], copy[1] = state[1];
  for (int i = 0; i < 100; ++i) {
    must(vernier_predict(trainer, &here, &there));
    move(copy, predicted);
    move(state, force(state));
    furthest = fmax(furthest, fabs(copy[0] - state[0]));
  }
  printf("the network's oscillator is at most %.3f from the other one\n", furthest);
  must(vernier_close(trainer));
  return furthest < 0.2 ? 0 : 1;
}
