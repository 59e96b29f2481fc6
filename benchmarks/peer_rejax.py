"""A benchmark worker that trains with rejax (0.1.3, gymnax 0.0.9): PPO or DQN at given settings, without evaluation.

rejax evaluates inside its compiled `train`, every `eval_freq` steps, by `eval_callback`. Here a chunk is one call of
`train` with `total_timesteps = eval_freq = chunk`, no initial evaluation, and a callback that returns nothing, so that
a chunk contains training alone. rejax clips gradients by element, not by global norm, and does not anneal.
"""

import argparse
import time

import worker


def main() -> None:
    """Compiles, warms up, and serves chunks."""
    started = time.perf_counter()
    channel = worker.open_channel()
    arguments = _parser().parse_args()
    import jax
    import rejax

    imported = time.perf_counter()
    make = {"ppo": _make_ppo, "dqn": _make_dqn}[arguments.algo]
    algorithm = make(rejax, arguments).replace(eval_callback=lambda *_: ())
    init = jax.jit(algorithm.init_state)
    state = jax.block_until_ready(init(jax.random.PRNGKey(arguments.seed)))
    train = jax.jit(lambda state: algorithm.train(train_state=state)[0]).lower(state).compile()
    compiled = time.perf_counter()
    jax.block_until_ready(train(state))
    startup = worker.Startup(imported - started, compiled - imported, time.perf_counter() - started)
    worker.announce(channel, startup, worker.versions("rejax", "gymnax", "jax"))

    def chunk() -> int:
        nonlocal state
        before = int(state.global_step)
        state = jax.block_until_ready(train(state))
        return int(state.global_step) - before

    @jax.jit
    def mean_return(state):  # type: ignore[no-untyped-def]
        act, key = _make_act(arguments, algorithm, state), jax.random.PRNGKey(1)
        return rejax.evaluate.evaluate(act, key, algorithm.env, algorithm.env_params, 128)[1].mean()

    def evaluate() -> float:
        return float(mean_return(state))

    worker.serve(channel, chunk, evaluate)


def _make_act(arguments, algorithm, state):  # type: ignore[no-untyped-def]
    """Acts by the mode of PPO's policy, where rejax would sample, so that evaluations compare; DQN as rejax does."""
    if arguments.algo == "dqn":
        return algorithm.make_act(state)

    def act(observation, key):  # type: ignore[no-untyped-def]
        del key
        policy = algorithm.actor.apply(state.actor_ts.params, observation[None], method="_action_dist")
        return policy.mode()[0]

    return act


def _make_ppo(rejax, arguments):  # type: ignore[no-untyped-def]
    return rejax.get_algo("ppo").create(
        **_common(arguments),
        agent_kwargs={"activation": arguments.activation, "hidden_layer_sizes": tuple(arguments.hidden)},
        learning_rate=2.5e-4,
        max_grad_norm=0.5,
        num_steps=arguments.unroll,
        num_epochs=arguments.epochs,
        num_minibatches=arguments.minibatches,
    )


def _make_dqn(rejax, arguments):  # type: ignore[no-untyped-def]
    return rejax.get_algo("dqn").create(
        **_common(arguments),
        agent={"plain": "QNetwork", "dueling": "DuelingQNetwork"}[arguments.head],
        agent_kwargs={"activation": arguments.activation},
        num_epochs=arguments.epochs,
        learning_rate=2.5e-4,
        max_grad_norm=10.0,
        ddqn=arguments.double == "true",
        buffer_size=arguments.buffer_size,
        fill_buffer=arguments.learning_starts,
        batch_size=arguments.batch_size,
        target_update_freq=arguments.target_every,
        polyak=0.0,
    )


def _common(arguments):  # type: ignore[no-untyped-def]
    return {
        "env": arguments.env,
        "num_envs": arguments.num_envs,
        "gamma": 0.99,
        "total_timesteps": arguments.chunk_steps,
        "eval_freq": arguments.chunk_steps,
        "skip_initial_evaluation": True,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", choices=("ppo", "dqn"), default="ppo")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--chunk_steps", type=int, default=65536, help="environment steps of one chunk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_envs", type=int, default=4)
    parser.add_argument("--hidden", type=lambda text: [int(x) for x in text.split(",")], default=[64, 64])
    parser.add_argument("--activation", default="tanh")
    parser.add_argument("--unroll", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4, help="passes (PPO) or gradient steps per iteration (DQN)")
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--buffer_size", type=int, default=10000)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--learning_starts", type=int, default=1000)
    parser.add_argument("--target_every", type=int, default=500, help="environment steps between target updates")
    parser.add_argument("--head", choices=("plain", "dueling"), default="plain", help="of DQN")
    parser.add_argument("--double", choices=("true", "false"), default="false", help="double Q-learning")
    return parser


if __name__ == "__main__":
    main()
