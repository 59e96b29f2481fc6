"""Reads a run folder: loads and evaluates its policy, and repeats an iteration that failed."""

import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_dist import agents, envs, errors, systems, types
from jaxrl_dist.parallel import keys as run_keys
from jaxrl_dist.parallel import memory_use, placement
from jaxrl_dist.runs import checkpoint as checkpoints
from jaxrl_dist.runs import files
from jaxrl_dist.runs import folder as run_folder
from jaxrl_dist.settings import fields, resolve, sweep, user_code
from jaxrl_dist.systems import catalogue
from jaxrl_dist.training import (
    arguments,
    assemble,
    evaluation,
    guard,
    population,
    predicting,
    records,
    resume,
    session,
)


class Policy(NamedTuple):
    """A trained policy of one seed.

    Attributes:
        agent: pure functions; `agent.evaluate(params, inputs)` acts on a batch.
        params: parameters of that seed, without an axis of seeds.
        environment: the environment that it was trained on.
        settings: settings of the run.
        env_steps: environment steps that its parameters were trained for.
        predictor: how it acts on raw observations, see `predict`.
    """

    agent: agents.Agent
    params: types.Params
    environment: envs.Environment | envs.HostTask
    settings: resolve.Resolved
    env_steps: int
    predictor: predicting.Predictor

    def __repr__(self) -> str:
        return f"Policy({self.settings['system']} {self.settings['env']} after {self.env_steps:,} steps)"

    def act(self, timestep: types.TimeStep, carry: Any, key: jax.Array, state: Any = ()) -> types.ActOutput:
        """Acts as in evaluation.

        Args:
            timestep: leaves [B, ...].
            carry: acting state, tree of [B, ...]; starts as `agent.init_carry(B)`.
            key: typed key [], of this step.
            state: of the environments, tree of [B, ...], for a policy that steps them in thought.

        Returns:
            `types.ActOutput`.
        """
        with session.matmul_precision(self.settings):
            return self.agent.evaluate(self.params, types.ActInputs(timestep, carry, key, state=state))

    def predict(
        self,
        observation: Any,
        state: predicting.State | None = None,
        deterministic: bool = True,
        *,
        reward: Any = None,
        is_first: Any = None,
        seed: int | None = None,
    ) -> tuple[Any, predicting.State]:
        """Acts on raw observations in NumPy: normalisation, frame stacks and memory are the policy's business.

        Args:
            observation: one, as `environment.spec.observation` has it, or a tree of [B, ...] of B environments; without
                what is known in training alone (`spec.privileged`) unless actions depend on that.
            state: what the last call returned; None where episodes begin.
            deterministic: takes the likeliest or best action, also where the run's evaluations draw one (family
                `grid`); only a search and the latent state of a world model still draw. False draws as the policy did
                at the end of its training.
            reward: [] or [B], for arriving here; few policies see it (R2D2's do).
            is_first: bool [] or [B], where an episode begins; by default everywhere without a state, nowhere with one.
            seed: of the draws from here on, where there is no state; by default another one each time.

        Returns:
            The action, as the environment takes it, or actions [B, ...]; and the state for the next call, which a
            policy without memory and frame stacks can do without.

        Raises:
            UsageError: an array has the wrong shape or dtype.

        Example:
            >>> import numpy as np
            >>> import jaxrl_dist
            >>> run = jaxrl_dist.train("ppo", "toy:walk", steps=1_024, out="runs/to_predict")
            >>> policy = jaxrl_dist.load(run.folder)
            >>> action, state = policy.predict(np.array([0.0, 1.0]))
            >>> actions, state = policy.predict(np.zeros((5, 2)), deterministic=False)
            >>> action.shape, actions.shape, actions.dtype
            ((), (5,), dtype('int32'))
        """
        with session.matmul_precision(self.settings):
            return predicting.predict(
                *(self.predictor, self.params, observation, state, deterministic, reward, is_first, seed)
            )


