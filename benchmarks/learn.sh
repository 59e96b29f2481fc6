#!/usr/bin/env bash
# The learning runs behind docs/results.md: `make learn`. Every study resumes where it stopped; its table, curves and
# log lie in runs/learn/NAME. With arguments, only the studies whose names begin so: `benchmarks/learn.sh cartpole`.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
failed=0 found=0

study() {  # study NAME SEEDS [--setting=LABEL: FLAGS ...] -- TRAIN_FLAGS
  local name=$1 seeds=$2
  shift 2
  local prefix wanted=${#only[@]}
  for prefix in "${only[@]}"; do [[ $name == "$prefix"* ]] && wanted=0; done
  (( wanted )) && return
  found=1
  "$python" scripts/study.py --out="runs/learn/$name" --num_seeds="$seeds" "$@" || failed=1
}
only=("$@")

study cartpole_ppo 10 -- --system=ppo --env=gymnax:CartPole-v1 --steps=500_000
study cartpole_dqn 10 -- --system=dqn --env=gymnax:CartPole-v1 --steps=500_000
study cartpole_qr_dqn 5 -- --system=qr_dqn --env=gymnax:CartPole-v1 --steps=500_000
study cartpole_munchausen 5 --setting="M-DQN: --preset=dqn/cartpole_munchausen" \
  --setting="M-IQN: --preset=iqn/cartpole_munchausen" -- --steps=500_000
study cartpole_iqn 5 -- --system=iqn --env=gymnax:CartPole-v1 --steps=500_000
study cartpole_discrete_sac 5 -- --system=discrete_sac --env=gymnax:CartPole-v1 --steps=500_000
study cartpole_vmpo 5 -- --system=vmpo --env=gymnax:CartPole-v1 --steps=500_000
study cartpole_vmpo_async 5 -- --system=vmpo --env=gymnax:CartPole-v1 --layout=async_gradient --steps=500_000
study pendulum_crossq 5 -- --system=crossq --env=gymnax:Pendulum-v1 --steps=5_000
study pendulum_mpo 15 -- --preset=mpo/pendulum
study catch_dreamer 5 -- --preset=dreamer/catch
study cartpole_dreamer 5 -- --preset=dreamer/cartpole
study pendulum_dreamer 5 -- --preset=dreamer/pendulum
study breakout_dreamer 5 -- --preset=dreamer/breakout
study swingup_dreamer 3 -- --preset=dreamer/swingup
study cartpole_a2c 10 -- --system=a2c --env=gymnax:CartPole-v1 --steps=500_000
study cartpole_pqn 5 -- --preset=pqn/cartpole
study catch_pqn 5 -- --system=pqn --env=gymnax:Catch-bsuite --steps=100_000
study catch_a2c 10 -- --system=a2c --env=gymnax:Catch-bsuite --steps=100_000
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
study brax_humanoid 3 -- --system=gpu_sim --env=brax:humanoid --env.params.backend=spring --steps=1_000_000 \
  --env.num_envs=64 --layout.unroll_length=16 --learner.minibatches=8 --evaluation.episodes=8
study lunar_lander 5 --setting="PPO: --system=ppo" --setting="as classic control: --system=ppo --env.num_envs=4 --layout.unroll_length=128
  --learner.learning_rate=2.5e-4 --learner.anneal=true --learner.minibatches=4 --agent.discount=0.99 --agent.gae_lambda=0.95
  --agent.clip_value=0.2" -- --env=envpool:LunarLander-v3 --steps=1_000_000
study halfcheetah 5 -- --preset=ppo/halfcheetah
for suite in gymnax envpool; do
  study "cartpole_replays_$suite" 5 --setting="rainbow: --system=rainbow" --setting="apex_dqn: --system=apex_dqn" \
    --setting="r2d2: --system=r2d2 --steps=1_000_000" -- --env="$suite:CartPole-v1" --steps=500_000
done
study catch_replays 5 --setting="rainbow: --system=rainbow" --setting="apex_dqn: --system=apex_dqn" \
  --setting="r2d2: --system=r2d2 --steps=500_000" -- --env=gymnax:Catch-bsuite --steps=100_000
# Networks of 128 × 128 on flat frames; 8 taught rows per row that comes in.
breakout="--env=gymnax:Breakout-MinAtar --steps=300_000 --env.num_envs=8 --replay.capacity=96_000"
breakout+=" --replay.samples_per_insert=8 --network.torso=mlp --network.hidden_sizes=128 --network.head_size=128"
breakout+=" --network.activation=relu"
# Hessel et al. 2018, figures 1 and 3 in small: Rainbow, Rainbow without each part, DQN, DQN with each part.
no_epsilon="--agent.epsilon_start=0 --agent.epsilon_end=0"
by_epsilon="--agent.noise=0 --agent.epsilon_start=1 --agent.epsilon_end=0.1"
atoms="--agent.value_low=-10 --agent.value_high=10"
no_parts="--agent.double=false --agent.dueling=false --agent.n_step=1 --agent.num_atoms=1 $by_epsilon"
study rainbow_parts 5 --setting="Rainbow: --system=rainbow" \
  --setting="Rainbow without double: --system=rainbow --agent.double=false" \
  --setting="Rainbow without dueling: --system=rainbow --agent.dueling=false" \
  --setting="Rainbow without priorities: --system=rainbow --replay.priority_exponent=0" \
  --setting="Rainbow without n-step: --system=rainbow --agent.n_step=1" \
  --setting="Rainbow without distribution: --system=rainbow --agent.num_atoms=1" \
  --setting="Rainbow without noise: --system=rainbow $by_epsilon" \
  --setting="DQN: --system=dqn" \
  --setting="DQN with double: --system=dqn --agent.double=true" \
  --setting="DQN with dueling: --system=dqn --agent.dueling=true" \
  --setting="DQN with priorities: --system=rainbow $no_parts --learner.max_grad_norm=0" \
  --setting="DQN with n-step: --system=dqn --agent.n_step=3" \
  --setting="DQN with distribution: --system=dqn --agent.num_atoms=51 $atoms" \
  --setting="DQN with noise: --system=dqn --agent.noise=0.5 $no_epsilon" -- $breakout \
  --layout.unroll_length=4 --learner.target_period=250
# Less of it: σ₀ is .5 in the papers, and .1 in Dopamine's and Kaixhin's code.
study rainbow_noise 5 --setting="Rainbow, noise .1: --system=rainbow --agent.noise=0.1" \
  --setting="Rainbow, noise .02: --system=rainbow --agent.noise=0.02" \
  --setting="DQN, noise .1: --system=dqn --agent.noise=0.1 $no_epsilon" \
  --setting="DQN, noise .02: --system=dqn --agent.noise=0.02 $no_epsilon" -- $breakout \
  --layout.unroll_length=4 --learner.target_period=250
# A memory of 60 steps, longer than the 40 that are taught at once.
memory="--system=r2d2 --layout=anakin --agent.taught=40 --network.forget_bias=4"
study memory_replays 5 --setting="R2D2: $memory --agent.burn_in=20" \
  --setting="R2D2 from zeros: $memory --agent.burn_in=20 --agent.stored_state=false" \
  --setting="R2D2 without burn-in: $memory --agent.burn_in=0" \
  --setting="R2D2 with neither: $memory --agent.burn_in=0 --agent.stored_state=false" \
  --setting="DQN: --system=dqn --env.num_envs=32" -- --env=gymnax:MemoryChain-bsuite --env.params.memory_length=60 \
  --steps=300_000 --layout.unroll_length=20 --replay.samples_per_insert=20 --replay.capacity=96_000
# Products in bfloat16 beside float32.
dtypes=(--setting="bfloat16: --network.compute=bfloat16" --setting="float32: --network.compute=float32")
study dtypes_breakout 5 "${dtypes[@]}" -- --preset=ppo/breakout --steps=1_000_000
study dtypes_pendulum 5 "${dtypes[@]}" -- --preset=sac/pendulum
study dtypes_memory_chain 5 "${dtypes[@]}" -- --preset=r2d2/memory_chain
# PPO with each memory; that of LSTMs is `memory_chain` above.
study memory_chain_cores 5 --setting="gru: --network.core=gru" --setting="mingru: --network.core=mingru" \
  --setting="lstm: --network.core=lstm" --setting="mingru, bias 4: --network.core=mingru --network.forget_bias=4" -- \
  --preset=ppo/memory_chain
study hidden_velocities_replays 5 --setting="R2D2: --system=r2d2 --layout=anakin --steps=1_000_000" \
  --setting="DQN: --system=dqn" -- --env=gymnax:CartPole-v1 --env.params.observe=0,2 --steps=500_000
# Asynchronous systems: actors apart or not, replays of their own or one for all.
study cartpole_a2c_envpool 5 -- --system=a2c --layout=sebulba --env=envpool:CartPole-v1 --steps=500_000
study cartpole_async 5 --setting="GA3C: --system=ga3c --env=envpool:CartPole-v1" \
  --setting="A3C: --system=a3c --env=gymnax:CartPole-v1" -- --steps=500_000
apart="--layout.num_actors=4"
study cartpole_gorila 5 --setting="bundled, local:" --setting="bundled, global: --layout.replay=global" \
  --setting="separate, local: $apart" --setting="separate, global: $apart --layout.replay=global" -- \
  --system=gorila --env=gymnax:CartPole-v1 --steps=500_000
# Two environments to each worker of a virtual clock, so that every gradient is of as many rows, whoever sends it.
settings=()
for workers in 1 2 4 8 64 512; do
  settings+=(--setting="$workers: --layout.num_workers=$workers --env.num_envs=$((2 * workers))")
done
for workers in 2 4 8 64; do
  in_step="--layout.num_workers=$workers --env.num_envs=$((2 * workers)) --layout.gradients_per_apply=$workers"
  settings+=(--setting="$workers in step: $in_step")
done
virtual="--env=gymnax:CartPole-v1 --layout.schedule=virtual --layout.jitter=0.3 --steps=200_000"
counted="--means=policy_lag_p50,gradients_dropped_stale,gradients_dropped_outlier"
study workers_a3c 5 $counted "${settings[@]}" -- --system=a3c $virtual
study workers_gorila 5 $counted "${settings[@]}" -- --system=gorila $virtual --replay.capacity=10_240
# What comes too late is what is played well: learning with some of it dropped.
PYTHONPATH=benchmarks:${PYTHONPATH:-} study dropping 5 --setting="none:" --setting="quorum of 7: --layout.quorum=7" \
  --setting="quorum of 6: --layout.quorum=6" -- --system=ppo --env=gymnasium:slow_cartpole:SlowCartPole-v0 \
  --layout.num_actors=8 --env.num_envs=16 --env.params.workers=1 --env.params.pause_ms=0.3 --layout.unroll_length=32 \
  --steps=100_000 --evaluation.interval_steps=25_000 --evaluation.episodes=16
study cartpole_on_policy 5 --setting="IMPALA: --system=impala --layout=anakin" \
  --setting="IMPALA with replay: --system=impala_replay --layout=anakin" -- --env=gymnax:CartPole-v1 --steps=500_000
study seed_r2d2 5 -- --system=seed_r2d2 --env=envpool:CartPole-v1 --steps=1_000_000
# With the five of canon_cartpole, the eight seeds of the reference.
study cartpole_a3c 3 --seed=5 -- --system=a3c --env=gymnax:CartPole-v1 --steps=500_000
study cartpole_dppo 20 --seed=10 -- --system=dppo --env=gymnax:CartPole-v1 --steps=500_000
unscaled="--agent.scale_rewards=false --agent.normalise_observations=false --agent.normalise_advantage=minibatch"
study cartpole_falls 20 --seed=100 --setting="DPPO: --system=dppo" \
  --setting="DPPO, rewards as they are: --system=dppo --agent.scale_rewards=false" \
  --setting="DPPO, nothing normalised: --system=dppo $unscaled" \
  --setting="the same, values clipped: --system=dppo $unscaled --agent.clip_value=0.2" \
  --setting="the same, value cost .01: --system=dppo $unscaled --agent.value_cost=0.01" \
  --setting="the same, gradients not clipped: --system=dppo $unscaled --learner.max_grad_norm=0" \
  --setting="PPO: --system=ppo" \
  --setting="PPO, values not clipped: --system=ppo --agent.clip_value=0" \
  --setting="PPO, values not clipped, rewards scaled: --system=ppo --agent.clip_value=0 --agent.scale_rewards=true" -- \
  --env=gymnax:CartPole-v1 --steps=500_000
study cartpole_impala_envpool 5 --setting="IMPALA: --system=impala" --setting="SEED IMPALA: --system=seed_impala" \
  --setting="IMPALA with replay: --system=impala_replay" --setting="DPPO: --system=dppo" -- --env=envpool:CartPole-v1 --steps=500_000
# With RMSProp, sums and 489 updates, as on CartPole, it stays at chance.
study memory_chain_impala 5 -- --system=impala --layout=anakin --network.core=lstm --network.core_size=64 \
  --env=gymnax:MemoryChain-bsuite --env.params.memory_length=20 --steps=500_000 --env.num_envs=16 --layout.unroll_length=32 \
  --learner.optimizer=adam --learner.learning_rate=1e-3 --learner.epsilon=1e-5 --learner.decay=0.999 \
  --learner.reduction=mean --learner.max_grad_norm=0.5 --agent.entropy_cost=0.01
study minatar_breakout_impala 5 -- --system=impala --layout=anakin --env=gymnax:Breakout-MinAtar --steps=10_000_000
# The actor–critics of real actions on one task for as many steps.
study canon_pendulum 5 --setting="DDPG: --system=ddpg" --setting="TD3: --system=td3" --setting="D4PG: --system=d4pg" \
  --setting="SAC: --system=sac" --setting="Ape-X DPG: --system=apex_dpg" -- --layout=anakin --env=gymnax:Pendulum-v1 --steps=15_000
# Barth-Maron et al. 2018, figure 2 in small: DDPG with D4PG's settings, and its parts one after the other; an update of
# 64 rows for each step with the paper's step sizes, on Hopper by networks of 128 × 128.
small="--replay.batch_size=64 --replay.samples_per_insert=64 --learner.learning_rate=1e-4 --network.layer_norm=false"
ddpg="--agent.n_step=1 --agent.num_atoms=1 --replay.priority_exponent=0"
parts=(--setting="DDPG: $ddpg" --setting="with n-step: $ddpg --agent.n_step=5" \
  --setting="with n-step and distribution: --replay.priority_exponent=0" --setting="D4PG:")
study d4pg_parts_pendulum 5 "${parts[@]}" -- --system=d4pg --layout=anakin --env=gymnax:Pendulum-v1 --steps=15_000 $small \
  --network.hidden_sizes=256,256
study d4pg_parts_hopper 5 "${parts[@]}" -- --system=d4pg --layout=sebulba --env=envpool:Hopper-v4 --steps=100_000 $small \
  --network.hidden_sizes=128,128 --agent.value_low=0 --agent.value_high=500
# Every system of the canon on one task for as many steps.
study canon_cartpole 5 --setting="DQN: --system=dqn" --setting="Rainbow: --system=rainbow" \
  --setting="Gorila: --system=gorila" --setting="A3C: --system=a3c" --setting="A2C: --system=a2c" \
  --setting="GA3C: --system=ga3c" --setting="Ape-X DQN: --system=apex_dqn --layout=anakin" \
  --setting="IMPALA: --system=impala --layout=anakin" --setting="IMPALA with replay: --system=impala_replay --layout=anakin" \
  --setting="SEED IMPALA: --system=seed_impala" --setting="R2D2: --system=r2d2 --layout=anakin" \
  --setting="SEED R2D2: --system=seed_r2d2" --setting="PPO: --system=ppo" --setting="DPPO: --system=dppo" \
  --setting="PQN: --system=pqn" -- --env=gymnax:CartPole-v1 --steps=500_000
# Espeholt et al. 2018, table 2 in small: the corrections at exact lags.
settings=()
for lag in 1 4 16; do
  for correction in vtrace one_step epsilon none; do
    settings+=(--setting="$correction, lag $lag: --layout.policy_lag=$lag --agent.correction=$correction")
  done
done
study corrections_catch 5 --means=importance_weight "${settings[@]}" -- --system=impala --layout=sebulba \
  --env=gymnax:Catch-bsuite --steps=300_000
with_replay=()
for correction in vtrace one_step epsilon none; do
  with_replay+=(--setting="$correction, with replay: --agent.correction=$correction")
done
study corrections_catch_replay 5 --means=importance_weight "${with_replay[@]}" -- --system=impala_replay --layout=sebulba \
  --layout.policy_lag=1 --env=gymnax:Catch-bsuite --steps=300_000
settings=()
for lag in 16 1 4; do
  for correction in vtrace one_step epsilon none; do
    settings+=(--setting="$correction, lag $lag: --layout.policy_lag=$lag --agent.correction=$correction")
  done
done
# One pass over each batch, so that the lag is all that makes it another policy's.
study corrections_breakout 5 --means=importance_weight "${settings[@]}" -- --system=impala --layout=sebulba \
  --env=gymnax:Breakout-MinAtar --steps=500_000 --env.num_envs=64 --layout.unroll_length=10 --learner.minibatches=1 \
  --learner.learning_rate=2e-3
study corrections_breakout_replay 5 --means=importance_weight "${with_replay[@]}" -- --system=impala_replay --layout=sebulba \
  --layout.policy_lag=1 --env=gymnax:Breakout-MinAtar --steps=500_000 --env.num_envs=64 --layout.unroll_length=10 \
  --learner.learning_rate=2e-3
# Engstrom et al. 2020: the nine code-level details on and off, with and without the clipped ratio.
plain="--agent.clip_value=0 --agent.scale_rewards=false --agent.clip_rewards=0 --agent.normalise_observations=false"
plain+=" --agent.clip_observations=0 --network.orthogonal=false --network.activation=relu --learner.anneal=false"
plain+=" --learner.max_grad_norm=0"
study code_level_details 3 --means=approx_kl,largest_ratio --setting="ppo:" \
  --setting="no clipping: --agent.clip_epsilon=0" --setting="no details: $plain" \
  --setting="neither: --agent.clip_epsilon=0 $plain" -- --system=ppo --env=envpool:Hopper-v4 --steps=1_000_000 \
  --env.num_envs=16 --layout.unroll_length=128 --evaluation.episodes=16
# A memory of 100 steps; a Transformer's memory is as long as the chain.
memory="--env.num_envs=32 --layout.unroll_length=128 --network.core_size=64"
study memory_chain_100 5 --setting="GTrXL: --network.core=gtrxl --network.core_layers=1 --network.core_rows=101" \
  --setting="LSTM: --network.core=lstm --network.forget_bias=5" --setting="minGRU: --network.core=mingru --network.forget_bias=5" \
  --setting="minGRU, larger steps: --network.core=mingru --network.forget_bias=5 --learner.learning_rate=1e-3" \
  --setting="feed-forward: --network.core=identity" -- \
  --system=ppo --env=gymnax:MemoryChain-bsuite --env.params.memory_length=100 --steps=1_000_000 $memory
# The policy sees one of two numbers, the critic both or the same.
study critic_sees_more 5 --setting="critic sees the target: --network.value_inputs=state,target" \
  --setting="critic sees what the policy sees: --network.value_inputs=state" -- --system=ppo --env=toy:reach \
  --steps=50_000 --network.policy_inputs=state --evaluation.interval_steps=5_000
# A load that lasts an episode, which the policy does not see: the critic does or does not.
study critic_sees_load 5 --setting="critic sees the load: --network.value_inputs=state,load" \
  --setting="critic sees what the policy sees: --network.value_inputs=state" -- --system=ppo --env=toy:load \
  --steps=300_000 --env.params.length=20 --evaluation.interval_steps=100_000 --evaluation.episodes=16_384
# A goal of two categories beside a picture: seen by an encoder for each leaf, or not seen.
study trees_choice 5 --setting="every leaf:" --setting="one leaf: --network.policy_inputs=seen --network.value_inputs=seen" -- \
  --system=ppo --env=toy:choices --steps=100_000
masks=(--setting="mask:" --setting="without: --env.params.mask=false")
study masks_connect_four 5 "${masks[@]}" -- --system=ppo --env=pgx:connect_four --steps=100_000
study masks_snake 5 "${masks[@]}" -- --system=ppo --env=jumanji:Snake-v1 --steps=500_000
study masks_minesweeper 5 "${masks[@]}" -- --system=ppo --env=jumanji:Minesweeper-v0 --steps=300_000
study masks_tetris 5 "${masks[@]}" -- --system=ppo --env=jumanji:Tetris-v0 --steps=300_000
# Rewards that chance finds once in 2^20 episodes.
study deep_sea 5 --setting="RND: --system=rnd" --setting="PPO: --system=ppo" -- --env=gymnax:DeepSea-bsuite \
  --env.params.size=20 --steps=300_000 --env.num_envs=32 --layout.unroll_length=64
# Asks for XLand-MiniGrid.
study door_key 5 --setting="RND: --system=rnd" --setting="PPO: --system=ppo" -- --env=xminigrid:MiniGrid-DoorKey-8x8 \
  --steps=1_000_000 --env.num_envs=32 --layout.unroll_length=64 --layout=anakin
study cartpole_es 5 -- --system=es --env=gymnax:CartPole-v1 --steps=2_000_000
study pendulum_es 10 -- --system=es --env=gymnax:Pendulum-v1 --steps=20_000_000
study ant_es 5 -- --preset=es/ant
study catch_muzero 5 -- --system=muzero --env=gymnax:Catch-bsuite --steps=100_000
study cartpole_muzero 5 -- --system=muzero --env=gymnax:CartPole-v1 --steps=200_000
study cartpole_alphazero 5 -- --system=alphazero --env=gymnax:CartPole-v1 --steps=100_000
# Several agents; all but the first study need the extra jaxmarl.
teams=(--setting="IPPO: --system=ippo" --setting="MAPPO: --system=mappo")
study team 5 "${teams[@]}" --setting="IPPO apart: --system=ippo --agent.share_parameters=false" -- --env=toy:team --steps=100_000 \
  --learner.learning_rate=1e-2
study simple_spread 5 "${teams[@]}" -- --env=jaxmarl:MPE_simple_spread_v3 --steps=1_000_000 --learner.learning_rate=2.5e-4
study simple_spread_fast 5 "${teams[@]}" -- --env=jaxmarl:MPE_simple_spread_v3 --steps=1_000_000
study kitchen 5 "${teams[@]}" -- --env=jaxmarl:overcooked --env.params.shaping=1 --steps=2_000_000
study smax 5 "${teams[@]}" -- --env=jaxmarl:HeuristicEnemySMAX --env.params.map=3m --steps=1_000_000
if (( ! found )); then
  echo "learn.sh: no study begins with ${only[*]}" >&2
  exit 2
fi
exit $failed
