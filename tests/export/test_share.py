"""Runs for others: what a folder holds, that it can be evaluated, its card, and the Hub's stand-in."""

import json
import pathlib
import shutil
import sys
import types as python_types
from typing import Any

import conftest
import pytest
from fakes import written_runs

import jaxrl_dist
from jaxrl_dist import errors
from jaxrl_dist.export import share
from jaxrl_dist.runs import checkpoint, view
from jaxrl_dist.training import policy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run with a film, in a folder whose path is nobody else's business."""
    root = tmp_path_factory.mktemp("secret")
    made = conftest.train_in(root, "ppo", folder="mine", num_seeds=2, **{"evaluation.episodes": 2})
    (made.folder / "videos").mkdir()
    (made.folder / "videos" / "latest-seed0-episode0.gif").write_bytes(b"GIF89a")
    (made.folder / "videos" / "page.html").write_text("<script>")
    (made.folder / "train.log").write_text("private")
    return made.folder


def test_a_shared_folder_is_a_run_without_what_is_private(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    told = share.share(run, str(tmp_path / "theirs"))
    names = {name for name in told["files"] if not name.startswith("checkpoints")}
    assert names == {
        *("README.md", "config.json", "learning_curve.png", "metrics.jsonl", "report.html", "summary.json"),
        "videos/latest-seed0-episode0.gif",
    }
    folder = pathlib.Path(told["to"])
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"latest", "best"}
    for name in ("config.json", "README.md", "report.html", "summary.json"):
        assert "secret" not in (folder / name).read_text()
    assert policy.evaluate(folder, 2, 0, "latest", {}) | {"run": ""} == policy.evaluate(run, 2, 0, "latest", {}) | {
        "run": ""
    }
    assert jaxrl_dist.load(folder, "best", seed_index=1).env_steps <= view.read(run).env_steps


