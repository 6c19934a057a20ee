#!/usr/bin/env bash
# sbatch slurm.sh MODEL [FLAG...]: an engine over two nodes of eight H200 GPUs. Its address is the first node's.
#SBATCH --job-name=jaxinfer
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
set -euo pipefail

# A secret that the nodes of this job share; another job has another.
JAXINFER_HOSTS_KEY="$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')"
export JAXINFER_HOSTS_KEY

# The variables of srun say which host each is, and where the first one is.
srun --kill-on-bad-exit=1 jaxinfer serve "$1" --mesh h200-16 --coordinator auto "${@:2}"
