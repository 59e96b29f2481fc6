"""A run for others: settings, parameters, results, report and films in one folder with a model card, or on the Hub.

A folder that was received is a run folder like any other, and docs/trust.md holds for it.
"""

import functools
import importlib
import json
import pathlib
import re
import shutil
import tempfile
import urllib.parse
from typing import Any

import numpy as np

from jaxrl_dist import errors
from jaxrl_dist.analysis import report
from jaxrl_dist.analysis.report import settings as report_settings
from jaxrl_dist.runs import checkpoint, files
from jaxrl_dist.runs import folder as folders
from jaxrl_dist.runs import view as run_view
from jaxrl_dist.settings import resolve, sweep

HUB = "hf:"
CARD = "README.md"
# Files of a run that are data; `report.html` is written anew, and logs stay where they are.
_POLICIES = ("policy.onnx", "policy.onnx.json", "policy.stablehlo", "policy.stablehlo.json")
_FILES = ("summary.json", "metrics.jsonl", "learning_curve.png", *_POLICIES)
_FILMS = (".gif", ".png")
# Settings that say where something lies on this machine.
_PATHS = ("out", "init_from")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def share(run: pathlib.Path, to: str, private: bool = False) -> dict[str, Any]:
    """Writes a run for others into a folder, or onto the Hugging Face Hub; the network is used for the latter alone.

    Args:
        run: run folder.
        to: folder, new, empty or of an earlier call; or `hf:owner/name`.
        private: whether a page that the Hub makes is its owner's alone.

    Returns:
        Where it is, and the names of the files.

    Raises:
        UsageError: there is no such run or it has no parameters, the folder holds something else, or the Hub's package
            or token is missing.
        OSError: a file cannot be written, or the Hub refuses it.
    """
    if not to.startswith(HUB):
        folder = pathlib.Path(to)
        if folder.is_dir() and any(folder.iterdir()) and not _is_shared(folder):
            raise errors.UsageError(errors.given("to", to), " holds other files; expected a new or an empty folder")
        with tempfile.TemporaryDirectory() as made:
            names = pack(run, pathlib.Path(made))
            # Of an earlier share, too, whose policy may be another run's.
            for name in {*names, *_FILES, "checkpoints", "videos"}:
                _remove(folder / name)
            shutil.copytree(made, folder, dirs_exist_ok=True)
        return {"to": str(folder), "files": names}
    repository = to.removeprefix(HUB)
    if not _REPOSITORY.fullmatch(repository):
        raise errors.UsageError(errors.given("to", to), f": expected {HUB}owner/name, or a folder")
    hub = _hub(to)
    with tempfile.TemporaryDirectory() as made:
        names = pack(run, pathlib.Path(made))
        return {"to": _upload(hub, repository, made, private), "files": names}


