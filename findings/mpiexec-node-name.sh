#!/bin/sh
# How a process learns from mpiexec, without MPI_Init, which node it is on.
#
# The three launchers are one family (Hydra) and set PMI_RANK, PMI_SIZE, MPI_LOCALRANKID and MPI_LOCALNRANKS alike. The
# node's name has three names:
#   MPICH up to 4.2      MPIR_CVAR_CH3_INTERFACE_HOSTNAME
#   MPICH 4.3 and 5      PMI_HOSTNAME, and the older one is gone
#   Intel MPI 2021.19    neither; HYDRA_BSTRAP_LOCALHOST, which its daemons leave behind
# Seen on 28 November 2026:
#   mpich==4.2.3: MPIR_CVAR_CH3_INTERFACE_HOSTNAME
#   mpich==4.3.1: PMI_HOSTNAME
#   mpich==5.0.2: PMI_HOSTNAME
#   impi-rt==2021.19.0: HYDRA_BSTRAP_LOCALHOST
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

check() { # package, the variable that names the node
  python3 -m venv --clear "$folder/venv"
  # Intel's wheel asks for a libfabric that its launcher does not need.
  "$folder/venv/bin/pip" install --quiet --no-deps "$1"
  seen=$(env -u PMI_HOSTNAME -u MPIR_CVAR_CH3_INTERFACE_HOSTNAME -u HYDRA_BSTRAP_LOCALHOST I_MPI_ROOT="$folder/venv" \
    "$folder/venv/bin/mpiexec.hydra" -n 1 env |
    sed -n -E "s/^(PMI_HOSTNAME|MPIR_CVAR_CH3_INTERFACE_HOSTNAME|HYDRA_BSTRAP_LOCALHOST)=$(hostname)\$/\1/p" | sort | xargs)
  echo "$1: $seen"
  [ "$seen" = "$2" ]
}

check mpich==4.2.3 MPIR_CVAR_CH3_INTERFACE_HOSTNAME
check mpich==4.3.1 PMI_HOSTNAME
check mpich==5.0.2 PMI_HOSTNAME
check impi-rt==2021.19.0 HYDRA_BSTRAP_LOCALHOST
