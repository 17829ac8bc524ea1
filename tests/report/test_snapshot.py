import base64
import json
import pickle
import pickletools
import re
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from neaptide.report import build_snapshot, write_snapshot
from neaptide.timeline import KINDS, Life, Timeline

LINE = Timeline(
    ("embed", "matmul", "add"),
    (
        Life("weight", "parameter", 300, 0, 3, "fc"),
        Life("scores", "temporary", 5000, 1, 2, "attn", "/net/model.py:12"),
        Life("out", "output", 7, 2, 3, source="somewhere"),
    ),
)

# What the viewer's own unpickler reads.
READABLE = """
PROTO FRAME MARK STOP MEMOIZE BINGET LONG_BINGET EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE APPEND
APPENDS SETITEM SETITEMS BININT BININT1 BININT2 LONG1 SHORT_BINUNICODE BINUNICODE NEWTRUE NEWFALSE NONE BINFLOAT
"""


def replay(snapshot: dict) -> tuple[int, set[int]]:
    """The peak of the events and the addresses left at the end, as the viewer finds them."""
    alive: dict[int, int] = {}
    peak = 0
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in alive
            alive[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert alive.pop(event["addr"]) == event["size"]
        peak = max(peak, sum(alive.values()))
    return peak, set(alive)


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 1 << 36), st.integers(0, 5), st.integers(0, 6)).filter(
            lambda made: made[2] <= made[3]
        ),
        max_size=10,
    )
)
def test_the_events_replay_to_the_same_peak(made):
    line = Timeline(tuple("abcdef"), tuple(Life("x", kind, size, born, dies) for kind, size, born, dies in made))
    snapshot = build_snapshot(line)
    peak, left = replay(snapshot)
    assert peak == line.peak
    assert left == {segment["address"] for segment in snapshot["segments"]}


def test_a_frame_says_what_where_and_in_which_module():
    event = next(e for e in build_snapshot(LINE)["device_traces"][0] if e["size"] == 5000)
    assert event["frames"] == [
        {"name": "scores (temporary)", "filename": "/net/model.py", "line": 12},
        {"name": "attn", "filename": "module", "line": 0},
        {"name": "matmul", "filename": "step", "line": 1},
    ]


def test_torch_makes_its_own_page_of_the_file(tmp_path):
    file, page = write_snapshot(tmp_path / "run.pickle", LINE), tmp_path / "viz.html"
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(file), "-o", str(page)]
    subprocess.run(command, check=True, capture_output=True)
    found = re.search(r"local_files = (\[.*\])", page.read_text())
    assert found
    assert replay(pickle.loads(base64.b64decode(json.loads(found[1])[0]["base64"])))[0] == LINE.peak


def test_the_pickle_holds_nothing_that_the_viewer_cannot_read(tmp_path):
    content = write_snapshot(tmp_path / "run.pickle", LINE).read_bytes()
    assert {opcode.name for opcode, _, _ in pickletools.genops(content)} <= set(READABLE.split())
