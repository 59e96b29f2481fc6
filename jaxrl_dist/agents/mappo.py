"""MAPPO and IPPO: PPO of several agents in one environment, each a column of its own, with shared parameters or not.

IPPO is PPO on these columns: every agent learns as if it were alone (de Witt et al. 2020, "Is independent learning all
you need in the StarCraft multi-agent challenge?"). In MAPPO the critic also sees what is known of all agents, in
training alone; the policy does not (Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent
games", section 3). Agents that share parameters tell themselves apart by a leaf with their index.

Theirs has more that ours has not: a running normalisation of values, a Huber loss of them, a separate step size of the
critic, layer norms of inputs and of each layer, and, in the script whose settings are cited, a recurrent policy.
"""

import dataclasses

from jaxrl_dist import agents, networks, types
from jaxrl_dist.agents import ppo
from jaxrl_dist.agents.shared import own_parameters
from jaxrl_dist.errors import UsageError, given
from jaxrl_dist.settings import setting

ACTIONS = ppo.ACTIONS


@dataclasses.dataclass(frozen=True)
class Config(ppo.Config):
    """Settings of the agent: those of PPO, and whether agents share their parameters."""

    central_critic: bool = setting(
        True,
        "The critic sees all that the policy sees and, where there is some, what is for training alone, such as the "
        "observations of all agents; off: what the policy sees. Leaves named in network.value_inputs come first.",
        source="Yu et al. 2022, section 5.2 (agent-specific global state)",
    )
    share_parameters: bool = setting(
        True,
        "One network for all agents of an environment, who see their index; off: each has a network of its own.",
        source="Yu et al. 2022, section 4 (parameter sharing among homogeneous agents)",
    )


def make(config: Config, spec: types.EnvironmentSpec, network: networks.Config) -> agents.Agent:
    """Builds the agent for an environment; see `agents.Agent` for its functions.

    Args:
        config: settings of the agent.
        spec: of the environment; it may have one agent, or several.
        network: settings of the network.

    Raises:
        UsageError: the network or the distribution of actions does not fit the environment, or an agent that is alone
            is to share no parameters.

    Example:
        >>> from jaxrl_dist import envs, networks
        >>> from jaxrl_dist.agents import mappo
        >>> spec, network = envs.make("toy:team").spec, networks.Config(torso="mlp")
        >>> agent = mappo.make(mappo.Config(share_parameters=False), spec, network)
        >>> agent.columns_per_item, agent.staleness
        (3, 'corrected')
    """
    if config.central_critic and spec.privileged and not network.value_inputs:
        leaves = tuple(name for name in types.named_leaves(spec.observation) if name != spec.mask)
        network = dataclasses.replace(network, value_inputs=leaves)
    if not config.central_critic and not network.value_inputs:
        network = dataclasses.replace(network, value_inputs=network.policy_inputs)
    agent = ppo.make(config, spec, network)
    if config.share_parameters:
        return agent
    if spec.num_agents == 1:
        raise UsageError(
            given("agent.share_parameters", "false"), f": {spec.name} has one agent; valid: true, or several agents"
        )
    return own_parameters.make(agent, spec.num_agents)
