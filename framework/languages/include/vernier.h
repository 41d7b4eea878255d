/* The trainer of `vernier` for programs in C, and through C in any other language: link vernier::c.
   docs/guides/other-languages.md shows whole programs in C and in Fortran.

     vernier_trainer* trainer;
     vernier_array states = {x, VERNIER_FLOAT64, 2, {rows, 3}, {0}};
     vernier_open("run.toml", NULL, &trainer);
     vernier_give(trainer, "states.npy", &states);
     if (vernier_train(trainer) != VERNIER_OK) puts(vernier_error());
     vernier_close(trainer);

   Every function but vernier_version() and vernier_error() returns a vernier_status. No exception leaves a function,
   and none ends the process. One that fails writes nothing into the places that it was given. A trainer is used by the
   thread that opened it; vernier_stop() may be called by any thread and by a signal handler. A function leaves the
   floating-point environment, the number of OpenMP threads, the locale, the handlers of signals and the working
   directory as they were. */
#ifndef VERNIER_H
#define VERNIER_H

#include <stddef.h>
#include <stdint.h>

#define VERNIER_C_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Those of errors are the exit codes of `vernier`. */
typedef enum {
  VERNIER_OK = 0,
  VERNIER_REFUSED = 2, /* the configuration, or an argument */
  VERNIER_PLUGIN = 3,  /* a plugin that cannot be loaded */
  VERNIER_FAILED = 4   /* the training */
} vernier_status;

typedef enum {
  VERNIER_FLOAT32 = 1,
  VERNIER_FLOAT64 = 2,
  VERNIER_INT32 = 3,
  VERNIER_INT64 = 4,
  VERNIER_UINT8 = 5
} vernier_dtype;

#define VERNIER_MOST_DIMS 8

/* An array in the memory of the program. */
typedef struct {
  void* data;
  int32_t dtype; /* a vernier_dtype */
  int32_t dims;  /* 1 to VERNIER_MOST_DIMS; dimension 0 is the sample */
  int64_t shape[VERNIER_MOST_DIMS];
  int64_t strides[VERNIER_MOST_DIMS]; /* in elements, at least 0; all 0: the last dimension is contiguous, as in C */
} vernier_array;

typedef struct {
  int64_t steps;                /* finished in the whole run */
  double loss, validation_loss; /* of the last step, and of the last validation; NaN where there is none */
  double seconds;               /* of the steps of this trainer */
  char ended_by[16];            /* done, finished, stopped, time_limit, diverged or error; "" while the run goes on */
} vernier_outcome;

typedef struct vernier_trainer vernier_trainer;

VERNIER_C_API const char* vernier_version(void);
/* The text of the function that failed last on this thread: what is wrong, where, and what to do. "" before any. It is
   valid until the next one fails. */
VERNIER_C_API const char* vernier_error(void);

/* --- Before the first use, which is the first call of a function from vernier_resume() on. --- */

/* Reads a TOML file, as `vernier train` takes it, and TOML text that is merged after it. Either may be NULL. */
VERNIER_C_API int vernier_open(const char* file, const char* text, vernier_trainer** trainer);
/* An option of the run, as `--set KEY=VALUE`: "run.steps", "100". */
VERNIER_C_API int vernier_set(vernier_trainer* trainer, const char* key, const char* value);
/* A folder in which plugins are searched first. */
VERNIER_C_API int vernier_plugin_path(vernier_trainer* trainer, const char* folder);
/* 1: monitors print nothing to the terminal. */
VERNIER_C_API int vernier_quiet(vernier_trainer* trainer, int quiet);
/* 0: nothing is written to disk. */
VERNIER_C_API int vernier_writes_folder(vernier_trainer* trainer, int writes);
/* The array stands for the file of this name in the configuration, such as data = "states.npy". It is not copied. Its
   numbers must be there and stay as they are from the first use until vernier_close(). The struct itself may go. */
VERNIER_C_API int vernier_give(vernier_trainer* trainer, const char* name, const vernier_array* array);
/* The place of this process among those that train together, such as those of an MPI communicator: vernier_mpi.h. They
   meet at the address and port of rank 0. local_rank counts those of one machine. With 1 rank it trains alone. */
VERNIER_C_API int vernier_ranks(vernier_trainer* trainer, int rank, int ranks, int local_rank, const char* address,
                                int port);
/* Rank 0: an address of this machine and a port that is free now, for vernier_ranks(). one_machine: 1 if all ranks are
   on this machine. The address has room for `size` bytes. */
VERNIER_C_API int vernier_meeting(int one_machine, char* address, size_t size, int* port);

/* --- Training --- */

/* Before the first step: continues from a checkpoint or the newest one of a run at `path`; NULL: of [run] output. It
   refuses what would not equal a run that was never stopped, unless allow_inexact is 1. */
VERNIER_C_API int vernier_resume(vernier_trainer* trainer, const char* path, int allow_inexact);
/* One update, with what is due after it. *trained: 0 if the run has ended, without a step. */
VERNIER_C_API int vernier_step(vernier_trainer* trainer, int* trained);
/* Steps until the epoch or the run ends. *steps: how many. */
VERNIER_C_API int vernier_epoch(vernier_trainer* trainer, int64_t* steps);
/* All steps that are left. */
VERNIER_C_API int vernier_train(vernier_trainer* trainer);
/* Ends the run after the step in work, or in the next call that trains, with a checkpoint. Call it at any time before
   vernier_close(): take away a signal handler that calls it, or block the signal, first. */
VERNIER_C_API int vernier_stop(vernier_trainer* trainer);
/* A checkpoint now. NULL: in the run's folder; else at `path`. */
VERNIER_C_API int vernier_save(vernier_trainer* trainer, const char* path);
/* Other plugins for some roles between two steps: "[precision]\nuse = \"bf16\"". */
VERNIER_C_API int vernier_swap(vernier_trainer* trainer, const char* toml);

/* --- Results --- */

/* The loss over the validation set now; NaN if there is none. */
VERNIER_C_API int vernier_validate(vernier_trainer* trainer, double* loss);
/* Writes what the model predicts now into an array of the caller: float32 or float64, [samples, columns], or [samples]
   for one column. The columns are those of `vernier predict --probabilities`; a class is its number. `inputs` are as
   the data to train on, without targets, and are read alone. Each rank predicts for itself. */
VERNIER_C_API int vernier_predict(vernier_trainer* trainer, const vernier_array* inputs, const vernier_array* outputs);
/* The name of a column of the last vernier_predict(), from 0; *name: NULL behind the last one. It is valid until the
   next call of that function. */
VERNIER_C_API int vernier_column(vernier_trainer* trainer, int64_t index, const char** name);
/* A number of the last step or of the validation after it: "loss", "validation_loss", "accuracy". */
VERNIER_C_API int vernier_metric(vernier_trainer* trainer, const char* name, double* value);
VERNIER_C_API int vernier_result(vernier_trainer* trainer, vernier_outcome* outcome);
/* Waits for checkpoints that are being written. A run that has not ended is not saved. NULL is allowed. */
VERNIER_C_API int vernier_close(vernier_trainer* trainer);

#ifdef __cplusplus
}
#endif

#endif
