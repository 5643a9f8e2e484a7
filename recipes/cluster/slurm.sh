#!/bin/bash
# Trains a recipe on two machines of eight GPUs with Slurm, a rank and an engine on each GPU. It has not run on GPUs yet.
#   sbatch recipes/cluster/slurm.sh recipes/bfcl-qwen2.5-14b.toml /shared/runs/14b
# Slurm runs the last command once on each machine. Activate the virtualenv before sbatch, which passes the environment on. The
# repository, the virtualenv and /shared are on a disk that all machines see.
# Submit it again with --resume and the run's folder to go on after a stop: sbatch recipes/cluster/slurm.sh --resume /shared/runs/14b
#SBATCH --job-name=elastic-horizon
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=7-00:00:00
#SBATCH --output=%x-%j.log
set -euo pipefail

if [ "$1" = --resume ]; then
    flags=(--resume "$2")
else
    flags=(--recipe "$1" --out "$2")
fi
# The interface between the machines, by default that of the first machine's route. gloo would take that of the host's name, which may be lo.
export NIC=${NIC:-$(awk '$2 == "00000000" {print $1; exit}' /proc/net/route)}
export GLOO_SOCKET_IFNAME=$NIC NCCL_SOCKET_IFNAME=$NIC
# Micro-batches of many sizes leave gaps in the memory of a GPU, which these segments close. vLLM leaves them out of its own pool.
export PYTORCH_ALLOC_CONF=expandable_segments:True

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts%%$'\n'*}

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # since Slurm 22.05 srun takes one core otherwise
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" \
    --rdzv-endpoint "$head:29400" -m harness.grpo "${flags[@]}"
