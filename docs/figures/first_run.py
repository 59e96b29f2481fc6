"""Makes the film and the curve that show what `make train` gives: first_run.gif and first_run.png, here.

The film shows the agent of a run beside the one that it was at step 0. Example, after `make train`:
python docs/figures/first_run.py --run=runs/cartpole
"""

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Iterator

from PIL import Image, ImageDraw, ImageFont, ImageSequence

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import jaxrl_dist  # noqa: E402
from jaxrl_dist import errors  # noqa: E402
from jaxrl_dist.commands import plot  # noqa: E402
from jaxrl_dist.runs import files  # noqa: E402
from jaxrl_dist.training import video  # noqa: E402

_EPISODES, _STEPS = 20, 500
# A film shows 50 states a second; every third one is enough here.
_STRIDE, _FRAME_MS = 3, 60
# Stills at the end of an episode, so that its end is seen.
_HOLD = 10
_GAP, _CAPTION, _COLOURS = 12, 58, 8
# As large as can be read where a phone halves it.
_SIZE = 20
_INK, _PAPER = (32, 32, 32), (255, 255, 255)


def main(arguments: list[str]) -> int:
    """Makes both pictures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="first_run.py", description=__doc__)
    parser.add_argument("--run", type=pathlib.Path, required=True, help="run folder")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="folder to write to")
    options = parser.parse_args(arguments)
    try:
        steps = files.read_json(options.run / "summary.json")["env_steps"]
        after = _frames(options.run, 1, f"after {steps:,} steps")
        with tempfile.TemporaryDirectory() as folder:
            before = _frames(_untrained(options.run, pathlib.Path(folder)), _EPISODES, "before training")
            _write(options.out / "first_run.gif", list(zip(before, after, strict=False)))
        # One panel, as wide as a phone shows with words of a size to read.
        plot.main([str(options.run), "--panels=steps", "--labels=PPO", f"--out={options.out / 'first_run.png'}"])
    except (errors.UsageError, OSError) as error:
        print(f"first_run.py: {error}", file=sys.stderr)
        return 2
    return 0


def _untrained(run: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Makes a run of the same agent that has learned nothing."""
    settings = jaxrl_dist.load(run).settings
    # The smallest of rates leaves every parameter as it was drawn.
    given = {"learner.learning_rate": 1e-30, "seed": settings["seed"]}
    jaxrl_dist.train(settings["system"], settings["env"], steps=1, out=str(folder / "run"), settings=given)
    return folder / "run"


def _frames(run: pathlib.Path, episodes: int, title: str) -> Iterator[Image.Image]:
    """Yields the pictures of a run's episodes, one after the other, with a title."""
    for i, filmed in enumerate(video.record_video(run, episodes, _STEPS)):
        with Image.open(filmed["gif"]) as film:
            pictures = [still for picture in ImageSequence.Iterator(film) for still in _stills(picture)]
        last = len(pictures) - 1
        for step in range(0, last, _STRIDE):
            yield _titled(pictures[step], f"{title} \nepisode {i + 1}, step {step}")
        for _ in range(_HOLD):
            yield _titled(pictures[last], f"{title} \nepisode {i + 1}, step {last}: end")


def _stills(picture: Image.Image) -> list[Image.Image]:
    """Returns one still for each state: a film holds equal ones once, and shows that for longer."""
    return [picture.convert("RGB")] * (picture.info["duration"] * _STRIDE // _FRAME_MS)


def _titled(picture: Image.Image, title: str) -> Image.Image:
    whole = Image.new("RGB", (picture.width, picture.height + _CAPTION), _PAPER)
    whole.paste(picture, (0, _CAPTION))
    ImageDraw.Draw(whole).text((6, 4), title, _INK, ImageFont.load_default(_SIZE))
    return whole


def _write(path: pathlib.Path, pairs: list[tuple[Image.Image, Image.Image]]) -> None:
    """Writes a film of which each picture shows two side by side."""
    pictures = []
    for left, right in pairs:
        whole = Image.new("RGB", (left.width + _GAP + right.width, left.height), _PAPER)
        whole.paste(left, (0, 0))
        whole.paste(right, (left.width + _GAP, 0))
        pictures.append(whole.quantize(_COLOURS, dither=Image.Dither.NONE))
    first, *others = pictures
    first.save(path, save_all=True, append_images=others, duration=_FRAME_MS, loop=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
