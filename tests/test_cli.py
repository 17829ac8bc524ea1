import json
import os
import pickle
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from neaptide.cli import app

ROOT = Path(__file__).parent.parent
TINY = f"{ROOT}/examples/gpt2.py:tiny"


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("MALLOC_MMAP_THRESHOLD_", "NEAPTIDE_RESTARTED")}
    return subprocess.run(
        [sys.executable, "-m", "neaptide", *map(str, arguments)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def write(tmp_path):
    def write(code: str) -> Path:
        path = tmp_path / "net.py"
        path.write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(code))
        return path

    return write


MLP = """
def net():
    print("built")
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
    return model, torch.ones(2048, 1024), torch.optim.Adam(model.parameters())
"""


def test_estimate_prints_the_peak_its_parts_and_progress(write):
    done = invoke("estimate", f"{write(MLP)}:net")
    assert done.exit_code == 0, done.output
    for words in ("peak", "parameters", "optimizer state", "Who holds the most of it"):
        assert words in done.stdout
    assert "loading" in done.stderr
    assert "dry run" in done.stderr


def test_json_on_stdout_is_json_alone_whatever_the_function_prints(write):
    done = invoke("estimate", f"{write(MLP)}:net", "--json")
    data = json.loads(done.stdout)
    assert data["model"] == "Sequential"
    assert data["train"] is True
    assert sum(data["predicted"]["parts"].values()) == data["predicted"]["peak"]
    assert data["predicted"]["held_by"][0]["bytes"] > 0
    assert "built" in done.stderr


def test_inference_takes_less_than_training(write):
    target = f"{write(MLP)}:net"
    train = json.loads(invoke("estimate", target, "--json", "--train").stdout)
    plain = json.loads(invoke("estimate", target, "--json", "--inference").stdout)
    assert plain["train"] is False
    assert plain["predicted"]["peak"] < train["predicted"]["peak"]
    assert plain["predicted"]["parts"]["optimizer"] == 0


def test_the_page_and_the_snapshot_are_written(write, tmp_path):
    page, snapshot = tmp_path / "out.html", tmp_path / "out.pickle"
    done = invoke("estimate", f"{write(MLP)}:net", "--html", page, "--snapshot", snapshot)
    assert done.exit_code == 0, done.output
    assert "optimizer state" in page.read_text()
    assert pickle.loads(snapshot.read_bytes())["device_traces"][0]
    assert str(page) in done.stderr.replace("\n", "")


@pytest.mark.parametrize("mode", ["--train", pytest.param("--inference", marks=pytest.mark.slow)])
def test_measure_sets_the_allocator_up_by_itself_and_agrees_with_the_prediction(write, mode):
    done = command("measure", f"{write(MLP)}:net", "--json", mode)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["measured"]["note"] == ""
    assert data["predicted"]["peak"] == pytest.approx(data["measured"]["peak"], rel=0.08)


def test_measure_shows_the_measured_peak_next_to_the_predicted_one_for_a_model_nobody_here_wrote():
    done = command("measure", TINY)
    assert done.returncode == 0, done.stderr
    assert "predicted" in done.stdout
    assert "measured" in done.stdout


def test_inputs_may_be_a_tuple_or_a_dict(write):
    path = write("""
    class Add(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, a, b, scale=1):
            return (a + b) * self.weight * scale

    def positional():
        return Add(), (torch.ones(64), torch.ones(64))

    def named():
        return Add(), {"a": torch.ones(64), "b": torch.ones(64), "scale": 2}
    """)
    for name in ("positional", "named"):
        assert invoke("estimate", f"{path}:{name}").exit_code == 0


WRONG = """
import math
count = 3

def raises():
    return math.log(-1)

def one():
    return nn.Linear(2, 2)

def no_model():
    return "model", torch.ones(2)

def no_tensor():
    return nn.Linear(2, 2), "text"

def no_optimizer():
    return nn.Linear(2, 2), torch.ones(2), "adam"

def wrong_shape():
    return nn.Linear(2, 2), torch.ones(1, 3)

def leaves():
    raise SystemExit("bye")

def meta():
    with torch.device("meta"):
        return nn.Linear(2, 2), torch.ones(1, 2)
"""


@pytest.mark.parametrize("verb", ["estimate", "measure"])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "raised ValueError"),
        ("one", "it must return (model, inputs) or (model, inputs, optimizer)"),
        ("no_model", "returned a str as the model; return an nn.Module first"),
        ("no_tensor", "pass a tensor, a tuple of arguments or a dict of keyword arguments"),
        ("no_optimizer", "returned a str as the optimizer"),
        ("wrong_shape", "Linear raised"),
        ("leaves", "raised SystemExit: bye"),
        ("missing", "has no function 'missing'; it has raises, one,"),
        ("count", "has no function 'count'"),
        ("not a name", "does not name a function; write FILE.py:function"),
    ],
)
def test_what_a_user_can_put_right_is_one_line_and_exit_code_2(write, verb, name, says):
    done = invoke(verb, f"{write(WRONG)}:{name}")
    assert done.exit_code == 2
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("neaptide: ")
    assert says in last
    assert "Traceback" not in done.stderr


def test_an_error_names_the_line_in_the_users_file(write):
    path = write(WRONG)
    line = path.read_text().splitlines().index("    return math.log(-1)") + 1
    assert f"net.py:{line})" in invoke("estimate", f"{path}:raises").stderr


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere.py:net", "there is no file 'nowhere.py'; write FILE.py:function"),
        ("nowhere.py", "does not name a function; write FILE.py:function"),
    ],
)
def test_a_missing_file_is_one_line(target, says):
    done = invoke("estimate", target)
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_file_that_does_not_parse_or_is_not_python_is_one_line(write, tmp_path):
    assert "raised SyntaxError" in invoke("estimate", f"{write('def net(:')}:net").stderr
    (tmp_path / "notes.txt").write_text("hello")
    assert "must end in .py" in invoke("estimate", f"{tmp_path}/notes.txt:net").stderr


def test_a_meta_model_is_estimated_and_refused_for_measuring(write):
    target = f"{write(WRONG)}:meta"
    assert invoke("estimate", target).exit_code == 0
    done = invoke("measure", target)
    assert done.exit_code == 2
    assert "meta device" in done.stderr


def test_a_page_that_cannot_be_written_is_one_line(write, tmp_path):
    done = invoke("estimate", f"{write(MLP)}:net", "--html", tmp_path / "no" / "folder.html")
    assert done.exit_code == 2
    assert "No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_is_quick_and_does_not_wait_for_torch():
    start = time.perf_counter()
    done = command("--help")
    assert done.returncode == 0
    assert "estimate" in done.stdout
    assert time.perf_counter() - start < 3
    code = "import neaptide.cli, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