@pytest.mark.parametrize("is_moved", [False, True])
def test_parameters_that_are_replaced_while_they_are_shared_are_those_of_one_save(
    run: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    origin = shutil.copytree(run, tmp_path / "mine")
    slot, copy = origin / "checkpoints" / "latest", share._copy
    copies = 0

    def replacing(path: pathlib.Path, origin: pathlib.Path, out: pathlib.Path) -> None:
        nonlocal copies
        copies += 1
        copy(path, origin, out)
        if copies == 1:
            # Stands for a file that the next save does not have.
            (out.parent / "left.bin").write_bytes(b"1")
            shutil.copytree(run / "checkpoints" / "best", slot.with_name("next"))
            if is_moved:
                slot.rename(slot.with_name(".old-latest"))
            else:
                shutil.rmtree(slot)
            slot.with_name("next").rename(slot)

    monkeypatch.setattr(share, "_copy", replacing)
    share.share(origin, str(tmp_path / "theirs"))
    shared = tmp_path / "theirs" / "checkpoints"
    assert {path.name for path in shared.iterdir()} == {"latest", "best"}
    for name in ("latest", "best"):
        checkpoint.verify(shared / name)
        wanted = (run / "checkpoints" / "best" / "manifest.json").read_bytes()
        assert (shared / name / "manifest.json").read_bytes() == wanted


def test_the_command_shares_and_shares_again(
    run: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call, folder = written_runs.script("scripts/share.py"), tmp_path / "theirs"
    for _ in range(2):
        assert call([f"--run={run}", f"--to={folder}"]) == 0
        assert json.loads(capsys.readouterr().out)["to"] == str(folder)
    assert written_runs.script("scripts/evaluate.py")([f"--run={folder}", "--episodes=1"]) == 0
    capsys.readouterr()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("mine")
    for arguments, word in (
        ([f"--run={run}"], "--to="),
        ([f"--run={tmp_path}", f"--to={folder}"], "config.json"),
        ([f"--run={run}", f"--to={tmp_path / 'other'}"], "other files"),
        ([f"--run={run}", "--to=hf:nobody"], "hf:owner/name"),
    ):
        assert call(arguments) == 2
        line = capsys.readouterr().err
        assert word in line and line.count("\n") == 1
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["README.md"]


def front_matter(card: str) -> dict[str, Any]:
    """Reads the lines between the first two rules; every value is JSON."""
    opened, matter, _ = card.split("---\n", 2)
    assert opened == ""
    return {name: json.loads(value) for name, _, value in (line.partition(": ") for line in matter.splitlines())}


def test_the_card_has_what_the_hub_reads(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    share.share(run, str(tmp_path))
    card = (tmp_path / "README.md").read_text()
    matter = front_matter(card)
    assert matter["library_name"] == "jaxrl_dist" and matter["pipeline_tag"] == "reinforcement-learning"
    assert {"reinforcement-learning", "ppo", "toy:walk"} <= set(matter["tags"])
    ((result,),) = (one["results"] for one in matter["model-index"])
    assert result["dataset"]["name"] == "toy:walk"
    returns = json.loads((run / "summary.json").read_text())["eval_return_per_seed"]
    mean = sum(returns) / 2
    (metric,) = result["metrics"]
    assert metric["type"] == "mean_reward" and metric["value"].startswith(f"{mean:.2f} +/- ")
    assert "--system=ppo --env=toy:walk" in card and "videos/latest-seed0-episode0.gif" in card


def test_sharing_again_leaves_nothing_of_the_share_before(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shutil.copytree(run, tmp_path / "other")
    (tmp_path / "other" / "policy.onnx").write_bytes(b"of another run")
    share.share(tmp_path / "other", str(tmp_path / "theirs"))
    assert (tmp_path / "theirs" / "policy.onnx").exists()
    share.share(run, str(tmp_path / "theirs"))
    assert not (tmp_path / "theirs" / "policy.onnx").exists()


def test_the_card_of_a_sweep_has_the_score_of_what_is_loaded(tmp_path: pathlib.Path) -> None:
    swept = conftest.train_in(tmp_path, "ppo", num_seeds=2, sweep="learner.learning_rate=1e-3,1e-5", folder="swept")
    share.share(swept.folder, str(tmp_path / "theirs"))
    card = (tmp_path / "theirs" / "README.md").read_text()
    (metric,) = front_matter(card)["model-index"][0]["results"][0]["metrics"]
    mean = sum(swept.summary["eval_return_per_seed"][:2]) / 2
    assert metric["value"].startswith(f"{mean:.2f} +/- ") and "2 seeds with learner.learning_rate=0.001" in card


def test_the_card_of_one_seed_claims_no_spread(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    share.share(run, str(tmp_path))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        for name, value in record.items():
            record[name] = value[:1] if name.endswith("_per_seed") else value
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    config = json.loads((tmp_path / "config.json").read_text())
    config["settings"]["num_seeds"]["value"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    card = share.card(view.read(tmp_path))
    (metric,) = front_matter(card)["model-index"][0]["results"][0]["metrics"]
    mean = [record for record in records if record["kind"] == "eval"][-1]["eval_return_per_seed"][0]
    assert metric["value"] == f"{mean:.2f}" and "mean of one seed" in card and "±" not in card


def test_the_name_of_a_film_is_text_and_its_address_is_quoted(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    share.share(run, str(tmp_path))
    films = tmp_path / "videos"
    shutil.rmtree(films)
    films.mkdir()
    (films / "a](x) <b>\n# c.gif").touch()
    card = share.card(view.read(tmp_path))
    (shown,) = [line for line in card.splitlines() if line.startswith("![") and "videos" in line]
    assert shown.endswith("](videos/a%5D%28x%29%20%3Cb%3E%0A%23%20c.gif)") and "# c.gif" not in card.splitlines()
    assert "<b>" not in shown.replace("\\<", "")


def test_a_card_is_no_page_of_a_folder_s_own(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Names in a folder are written as text, in the front matter and below it."""
    share.share(run, str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    evil = 'toy:walk\n---\n<script>alert("x")</script>'
    config["settings"]["env"]["value"] = evil
    (tmp_path / "config.json").write_text(json.dumps(config))
    card = share.card(view.read(tmp_path))
    assert evil in front_matter(card)["tags"]
    title = next(line for line in card.splitlines() if line.startswith("# "))
    assert "<script>" not in title.replace("\\<", "")


def test_paths_among_the_environment_s_parameters_stay_behind(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shutil.copytree(run, tmp_path / "own")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    config["settings"]["env.params.scene"] = {"value": "/home/me/scenes/a.xml", "origin": "flag", "tag": "identity"}
    config["settings"]["env.params.length"] = {"value": "7", "origin": "flag", "tag": "identity"}
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    share.share(tmp_path / "own", str(tmp_path / "theirs"))
    shared = json.loads((tmp_path / "theirs" / "config.json").read_text())["settings"]
    assert shared["env.params.scene"]["value"] == "a.xml" and shared["env.params.length"]["value"] == "7"
    assert all("/home/me" not in path.read_text() for path in (tmp_path / "theirs").glob("*.*[ml]"))


def test_a_link_out_of_the_run_is_not_shared(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    share.share(run, str(tmp_path / "copy"))
    (tmp_path / "key").write_text("secret")
    (tmp_path / "copy" / "policy.onnx.json").symlink_to(tmp_path / "key")
    with conftest.refused("policy.onnx.json", "link"):
        share.share(tmp_path / "copy", str(tmp_path / "theirs"))
    (tmp_path / "copy" / "policy.onnx.json").unlink()
    shutil.rmtree(tmp_path / "copy" / "videos")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "mine.png").touch()
    (tmp_path / "copy" / "videos").symlink_to(tmp_path / "pictures")
    with conftest.refused("mine.png"):
        share.share(tmp_path / "copy", str(tmp_path / "theirs"))


class Hub(python_types.ModuleType):
    """Stands for the package of the Hub: remembers what it is asked for."""

    def __init__(self, token: str | None = "t", error: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.calls: list[tuple[str, Any]] = []
        hub = self

        class HfApi:
            def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> str:
                hub.calls.append(("create", (repo_id, private, exist_ok)))
                return f"https://example.org/{repo_id}"

            def upload_folder(
                self, *, repo_id: str, folder_path: str, commit_message: str, delete_patterns: list[str]
            ) -> None:
                if error:
                    raise error
                assert {"policy.onnx", "videos/**"} <= set(delete_patterns)
                names = {str(path.relative_to(folder_path)) for path in pathlib.Path(folder_path).rglob("*.*")}
                hub.calls.append(("upload", (repo_id, names)))

        self.get_token, self.HfApi = lambda: token, HfApi


def test_the_hub_gets_the_same_files(
    run: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Hub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert written_runs.script("scripts/share.py")([f"--run={run}", "--to=hf:me/walker", "--private"]) == 0
    assert json.loads(capsys.readouterr().out)["to"] == "https://example.org/me/walker"
    (created, uploaded) = hub.calls
    assert created == ("create", ("me/walker", True, True)) and uploaded[1][0] == "me/walker"
    assert {"README.md", "config.json", "report.html", "videos/latest-seed0-episode0.gif"} <= uploaded[1][1]
    assert "train.log" not in uploaded[1][1]


def test_the_hub_needs_its_package_and_a_token(
    run: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with conftest.refused("--to=hf:me/walker", "pip install"):
        share.share(run, "hf:me/walker")
    hub = Hub(token=None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with conftest.refused("--to=hf:me/walker", "HF_TOKEN"):
        share.share(run, "hf:me/walker")
    assert not hub.calls
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(error=errors.LockError("403\nForbidden")))
    assert written_runs.script("scripts/share.py")([f"--run={run}", "--to=hf:me/walker"]) == 1
    line = capsys.readouterr().err
    assert "403 Forbidden" in line and line.count("\n") == 1


def test_a_folder_uses_no_hub(run: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert share.share(run, str(tmp_path / "a" / "b"))["to"] == str(tmp_path / "a" / "b")
