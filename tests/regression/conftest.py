"""pytest for the suite: its options, one test for each cell, a world that stays up, and what was measured.

The suite needs nothing but torch and pytest. It is run by `sp-compat` in each environment, or by hand:

    pytest tests/regression --sp-suite collectives --sp-case 'all_*' --sp-topology sp2-strided
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

# Read when torch is imported, so they have to be here before it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # more are processes, and a thread that talks to them
# DeepSpeed asks for GPUs when it is imported. Were CUDA itself asked, no rank that is forked later could use them.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import pytest
import torch
from spsuite import gpus
from spsuite.catalogue import ALL_LANES, CONTROL, LANES, catalogue, user_case
from spsuite.observation import SUITES, Observation, Observer, Record
from spsuite.process import describe_process
from spsuite.selection import Cell, Selection
from spsuite.topology import TopologyError, default_topologies, parse_topology
from spsuite.workers import WorkerLost, Workers, default_count
from spsuite.world import WorldError, WorldKind


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sp-compat", "sequence-parallel regression suite")
    group.addoption("--sp-lane", action="append", default=[], metavar="LANE", help=f"one of {', '.join(LANES)}")
    group.addoption("--sp-suite", action="append", default=[], metavar="SUITE", help="collectives, loss, user")
    group.addoption("--sp-case", action="append", default=[], metavar="PATTERN", help="all_*, or loss/all_*")
    group.addoption("--sp-topology", action="append", default=[], metavar="NAME", help="sp2-strided, or 0,3/1,2")
    group.addoption("--sp-parameter", action="append", default=[], metavar="KEY=VALUE", help="dtype=bfloat16")
    group.addoption("--sp-exclude", action="append", default=[], metavar="PATTERN", help="all_*, or gloo:loss/all_*")
    group.addoption("--sp-world-size", type=int, default=4, metavar="N", help="ranks to fork (default: 4)")
    group.addoption("--sp-thorough", action="store_true", help="the full product of every axis")
    group.addoption("--sp-loss", action="append", default=[], metavar="MODULE:FUNCTION", help="a loss of your own")
    group.addoption("--sp-project", default=str(Path.cwd()), metavar="DIR", help="where --sp-loss is imported from")
    group.addoption("--sp-workers", type=int, metavar="N", help="worlds side by side (default: one a processor, or 4)")
    group.addoption("--sp-case-limit", type=float, default=10.0, metavar="SECONDS", help="until a case is a hang")
    group.addoption("--sp-observations", default=None, metavar="FILE", help="append what is observed, as JSON lines")


def pytest_configure(config: pytest.Config) -> None:
    # The ranks are forked from here: a second thread would leave its locks locked in them.
    torch.set_num_threads(1)
    config.stash[_CELLS] = _cells(config)
    config.stash[_OBSERVED] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)


_CELLS = pytest.StashKey[List[Cell]]()
_OBSERVED = pytest.StashKey[List[Observation]]()
_RECORD = pytest.StashKey[Record]()


def _cells(config: pytest.Config) -> List[Cell]:
    world_size = config.getoption("--sp-world-size")
    lanes = config.getoption("--sp-lane") or _default_lanes(world_size)
    names = config.getoption("--sp-topology") or default_topologies(world_size)
    losses = config.getoption("--sp-loss")
    unknown = [lane for lane in lanes if lane not in LANES]
    if unknown:
        raise pytest.UsageError(f"lane {unknown[0]!r} is not known; write one of: {', '.join(LANES)}")
    for text in config.getoption("--sp-parameter"):
        if "=" not in text:
            raise pytest.UsageError(f"--sp-parameter {text!r} has no '='; write KEY=VALUE, such as dtype=bfloat16")
    try:
        topologies = [parse_topology(name, world_size) for name in names]
        control = parse_topology(CONTROL, world_size) if set(names) >= set(default_topologies(world_size)) else None
    except TopologyError as error:
        raise pytest.UsageError(str(error)) from None
    selection = Selection(
        suites=config.getoption("--sp-suite"),
        cases=config.getoption("--sp-case"),
        parameters=[tuple(text.split("=", 1)) for text in config.getoption("--sp-parameter")],
        exclude=config.getoption("--sp-exclude"),
        thorough=config.getoption("--sp-thorough"),
    )
    cases = catalogue() + [user_case(loss) for loss in losses]
    return selection.cells(cases, [lane for lane in ALL_LANES if lane in lanes], topologies, control)


def _default_lanes(world_size: int) -> Tuple[str, ...]:
    return ALL_LANES if len(gpus.see().names) >= world_size else ("gloo", "nccl-path")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test module says which suite it is; its tests get one cell each."""
    if "cell" in metafunc.fixturenames:
        cells = [cell for cell in metafunc.config.stash[_CELLS] if cell.suite == metafunc.module.SUITE]
        metafunc.parametrize("cell", cells, ids=[cell.id for cell in cells])


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """Lane by lane, and world by world. A suite of which nothing was selected has no tests, rather than a skipped one.

    Functional collectives come last: what their first use imports makes every later fork slower.
    """
    worlds: Dict[WorldKind, int] = {}
    tests = [item for item in items if _measures(item)]
    items[:] = sorted(tests, key=lambda item: _order(item.callspec.params["cell"], worlds))


