# Two processes with one loss scale, and the batch script of 004:34 with the variables of 004:37; srun is a stand-in,
# which starts one task.
vernier launch -n 2 "$SEEDS/model.toml" --mixed_precision fp16 --grad_scaler_init 65536 --set distributed.use=ddp \
  --set run.output=ranks >ranks.txt 2>&1
mkdir bin
printf '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n' >bin/srun
chmod +x bin/srun
PRECISION=bf16 BATCH_SIZE=512 PATH="$PWD/bin:$PATH" sh "$VERNIER_SOURCE/examples/slurm/train.sbatch" \
  "$SEEDS/model.toml" --set run.output=slurm >slurm.txt 2>&1
