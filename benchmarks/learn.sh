#!/usr/bin/env bash
# The learning runs behind docs/results.md: `make learn`. Every study resumes where it stopped; its table, curves and
# log lie in runs/learn/NAME. With arguments, only the studies whose names begin so: `benchmarks/learn.sh cartpole`.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
failed=0

study() {  # study NAME SEEDS [--setting=LABEL: FLAGS ...] -- TRAIN_FLAGS
  local name=$1 seeds=$2
  shift 2
  local prefix wanted=${#only[@]}
  for prefix in "${only[@]}"; do [[ $name == "$prefix"* ]] && wanted=0; done
  (( wanted )) && return
  "$python" scripts/study.py --out="runs/learn/$name" --num_seeds="$seeds" "$@" || failed=1
}
only=("$@")

study cartpole_ppo 10 -- --system=ppo --env=gymnax:CartPole-v1 --steps=500_000
study cartpole_dqn 10 -- --system=dqn --env=gymnax:CartPole-v1 --steps=500_000
study catch 10 --setting="ppo: --system=ppo" --setting="dqn: --system=dqn" -- --env=gymnax:Catch-bsuite --steps=100_000
study memory_chain 5 --setting="lstm: --network.core=lstm --network.core_size=64" --setting="feed-forward: --network.core=identity" -- \
  --system=ppo --env=gymnax:MemoryChain-bsuite --env.params.memory_length=20 --steps=1_000_000 \
  --env.num_envs=32 --layout.unroll_length=64
study hidden_velocities 6 --setting="lstm: --network.core=lstm --network.core_size=64" --setting="feed-forward: --network.core=identity" -- \
  --system=ppo --env=gymnax:CartPole-v1 --env.params.observe=0,2 --steps=1_000_000 \
  --env.num_envs=32 --layout.unroll_length=64 --agent.scale_rewards=true --learner.learning_rate=1e-3
study minatar_breakout 6 -- --system=ppo --env=gymnax:Breakout-MinAtar --steps=10_000_000
study brax_inverted_pendulum 4 -- --system=ppo --env=brax:inverted_pendulum --env.params.backend=spring \
  --steps=1_000_000 --env.num_envs=64 --layout.unroll_length=32 --learner.minibatches=16 --agent.discount=0.99 \
  --learner.anneal=true --learner.max_grad_norm=0.5
study brax_ant 2 -- --system=ppo --env=brax:ant --env.params.backend=spring --steps=2_000_000 \
  --env.num_envs=256 --layout.unroll_length=20 --learner.minibatches=8 --evaluation.episodes=8
for suite in envpool gymnasium; do
  study "cartpole_$suite" 5 --setting="ppo: --system=ppo" --setting="dqn: --system=dqn --layout.unroll_length=8" -- \
    --env="$suite:CartPole-v1" --steps=500_000
done
study halfcheetah 3 -- --system=ppo --env=envpool:HalfCheetah-v4 --steps=1_000_000 --env.num_envs=16 \
  --layout.unroll_length=128 --evaluation.episodes=16
for suite in gymnax envpool; do
  study "cartpole_replays_$suite" 5 --setting="rainbow: --system=rainbow" --setting="apex_dqn: --system=apex_dqn" \
    --setting="r2d2: --system=r2d2 --steps=1_000_000" -- --env="$suite:CartPole-v1" --steps=500_000
done
study catch_replays 5 --setting="rainbow: --system=rainbow" --setting="apex_dqn: --system=apex_dqn" \
  --setting="r2d2: --system=r2d2 --steps=500_000" -- --env=gymnax:Catch-bsuite --steps=100_000
# Engstrom et al. 2020: the nine code-level details on and off, with and without the clipped ratio.
plain="--agent.clip_value=0 --agent.scale_rewards=false --agent.clip_rewards=0 --agent.normalise_observations=false"
plain+=" --agent.clip_observations=0 --network.orthogonal=false --network.activation=relu --learner.anneal=false"
plain+=" --learner.max_grad_norm=0"
study code_level_details 3 --means=approx_kl,largest_ratio --setting="ppo:" \
  --setting="no clipping: --agent.clip_epsilon=0" --setting="no details: $plain" \
  --setting="neither: --agent.clip_epsilon=0 $plain" -- --system=ppo --env=envpool:Hopper-v4 --steps=1_000_000 \
  --env.num_envs=16 --layout.unroll_length=128 --evaluation.episodes=16
exit $failed
