#!/bin/bash
# One rank under mpirun: mpirun ... examples/mpirun/train.sh [options of train.py], from the root of the repository.
# Isthmus reads the nodes from mpirun's own variables. Torch needs three of them under its own names.
set -euo pipefail
: "${MASTER_ADDR:?the host of rank 0: mpirun -x MASTER_ADDR=host1}" "${MASTER_PORT:?a free port there: mpirun -x MASTER_PORT=29500}"
if [[ -v OMPI_COMM_WORLD_RANK ]]; then  # Open MPI
  export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK
else  # MPICH, Intel MPI
  export RANK=${PMI_RANK:?started by neither Open MPI nor MPICH} WORLD_SIZE=$PMI_SIZE LOCAL_RANK=$MPI_LOCALRANKID
fi
exec python examples/torchrun/train.py "$@"