def pack(run: pathlib.Path, out: pathlib.Path) -> list[str]:
    """Copies what others need of a run into an empty folder, and writes report and model card; returns the names.

    Raises:
        UsageError: there is no such run, it has no parameters, or a file of it is a link to somewhere else.
    """
    view = run_view.read(run)
    config = files.read_json(run / "config.json")
    for name, entry in config["settings"].items():
        is_path = name in _PATHS or (name.startswith(resolve.PARAMS) and str(entry["value"]).startswith(("/", "~")))
        if is_path and entry["value"]:
            entry["value"] = pathlib.PurePath(str(entry["value"])).name
    folders.write_json(out / "config.json", config)
    for slot in ("latest", "best"):
        copy = functools.partial(_copy_slot, run, out / "checkpoints" / slot)
        if checkpoint.read_slot(run / "checkpoints", slot, copy) is None and slot == "latest":
            raise errors.UsageError(f"{run} holds no parameters yet")
    films = sorted(path for path in (run / "videos").glob("*") if path.suffix in _FILMS)
    for path in (*(run / name for name in _FILES), *films):
        if path.is_file():
            _copy(path, run, out / path.relative_to(run))
    shared = run_view.read(out, f"{view.settings['system']} on {view.settings['env']}")
    report.write([shared], out / "report.html")
    folders.write_text(out / CARD, card(shared))
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def card(view: run_view.View) -> str:
    """Returns the model card of a packed run: Markdown below front matter that the Hub reads.

    Its values are written as JSON, which is YAML.
    """
    settings = view.settings
    # Of a sweep the combination that `load` takes; the scores of the others are those of other settings.
    evaluation = run_view.members(view)[0].evaluation
    of_one = f" with {sweep.label(settings, sweep.read(settings['sweep'])[0])}" if settings.get("sweep") else ""
    system, env = settings["system"], settings["env"]
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    returns = evaluation.get("eval_return_per_seed") or []
    score, metrics = "It was not evaluated.", []
    if returns:
        mean, deviation, episodes = float(np.mean(returns)), float(np.std(returns)), evaluation.get("eval_episodes", 0)
        # The deviation of one seed is 0, which would pass for that of its episodes.
        several = len(returns) > 1
        spread, told = (f" ± {deviation:.2g}", "mean and deviation of") if several else ("", "mean of one seed")
        told += f" {len(returns)} seeds" if several else ""
        score = (
            f"Evaluation return **{mean:.4g}**{spread} ({told}{of_one}, {episodes} episodes) after "
            f"{evaluation['env_steps']:,} environment steps per seed."
        )
        value = f"{mean:.2f} +/- {deviation:.2f}" if several else f"{mean:.2f}"
        metrics = [{"type": "mean_reward", "value": value, "name": "mean_reward"}]
    result = {"task": task, "dataset": {"name": env, "type": env}, "metrics": metrics}
    matter = {
        "library_name": "jaxrl_dist",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "jax", "jaxrl_dist", system, env],
        **({"model-index": [{"name": f"{system} on {env}", "results": [result]}]} if metrics else {}),
    }
    lines = [f"{name}: {json.dumps(value)}" for name, value in matter.items()]
    title, protocol = (errors.printable(text) for text in (f"{system} on {env}", view.summary.get("protocol") or ""))
    films = sorted(path.name for path in (view.folder / "videos").glob("*.gif"))
    pictures = ["learning_curve.png"] * (view.folder / "learning_curve.png").is_file()
    shown = [
        f"![{_plain(errors.printable(name))}]({urllib.parse.quote(name, errors='surrogateescape')})"
        for name in (*pictures, *(f"videos/{name}" for name in films[:1]))
    ]
    return "\n".join(
        [
            "---",
            *lines,
            "---",
            "",
            f"# {_plain(title)}",
            "",
            score,
            *([_plain(protocol)] if protocol else []),
            "",
            *(f"{line}\n" for line in shown),
            "Trained with:",
            "",
            "```bash",
            errors.printable(report_settings.command(view)),
            "```",
            "",
            "To evaluate it, and to act with it, in this folder:",
            "",
            "```bash",
            "jaxrl-dist evaluate --run=.",
            "```",
            "",
            "```python",
            "import jaxrl_dist",
            "",
            'policy = jaxrl_dist.load(".")',
            "action, state = policy.predict(observation)",
            "```",
            "",
            "`report.html` shows settings, curves and films; `config.json` has every setting with its origin.",
            "",
        ]
    )


def _plain(text: str) -> str:
    """Returns text that Markdown reads as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|!])", r"\\\1", text)


def _is_shared(folder: pathlib.Path) -> bool:
    card = folder / CARD
    return card.is_file() and (folder / "config.json").is_file() and "library_name" in card.read_text(encoding="utf-8")


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copy_slot(run: pathlib.Path, out: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    """Copies a checkpoint of the run to a folder, which it returns, in the place of what a try before left there."""
    checkpoint.verify(path)
    shutil.rmtree(out, ignore_errors=True)
    for one in sorted(path.rglob("*")):
        if one.is_file():
            _copy(one, run, out / one.relative_to(path))
    return out


def _copy(path: pathlib.Path, run: pathlib.Path, out: pathlib.Path) -> None:
    """Copies a plain file of the run; one that is a link to somewhere else is refused."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with files.opened(path, run) as source, out.open("wb") as target:
        shutil.copyfileobj(source, target)


def _hub(to: str) -> Any:
    """Returns the Hub's package, if there is a token.

    Raises:
        UsageError: one of them is missing.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise errors.missing_package(errors.given("to", to), error.name, "hub") from error
    if not hub.get_token():
        raise errors.UsageError(
            errors.given("to", to),
            " needs a token that may write: set HF_TOKEN in the environment, or call hf auth login",
        )
    return hub


def _upload(hub: Any, repository: str, folder: str, private: bool) -> str:
    """Writes a folder onto the Hub; returns the page's address.

    Raises:
        OSError: the Hub refuses it, or cannot be reached.
    """
    api = hub.HfApi()
    try:
        page = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message="Share a run of jaxrl_dist",
            delete_patterns=[*_FILES, "checkpoints/**", "videos/**"],
        )
    except Exception as error:
        # The package's errors are of several kinds: of HTTP, of its own, of the network.
        raise OSError(f"the Hub did not take {repository}: {type(error).__name__}: {_line(error)}") from error
    return str(page)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
