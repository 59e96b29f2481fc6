"""The names of our settings in other libraries, for messages about unknown flags and for docs/coming_from.md."""

from collections.abc import Container, Mapping
from typing import NamedTuple


class Synonym(NamedTuple):
    """A name of another library, our flags with the same meaning, if any, and the differences in words."""

    theirs: str
    ours: tuple[str, ...]
    remark: str = ""


_COUNT = "the number of minibatches, not their size"
_PER_ROW = "taught rows per row that comes in"
_AS_MUCH = "the same number: it weighs half the squared error there, too"
_HALVED = "twice as much: it weighs half the squared error here"
_PLATFORM = "JAX takes the best platform there is; JAX_PLATFORMS=cpu before the command takes another"

LIBRARIES: Mapping[str, tuple[Synonym, ...]] = {
    "Stable-Baselines3": (
        Synonym("total_timesteps", ("steps",)),
        Synonym("n_envs", ("env.num_envs",)),
        Synonym("n_steps", ("layout.unroll_length", "agent.n_step")),
        Synonym("n_epochs", ("learner.epochs",)),
        Synonym("batch_size", ("replay.batch_size", "learner.minibatches"), f"on-policy: {_COUNT}"),
        Synonym("learning_rate", ("learner.learning_rate",)),
        Synonym("gamma", ("agent.discount",)),
        Synonym("gae_lambda", ("agent.gae_lambda",)),
        Synonym("clip_range", ("agent.clip_epsilon",)),
        Synonym("clip_range_vf", ("agent.clip_value",)),
        Synonym("ent_coef", ("agent.entropy_cost", "agent.temperature")),
        Synonym("vf_coef", ("agent.value_cost",), f"{_HALVED} (as in CleanRL, Stoix and PureJaxRL)"),
        Synonym("max_grad_norm", ("learner.max_grad_norm",)),
        Synonym("buffer_size", ("replay.capacity",)),
        Synonym("learning_starts", ("replay.min_size",)),
        Synonym("train_freq", ("replay.samples_per_insert",), f"{_PER_ROW}: batch_size / (train_freq x n_envs)"),
        Synonym("gradient_steps", ("replay.samples_per_insert",), f"{_PER_ROW}: they multiply it"),
        Synonym("tau", ("learner.target_rate",)),
        Synonym("target_update_interval", ("learner.target_period",), "in updates"),
        Synonym("exploration_fraction", ("agent.epsilon_fraction",)),
        Synonym("exploration_initial_eps", ("agent.epsilon_start",)),
        Synonym("exploration_final_eps", ("agent.epsilon_end",)),
        Synonym("policy_delay", ("agent.policy_period",)),
        Synonym("target_policy_noise", ("agent.target_noise",)),
        Synonym("target_noise_clip", ("agent.target_noise_clip",)),
        Synonym("target_entropy", ("agent.target_entropy",), "of each component of an action"),
        Synonym("policy", ("network.torso",)),
        Synonym("net_arch", ("network.hidden_sizes",)),
        Synonym("activation_fn", ("network.activation",)),
        Synonym("eval_freq", ("evaluation.interval_steps",)),
        Synonym("n_eval_episodes", ("evaluation.episodes",)),
        Synonym("deterministic", ("agent.evaluation_action",), "true is mode, false is sample"),
        Synonym("log_interval", ("log.interval_steps",)),
        Synonym("tensorboard_log", ("log.tensorboard",), "on from the start"),
        Synonym("verbose", ("log.progress",)),
        Synonym("device", (), _PLATFORM),
    ),
    "CleanRL": (
        Synonym("env_id", ("env",)),
        Synonym("total_timesteps", ("steps",)),
        Synonym("num_envs", ("env.num_envs",)),
        Synonym("num_steps", ("layout.unroll_length",)),
        Synonym("update_epochs", ("learner.epochs",)),
        Synonym("num_minibatches", ("learner.minibatches",)),
        Synonym("minibatch_size", ("learner.minibatches",), _COUNT),
        Synonym("anneal_lr", ("learner.anneal",)),
        Synonym("norm_adv", ("agent.normalise_advantage",)),
        Synonym("clip_coef", ("agent.clip_epsilon",)),
        Synonym("clip_vloss", ("agent.clip_value",), "a range; 0 is off"),
        Synonym("vf_coef", ("agent.value_cost",), _AS_MUCH),
        Synonym("start_e", ("agent.epsilon_start",)),
        Synonym("end_e", ("agent.epsilon_end",)),
        Synonym("train_frequency", ("replay.samples_per_insert",), f"{_PER_ROW}: batch_size / train_frequency"),
        Synonym("target_network_frequency", ("learner.target_period",), "in updates"),
        Synonym(
            "policy_frequency", ("agent.policy_period",), "of TD3; their SAC makes up for its delay, so leave it at 1"
        ),
        Synonym("policy_lr", ("agent.policy_learning_rate",)),
        Synonym("q_lr", ("learner.learning_rate",)),
        Synonym("alpha", ("agent.temperature",)),
        Synonym("autotune", ("agent.learn_temperature",)),
        Synonym("exp_name", ("out",), "the run folder"),
        Synonym("track", ("log.wandb",), "the project's name"),
        Synonym("wandb_project_name", ("log.wandb",)),
        Synonym("num_iterations", ("steps",), "of the environments, not the iterations"),
        Synonym("save_model", (), "the run folder always has the parameters"),
        Synonym("torch_deterministic", (), "runs repeat bit for bit where docs/reproducibility.md says so"),
        Synonym("cuda", (), _PLATFORM),
        Synonym("capture_video", (), "evaluate.py --video makes it from the finished run"),
    ),
    "PureJaxRL": (
        Synonym("LR", ("learner.learning_rate",)),
        Synonym("NUM_ENVS", ("env.num_envs",)),
        Synonym("NUM_STEPS", ("layout.unroll_length",)),
        Synonym("TOTAL_TIMESTEPS", ("steps",)),
        Synonym("UPDATE_EPOCHS", ("learner.epochs",)),
        Synonym("NUM_MINIBATCHES", ("learner.minibatches",)),
        Synonym("CLIP_EPS", ("agent.clip_epsilon",)),
        Synonym("ENT_COEF", ("agent.entropy_cost",)),
        Synonym("VF_COEF", ("agent.value_cost",), _AS_MUCH),
        Synonym("ENV_NAME", ("env",)),
        Synonym("ANNEAL_LR", ("learner.anneal",)),
        Synonym("BUFFER_SIZE", ("replay.capacity",)),
        Synonym("EPSILON_ANNEAL_TIME", ("agent.epsilon_fraction",), "a share of the run"),
    ),
    "Stoix": (
        Synonym("arch.total_timesteps", ("steps",)),
        Synonym("arch.total_num_envs", ("env.num_envs",)),
        Synonym("arch.num_updates", ("steps",), "of the environments, not the updates"),
        Synonym("arch.num_eval_episodes", ("evaluation.episodes",)),
        Synonym("arch.evaluation_greedy", ("agent.evaluation_action",), "true is mode, false is sample"),
        Synonym("arch.num_evaluation", ("evaluation.interval_steps",), "the steps between two, not their number"),
        Synonym("system.rollout_length", ("layout.unroll_length",)),
        Synonym("system.epochs", ("learner.epochs",)),
        Synonym("system.num_minibatches", ("learner.minibatches",)),
        Synonym("system.actor_lr", ("agent.policy_learning_rate", "learner.learning_rate")),
        Synonym("system.critic_lr", ("learner.learning_rate",)),
        Synonym("system.q_lr", ("learner.learning_rate",)),
        Synonym("system.gamma", ("agent.discount",)),
        Synonym("system.clip_eps", ("agent.clip_epsilon",)),
        Synonym("system.vf_coef", ("agent.value_cost",), _AS_MUCH),
        Synonym("system.decay_learning_rates", ("learner.anneal",)),
        Synonym("system.standardize_advantages", ("agent.normalise_advantage",)),
        Synonym("system.normalize_observations", ("agent.normalise_observations",)),
        Synonym("system.warmup_steps", ("replay.min_size",), "in rows of all environments"),
        Synonym("system.total_buffer_size", ("replay.capacity",)),
        Synonym("system.total_batch_size", ("replay.batch_size",)),
        Synonym("system.training_epsilon", ("agent.epsilon_end",)),
        Synonym("system.tau", ("learner.target_rate",)),
    ),
    "RLlib": (
        Synonym("num_env_runners", ("layout.num_actors",)),
        Synonym("num_workers", ("layout.num_actors", "layout.num_workers")),
        Synonym("num_learners", ("layout.num_devices",)),
        Synonym("num_envs_per_env_runner", ("env.num_envs",), "of all actors together"),
        Synonym("rollout_fragment_length", ("layout.unroll_length",)),
        Synonym("train_batch_size", ("layout.unroll_length", "replay.batch_size"), "on-policy: times --env.num_envs"),
        Synonym(
            "train_batch_size_per_learner", ("layout.unroll_length", "replay.batch_size"), "of all devices together"
        ),
        Synonym("lr", ("learner.learning_rate",)),
        Synonym("lambda_", ("agent.gae_lambda",)),
        Synonym("num_epochs", ("learner.epochs",)),
        Synonym("num_sgd_iter", ("learner.epochs",)),
        Synonym("sgd_minibatch_size", ("learner.minibatches",), _COUNT),
        Synonym("clip_param", ("agent.clip_epsilon",)),
        Synonym(
            "vf_clip_param", (), "it bounds the squared error, where --agent.clip_value bounds how far a value moves"
        ),
        Synonym("entropy_coeff", ("agent.entropy_cost",)),
        Synonym("vf_loss_coeff", ("agent.value_cost",), _HALVED),
        Synonym("kl_coeff", ("agent.kl_penalty",)),
        Synonym("kl_target", ("agent.kl_target",)),
        Synonym("grad_clip", ("learner.max_grad_norm",)),
        Synonym("num_gpus", ("layout.num_devices",)),
        Synonym("num_gpus_per_learner", (), _PLATFORM),
        Synonym("framework", (), "JAX"),
        Synonym("checkpoint_freq", ("checkpoint.interval_s",), "in seconds"),
        Synonym("evaluation_interval", ("evaluation.interval_steps",), "in steps"),
        Synonym("evaluation_duration", ("evaluation.episodes",)),
        Synonym("explore", ("agent.evaluation_action",), "in evaluation_config: true is sample, false is mode"),
        Synonym("restart_failed_env_runners", ("layout.max_actor_restarts",)),
    ),
    "Brax": (
        Synonym("num_timesteps", ("steps",)),
        Synonym("entropy_cost", ("agent.entropy_cost",)),
        Synonym("discounting", ("agent.discount",)),
        Synonym("unroll_length", ("layout.unroll_length",)),
        Synonym("num_updates_per_batch", ("learner.epochs",)),
        Synonym("normalize_observations", ("agent.normalise_observations",)),
        Synonym("reward_scaling", ("agent.reward_scale",)),
        Synonym("clipping_epsilon", ("agent.clip_epsilon",)),
        Synonym("vf_loss_coefficient", ("agent.value_cost",)),
        Synonym("normalize_advantage", ("agent.normalise_advantage",)),
        Synonym("learning_rate_schedule", ("agent.adapt_learning_rate",), "true is ADAPTIVE_KL"),
        Synonym("desired_kl", ("agent.kl_target",)),
        Synonym("num_evals", ("evaluation.interval_steps",), "the steps between two, not their number"),
        Synonym("num_eval_envs", ("evaluation.episodes",)),
        Synonym("min_replay_size", ("replay.min_size",)),
        Synonym("max_replay_size", ("replay.capacity",)),
        Synonym("grad_updates_per_step", ("replay.samples_per_insert",), f"{_PER_ROW}: it multiplies it"),
        Synonym("max_devices_per_host", ("layout.num_devices",)),
    ),
}
# Suites of other names.
SUITES = {
    **{"gym": "gymnasium", "mujoco": "gymnasium", "atari": "envpool"},
    **{"dm_control": "playground", "minigrid": "navix"},
}
# Suites that cannot be: why, and what to do.
REFUSED = {
    "kinetix": "kinetix-env 3.0.2 pins jax<=0.9.0, and its jax2d 1.0.1 gives jnp.clip an argument that JAX lost; "
    "train on it by its own code, in an environment of its own",
}


def find(name: str, declared: Container[str]) -> tuple[Synonym, str] | None:
    """Returns the synonym of a name, and its library; None if no library has the name.

    Args:
        name: as typed, with or without an owner, in any case, with dashes or underscores.
        declared: the settings of a run; if the synonym that is found first has some of them, only these are returned.
    """
    rows = [(one, library) for library, synonyms in LIBRARIES.items() for one in synonyms]
    # If names differ in case alone, the one that is spelt as typed comes first.
    found = sorted(
        (row for row in rows if _bare(row[0].theirs) == _bare(name)), key=lambda row: not row[0].theirs.endswith(name)
    )
    for synonym, library in found:
        if ours := tuple(flag for flag in synonym.ours if flag in declared):
            return synonym._replace(ours=ours), library
    return found[0] if found else None


def _bare(name: str) -> str:
    return name.rpartition(".")[2].replace("-", "_").casefold()