def _measures(item: pytest.Item) -> bool:
    """Whether the test has a cell: it has none when nothing of its suite was selected."""
    return isinstance(item, pytest.Function) and isinstance(item.callspec.params["cell"], Cell)


def _order(cell: Cell, worlds: Dict[WorldKind, int]) -> Tuple[bool, int, int]:
    """`worlds` numbers the kinds of worlds as they are first met."""
    world = worlds.setdefault(SUITES[cell.suite].world_of(cell), len(worlds))
    return cell.case.startswith("functional_"), ALL_LANES.index(cell.lane), world


@pytest.fixture(scope="session")
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    started = time.monotonic()
    config = request.config
    path = config.getoption("--sp-observations")
    record = Record(Path(path) if path else None)
    config.stash[_RECORD] = record
    record.write("process", describe_process(len(config.stash[_CELLS])))
    cells = [item.callspec.params["cell"] for item in request.session.items if _measures(item)]
    lanes = sorted({cell.lane for cell in cells})
    if "nccl" in lanes:
        _refuse_unfit_gpus(config.getoption("--sp-world-size"), record)
    gc.collect()
    gc.freeze()  # pages of the parent that the collector does not touch stay shared with the ranks
    made = Workers(
        cells,
        config.getoption("--sp-workers") or default_count(lanes),
        lambda: Observer(
            config.getoption("--sp-world-size"), config.getoption("--sp-case-limit"), config.getoption("--sp-project")
        ),
        record,
    )
    try:
        yield made
    finally:
        made.close()
    if len(config.stash[_OBSERVED]) == len(config.stash[_CELLS]):
        record.write("finished", {"seconds": round(time.monotonic() - started, 3)})


def _refuse_unfit_gpus(world_size: int, record: Record) -> None:
    sentence = gpus.unfit(gpus.see(), str(torch.__version__), world_size)
    if sentence is not None:
        record.write("machine", {"sentence": sentence})
        pytest.exit(sentence, returncode=pytest.ExitCode.INTERNAL_ERROR)


@pytest.fixture
def observation(cell: Cell, workers: Workers, pytestconfig: pytest.Config) -> Observation:
    """What the cell did, already written down."""
    try:
        observed = workers.observation(cell)
    except (WorldError, WorkerLost) as error:  # every other case would wait for it again
        if isinstance(error, WorldError):
            pytestconfig.stash[_RECORD].write("machine", {"sentence": str(error)})
        pytest.exit(str(error), returncode=pytest.ExitCode.INTERNAL_ERROR)
    pytestconfig.stash[_OBSERVED].append(observed)
    return observed


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """A row a case, a column a lane: how often each outcome was seen, over topologies and parameters."""
    observed = config.stash.get(_OBSERVED, [])
    if not observed:
        return
    table: Dict[str, Dict[str, Counter]] = defaultdict(lambda: defaultdict(Counter))
    for one in observed:
        table[f"{one['suite']}/{one['case']}"][one["lane"]][one["outcome"]] += 1
    lanes = [lane for lane in ALL_LANES if any(lane in row for row in table.values())]
    terminalreporter.section(f"what torch {torch.__version__} does")
    width = max(len(name) for name in table)
    for lane in lanes:
        terminalreporter.line(f"{lane}: {LANES[lane]}")
    terminalreporter.line("")
    terminalreporter.line("  ".join([" " * width] + [lane.ljust(28) for lane in lanes]).rstrip())
    for name, row in table.items():
        cells = [", ".join(f"{count} {outcome}" for outcome, count in row[lane].items()).ljust(28) for lane in lanes]
        terminalreporter.line("  ".join([name.ljust(width), *cells]).rstrip())
