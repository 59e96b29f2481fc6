"""Declares the settings that several agents share; each agent gives its own default and source."""

import functools

from jaxrl_dist.settings import setting

discount = functools.partial(setting, help="Discount factor of future rewards (γ).", low=0.0, high=1.0, sweep=True)
value_cost = functools.partial(setting, help="Weight of half the squared value error.", low=0.0, sweep=True)
entropy_cost = functools.partial(setting, help="Weight of the entropy bonus (β).", low=0.0, sweep=True)
normalise_observations = functools.partial(
    setting, help="Normalise observations by running mean and deviation, frozen within an update."
)
clip_observations = functools.partial(
    setting, help="Clip observations to ± this (after any normalisation); 0 is off.", low=0.0
)
scale_rewards = functools.partial(setting, help="Divide rewards by the running deviation of the discounted return.")
smallest_deviation = functools.partial(
    setting,
    help="Least deviation that scale_rewards divides by; 1 makes large rewards smaller, and small ones no larger.",
    low=0.0,
    sweep=True,
)
clip_rewards = functools.partial(
    setting, help="Clip rewards to ± this (after any division by a deviation); 0 is off.", low=0.0
)
reward_scale = functools.partial(
    setting,
    help="Multiply rewards by this, after any clipping, so that values have the size of a network's outputs.",
    above=0.0,
    sweep=True,
)
distribution = functools.partial(
    setting,
    help="Policy over real actions: gaussian with free deviations, or tanh_gaussian squashed to [-1, 1] with "
    "deviations given by the network.",
    choices=("gaussian", "tanh_gaussian"),
)
n_step = functools.partial(setting, help="Rewards summed before bootstrapping (n).", low=1)
num_atoms = functools.partial(setting, help="Atoms of the distribution of returns; 1 learns their mean alone.", low=1)
value_low = functools.partial(
    setting,
    help="Lowest atom; if equal to the highest, both follow from the range of rewards and γ, or the time limit where γ "
    "is 1.",
)
value_high = functools.partial(setting, help="Highest atom.")
random_share = functools.partial(
    setting, help="Share of training in which actions are drawn uniformly.", low=0.0, high=1.0
)
actor_errors = functools.partial(
    setting, help="Give new windows the errors that the actor computed, instead of the largest priority so far."
)
double = functools.partial(setting, help="Choose the bootstrap action by the online network.")
dueling = functools.partial(setting, help="Add a state's value and its actions' advantages, from a head each.")
epsilon_start = functools.partial(
    setting, help="Probability of a random action at the start.", low=0.0, high=1.0, sweep=True
)
epsilon_end = functools.partial(setting, help="Probability of a random action after the schedule.", low=0.0, high=1.0)
epsilon_fraction = functools.partial(
    setting, help="Share of training in which ε falls linearly.", above=0.0, high=1.0, sweep=True
)
epsilon_wait = functools.partial(
    setting, help="Share of training before ε begins to fall.", low=0.0, high=1.0, sweep=True
)
ladder_base = functools.partial(
    setting,
    help="ε of the first environment of a ladder: environment i of N has base^(1 + exponent · i / (N − 1)).",
    low=0.0,
    high=1.0,
    sweep=True,
)
ladder_exponent = functools.partial(setting, help="How far a ladder of ε reaches down.", low=0.0, sweep=True)
evaluation_action = functools.partial(
    setting,
    help="Action of evaluation: mode, the policy's likeliest, or sample, a draw from the policy.",
    choices=("mode", "sample"),
)
evaluation_epsilon = functools.partial(
    setting, help="Probability of a random action in evaluation.", low=0.0, high=1.0, sweep=True
)
policy_learning_rate = functools.partial(
    setting, help="Step size of the policy, apart from the critic's; 0 is the learner's.", low=0.0
)
policy_period = functools.partial(setting, help="Updates of the critic for each of the policy.", low=1)
