/* The same training by all ranks of a program that runs under MPI: mpirun -n 2 ./oscillator_ranks oscillator.toml */
#include <stdio.h>
#include <vernier_mpi.h>

#define ROWS 512

static double states[ROWS][2], forces[ROWS];

/* Every rank has all rows, and trains on its share of each batch. */
static void simulate(void) {
  double place = 1.5, speed = 0;
  for (int i = 0; i < ROWS; ++i) {
    states[i][0] = place, states[i][1] = speed;
    forces[i] = -place - place * place * place - 0.05 * speed;
    speed += 0.05 * forces[i];
    place += 0.05 * speed;
  }
}

int main(int argc, char** argv) {
  const vernier_array inputs = {states, VERNIER_FLOAT64, 2, {ROWS, 2}, {0}};
  const vernier_array targets = {forces, VERNIER_FLOAT64, 1, {ROWS}, {0}};
  vernier_trainer* trainer = NULL;
  int status;
  MPI_Init(&argc, &argv);
  simulate();
  status = vernier_open(argc > 1 ? argv[1] : "oscillator.toml", NULL, &trainer);
  if (status == VERNIER_OK) status = vernier_set(trainer, "distributed.use", "ddp");
  if (status == VERNIER_OK) status = vernier_give(trainer, "states.npy", &inputs);
  if (status == VERNIER_OK) status = vernier_give(trainer, "forces.npy", &targets);
  if (status == VERNIER_OK) status = vernier_use_mpi(trainer, MPI_COMM_WORLD);
  if (status == VERNIER_OK) status = vernier_train(trainer);
  if (status == VERNIER_OK) status = vernier_close(trainer);
  if (status != VERNIER_OK) {
    fprintf(stderr, "%s\n", vernier_error());
    MPI_Abort(MPI_COMM_WORLD, status);
  }
  MPI_Finalize();
  return 0;
}
