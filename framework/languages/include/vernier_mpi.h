/* The place of this process among those of an MPI communicator: for a program that runs under MPI already. Sums go over
   [distributed], such as use = "ddp", and never over MPI, so libvernier_c.so needs no MPI. */
#ifndef VERNIER_MPI_H
#define VERNIER_MPI_H

#include <mpi.h>
#include <vernier.h>

/* Before the first use; all processes of `ranks` call it. */
static inline int vernier_use_mpi(vernier_trainer* trainer, MPI_Comm ranks) {
  struct {
    char address[256];
    int port, status;
  } meeting = {"", 0, VERNIER_OK};
  MPI_Comm machine;
  int rank, size, local_rank, local_size;
  MPI_Comm_rank(ranks, &rank);
  MPI_Comm_size(ranks, &size);
  MPI_Comm_split_type(ranks, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine);
  MPI_Comm_rank(machine, &local_rank);
  MPI_Comm_size(machine, &local_size);
  MPI_Comm_free(&machine);
  if (rank == 0) {
    meeting.status = vernier_meeting(local_size == size, meeting.address, sizeof meeting.address, &meeting.port);
  }
  MPI_Bcast(&meeting, sizeof meeting, MPI_BYTE, 0, ranks);
  if (rank == 0 && meeting.status != VERNIER_OK) return meeting.status;
  return vernier_ranks(trainer, rank, size, local_rank, meeting.address, meeting.port);
}

#endif
