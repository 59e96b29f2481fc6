"""CartPole as a program that owns its loop and is trained from outside; `python examples/external_simulator.py --help`.

Its physics are those of Barto, Sutton and Anderson 1983 as Gymnasium has them, in plain Python.
"""

import argparse
import math
import pathlib
import random
import sys
import threading

# From a checkout without installation; a project of its own takes a copy of simulator.py, which needs NumPy alone.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from jaxrl_dist import simulator  # noqa: E402


def play(session: simulator.Session) -> None:
    """Plays one episode after the other, until the trainer ends the session."""
    dice = random.Random(session.seed)
    while True:
        state, steps = [dice.uniform(-0.05, 0.05) for _ in range(4)], 0
        action = session.begin(state)
        while action is not None:
            state, steps = moved(state, 10.0 if action == 1 else -10.0), steps + 1
            fallen = abs(state[0]) > 2.4 or abs(state[2]) > math.radians(12)
            action = session.act(state, reward=1.0, terminated=fallen, truncated=steps == 500)


def moved(state: list[float], force: float) -> list[float]:
    """Moves cart and pole by a fiftieth of a second."""
    x, velocity, angle, spin = state
    push = (force + 0.05 * spin**2 * math.sin(angle)) / 1.1
    spin_up = 9.8 * math.sin(angle) - math.cos(angle) * push
    spin_up /= 0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
    speed_up = push - 0.05 * spin_up * math.cos(angle) / 1.1
    return [x + 0.02 * velocity, velocity + 0.02 * speed_up, angle + 0.02 * spin, spin + 0.02 * spin_up]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Plays CartPole for a trainer that listens on this machine.")
    parser.add_argument("--port", type=int, default=5555, help="as the trainer's --env.params.listen")
    parser.add_argument("--count", type=int, default=12, help="simulators at the same time, each in a thread")
    options = parser.parse_args()
    threads = [threading.Thread(target=simulator.serve, args=(play, options.port)) for _ in range(options.count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