def load(
    run: str | os.PathLike[str],
    checkpoint: str = "latest",
    seed_index: int = 0,
    settings: Mapping[str, Any] | None = None,
    system: systems.System | None = None,
    trust: Collection[str] = (),
) -> Policy:
    """Loads the policy of a run.

    Args:
        run: run folder.
        checkpoint: `latest` or `best` (by mean evaluation return).
        seed_index: index of the seed; in a sweep, all seeds of the first combination come first.
        settings: parameters of the environment (`env.params.NAME`) and settings of evaluation (`agent.evaluation_NAME`)
            in place of the run's.
        system: system of the run, if a program made it and no module has it.
        trust: modules that its `config.json` may name, and files and programs for its environment (docs/trust.md).

    Returns:
        `Policy`.

    Raises:
        UsageError: the folder holds no such policy or seed, or names code that is not trusted, or an argument has the
            wrong type.
        CheckpointError: its files are corrupt.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import jaxrl_dist
        >>> from jaxrl_dist import envs
        >>> run = jaxrl_dist.train("ppo", "toy:walk", steps=1_024, out="runs/to_load")
        >>> policy = jaxrl_dist.load(run.folder)
        >>> state, timestep = envs.columns(policy.environment).reset(jax.random.key(0), jnp.arange(3))
        >>> policy.act(timestep, policy.agent.init_carry(3), jax.random.key(1)).action.shape
        (3,)
    """
    arguments.check_policy(run, checkpoint, seed_index, settings, system)
    parts, trained, env_steps = _restore(run_folder.expanded(run), checkpoint, settings or {}, own=system, trust=trust)
    members = sweep.num_members(parts.settings)
    if not 0 <= seed_index < members:
        raise errors.UsageError(f"seed_index={seed_index}: {run} has seeds 0 to {members - 1}")
    one = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[seed_index]), trained)
    values = sweep.combinations(parts.settings)[seed_index // parts.settings["num_seeds"]]
    if parts.settings["population"]:
        values = population.values(trained)[seed_index]
    found, facts = parts.settings.replaced(values), assemble.facts(parts.environment)
    if values:
        # The one combination's values are settings like any others here.
        one = one._replace(statistics=one.statistics.own)
    agent, predictor = assemble.make_agent(found, *facts), predicting.make(found, *facts)
    return Policy(agent, one, parts.environment, found, env_steps, predictor)


def evaluate(
    run: str | os.PathLike[str],
    episodes: int = 100,
    seed: int = 0,
    checkpoint: str = "latest",
    settings: Mapping[str, Any] | None = None,
    trust: Collection[str] = (),
) -> dict[str, Any]:
    """Evaluates the policies of a run on new environments; equal arguments give equal results.

    Args:
        run: run folder.
        episodes: whole episodes per seed.
        seed: seed of the evaluation's environments and actions; never gives those of training.
        checkpoint: as in `load`.
        settings: likewise.
        trust: likewise.

    Returns:
        A dict that `json` can write: `run`, `system`, `env`, `protocol`, `checkpoint`, `env_steps` and `seed`; and
        `eval_return`, `eval_return_per_seed`, `eval_return_iqm`, `eval_return_ci95`, `eval_interval_over`,
        `eval_episodes`, `eval_return_min` and `eval_return_max` (docs/metrics.md). Of a sweep `sweep`, a list with
        the settings and returns of each combination.

    Raises:
        UsageError: the run has no such policies or settings, or names code that is not trusted, or an argument has the
            wrong type.
        EnvironmentFault: an environment failed, or a return is not finite.
        OutOfMemoryError: so many episodes at once need more memory than there is.

    Example:
        >>> import jaxrl_dist
        >>> run = jaxrl_dist.train("ppo", "toy:walk", steps=1_024, out="runs/to_evaluate")
        >>> record = jaxrl_dist.evaluate(run.folder, episodes=8, settings={"agent.evaluation_action": "sample"})
        >>> record["env"], record["checkpoint"], record["eval_episodes"]
        ('toy:walk', 'latest', 8)
    """
    arguments.check_policy(run, checkpoint, 0, settings, None)
    arguments.check_episodes(seed, episodes=episodes)
    with memory_use.named("take fewer episodes"):
        parts, trained, env_steps = _restore(
            run_folder.expanded(run), checkpoint, settings or {}, episodes, trust=trust
        )
        # A training run with this seed splits the key into one for each of these fields; this is one more.
        root = jax.random.fold_in(jax.random.key(seed), len(run_keys.SeedKeys._fields))
        keys = jax.vmap(jax.random.fold_in, (None, 0))(root, jnp.arange(parts.settings["num_seeds"]))
        keys = jnp.tile(keys, len(sweep.combinations(parts.settings)))
        with session.matmul_precision(parts.settings):
            returns = parts.evaluate(trained, keys, 0)
    evaluation.check_finite(returns, parts.settings.settings)
    members = sweep.by_combination(parts.settings, list(returns))
    if parts.settings["population"]:
        members = [(values, [of_one]) for values, of_one in zip(population.values(trained), returns, strict=True)]
    grouped = [{"settings": values, **_summarised(np.stack(of_each))} for values, of_each in members]
    return {
        "run": str(run),
        "system": parts.settings["system"],
        "env": parts.settings["env"],
        "protocol": parts.protocol,
        "checkpoint": checkpoint,
        "env_steps": env_steps,
        "seed": seed,
        **({"sweep": grouped} if parts.settings["sweep"] else _summarised(returns)),
    }


def replay_failure(run: str | os.PathLike[str], trust: Collection[str] = ()) -> dict[str, list[float]]:
    """Repeats the iteration that stopped a run because something was not finite.

    Args:
        run: run folder.
        trust: as in `load`.

    Returns:
        Sums of the iteration's metrics, and the norms of the parameters after it, by name with one number per seed;
        those that are not finite show what broke.

    Raises:
        UsageError: the run has not failed, names code that is not trusted, or was saved by another version.

    Example:
        >>> import jaxrl_dist
        >>> run = jaxrl_dist.train("a2c", "toy:walk", steps=1_024, out="runs/sound")
        >>> jaxrl_dist.replay_failure(run.folder)
        Traceback (most recent call last):
            ...
        jaxrl_dist.errors.UsageError: runs/sound holds no failure
    """
    arguments.check_run(run)
    folder = run_folder.expanded(run)
    path = checkpoints.find(folder / "failure", "state")
    if path is None:
        raise errors.UsageError(f"{run} holds no failure")
    # Each device has its own key, so with another number of devices the iteration would be another.
    meta = checkpoints.read_meta(path)
    checkpoints.check_meta(path, meta, guard.FAILURE)
    parts = assemble_run(folder, {}, meta["num_devices"], trust=trust)
    template = parts.layout.diagnosis.template(assemble.seed_keys(parts.settings))
    try:
        saved, _ = checkpoints.restore(path, template)
    except ValueError as error:
        raise errors.UsageError(resume.does_not_fit("the failure", folder, error)) from error
    with session.matmul_precision(parts.settings):
        learned, sums = parts.layout.diagnosis.run(saved, meta["iteration"], meta["total"])
    named = records.by_path({**sums.learner, **sums.episodes._asdict(), "params": _norms(learned.params.network)})
    return {name: value.tolist() for name, value in named.items()}


def _summarised(returns: np.ndarray) -> dict[str, Any]:
    """Summarises returns f64 [S, episodes], with the lowest and the highest episode."""
    ends = {"eval_return_min": float(returns.min()), "eval_return_max": float(returns.max())}
    return {**records.summarise_returns(returns), **ends}


def _norms(network: Any) -> Any:
    """Returns f32 [S], the norm of each leaf [S, ...]."""
    return jax.tree.map(lambda x: jnp.sqrt(jnp.square(x).reshape(x.shape[0], -1).sum(1)), network)


def assemble_run(
    folder: pathlib.Path,
    flags: Mapping[str, Any],
    num_devices: int = 1,
    episodes: int = 0,
    own: systems.System | None = None,
    trust: Collection[str] = (),
) -> assemble.Assembly:
    """Builds the parts of a run anew from its `config.json`, with these flags in the place of its own.

    Raises:
        UsageError: the folder is no run folder, its `config.json` is damaged or names code that is not trusted, or
            this process has too few devices.
    """
    arguments.check_trust(trust)
    path = folder / "config.json"
    run_folder.check_is_run(folder, errors.given("run", folder))
    devices = placement.devices()
    if num_devices > len(devices):
        raise errors.UsageError(
            f"{folder} ran on {num_devices} devices, here are {len(devices)}: on a CPU, call "
            f"jax.config.update('jax_num_cpu_devices', {num_devices}) before anything else"
        )
    with user_code.trusting({*trust, *map(str, flags.values())}):
        saved = catalogue.restored(files.read_json(path), own)
        # Every value is given, so the preset is not read: it may have changed since, or be gone.
        named = {**saved.settings, "system": own or saved["system"], "preset": ""}
        settings, environment = assemble.resolve({**named, **_devices(saved, num_devices), **flags})
        return assemble.assemble(settings, environment, devices[:num_devices], episodes)


def _devices(saved: resolve.Resolved, num_devices: int) -> dict[str, Any]:
    """Returns the flags that make a layout use the first devices of this process, and threads in place of a fleet."""
    named = {**dict.fromkeys(resume.PLACES, ""), "layout.num_devices": num_devices}
    layout = saved.row.layout(saved["layout"]).config
    fleet = {f"layout.{one.name}": one.default for one in fields.of(layout) if one.name.startswith("fleet")}
    return {name: value for name, value in {**named, **fleet}.items() if name in saved.settings}


def _restore(
    folder: pathlib.Path,
    checkpoint: str,
    flags: Mapping[str, Any],
    episodes: int = 0,
    own: systems.System | None = None,
    trust: Collection[str] = (),
) -> tuple[assemble.Assembly, types.Params, int]:
    parts = assemble_run(folder, flags, episodes=episodes, own=own, trust=trust)
    template = parts.layout.template(assemble.seed_keys(parts.settings)).learner.params
    try:
        params, meta = resume.load_params(folder, checkpoint, template)
    except ValueError as error:
        raise errors.UsageError(*error.args) from error
    return parts, params, meta["env_steps"]
