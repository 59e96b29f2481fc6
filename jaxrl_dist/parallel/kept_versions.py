"""The last states of a parameter server, to go back to when gradients go on being not finite."""

import collections
from collections.abc import Sequence

from jaxrl_dist import learner as learners


class Versions:
    """The last few states of the server, oldest first, to roll back to; with none it does nothing."""

    def __init__(self, kept: Sequence[learners.LearnerState], every: int) -> None:
        """Takes up versions that were kept; from now on those after each `every` updates replace the oldest."""
        self.kept = collections.deque(kept, maxlen=len(kept))
        self._every = every

    def add(self, learner: learners.LearnerState) -> None:
        """Keeps a state if it is its turn."""
        if self.kept and int(learner.updates) % self._every == 0:
            self.kept.append(learner)

    def back(self) -> learners.LearnerState:
        """Returns the oldest, which is all that is kept from now on."""
        oldest = self.kept[0]
        self.kept.extend([oldest] * len(self.kept))
        return oldest
