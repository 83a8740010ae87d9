"""pytest for a user's own tests, with a line written down as each of them ends.

    python own_tests.py LINES STACKS PYTEST_ARGUMENT...

Run by the interpreter that is measured, in the project's directory. pytest writes its own document at the end of a
session; a session that is cut short has none, and these lines. The same rules as for the suite: torch, pytest and the
standard library, Python 3.8. LINES is a file of JSON objects, one a line:

    {"root": "/..."}       pytest's root directory
    {"process": {...}}     versions and machine, before anything is collected
    {"planned": 12}        how many tests there are
    {"began": {"file": "tests/sp/test_x.py", "name": "TestX::test_y", "variant": "2-4"}}
    {"test": {..., "result": "passed", ...}}     what became of one; a file that cannot be imported is one too
    {"left": "Exit: ..."}  why pytest ends before its last test
    {"finished": {"status": 0, "imported": {"torch": "/.../torch/__init__.py"}}}

STACKS is where every thread stands when the session is told to end.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import pytest

HERE = str(Path(__file__).resolve().parent)
WATCHED = ("torch", "deepspeed")
TEXT_LIMIT = 8000
OUTPUT_LIMIT = 2000
CRASHED = "???"  # when pytest-xdist says that a worker is gone


def main(lines: str, stacks: str, arguments: List[str]) -> int:
    project = str(Path.cwd())  # once: a test may go elsewhere, and remove where it was
    # As `python -m pytest` has it: the project's directory, and not the one of this file.
    sys.path[:] = [project, *(entry for entry in sys.path if entry != HERE)]
    if any(word.startswith("--numprocesses=") for word in arguments):
        _check_for_xdist()
    _dump_stacks_when_told_to_end(stacks)
    record = Record(Path(lines))
    status = int(pytest.main(arguments, plugins=[Watch(record, project)]))
    imported = {name: getattr(sys.modules.get(name), "__file__", None) for name in WATCHED if name in sys.modules}
    record.write("finished", {"status": status, "imported": imported})
    return status


def _check_for_xdist() -> None:
    try:
        import xdist  # noqa: F401
    except ImportError:
        sys.exit("-n is for pytest-xdist, which this interpreter does not have: install it there, or leave -n out")


def _dump_stacks_when_told_to_end(path: str) -> None:
    file = open(path, "w")  # noqa: SIM115, PTH123 - as long as the process lives
    faulthandler.register(signal.SIGTERM, file=file, all_threads=True, chain=True)
    # A rank that a test forks and ends is none of our business.
    os.register_at_fork(after_in_child=lambda: faulthandler.unregister(signal.SIGTERM))


class Record:
    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="ascii")
        self._process = os.getpid()

    def write(self, kind: str, content: Any) -> None:
        if os.getpid() == self._process:  # not in what a test has forked
            self._file.write(json.dumps({kind: content}) + "\n")
            self._file.flush()


class Watch:
    """The plugin. Of a session with pytest-xdist only the process that hands out the tests has it."""

    def __init__(self, record: Record, project: str) -> None:
        self._record = record
        self._project = project
        # By the file too: two outside of pytest's root directory can have the same node id.
        self._reports: Dict[Tuple[str, str], List[Any]] = {}
        self._collected: Dict[Tuple[str, str], bool] = {}
        self._config: Any = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._config = session.config
        self._record.write("root", str(self._config.rootpath))
        self._record.write("process", _described())

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._record.write("planned", len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: List[str]) -> None:
        self._record.write("planned", len(ids))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
        outcome = yield
        with suppress(BaseException):  # pytest raises it again
            outcome.get_result().sp_compat_file = str(getattr(collector, "path", None) or collector.fspath)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported, or that is skipped as a whole. Every worker tells it."""
        file = self._file(getattr(report, "sp_compat_file", None) or self._likely(report.nodeid.partition("::")[0]))
        if not report.passed and (file, report.nodeid) not in self._collected:
            self._collected[file, report.nodeid] = True
            result = "skipped" if report.skipped else "error"
            self._write(file, report.nodeid, result, report, "collection", [report])

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        """Also when a test says `pytest.exit`."""
        self._record.write("left", "{}: {}".format(excinfo.typename, excinfo.value)[:OUTPUT_LIMIT])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Also when a plugin or a conftest.py has had enough, as `-x` has."""
        why = session.shouldfail or session.shouldstop
        if why:
            self._record.write("left", str(why)[:OUTPUT_LIMIT])

    def pytest_runtest_logstart(self, nodeid: str, location: Tuple[str, Optional[int], str]) -> None:
        file = self._file(location[0])
        self._reports[file, nodeid] = []
        self._record.write("began", _named(file, nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == CRASHED:
            file = self._file(self._likely(report.location[0]))  # which pytest-xdist takes from the node id
            self._reports.pop((file, report.nodeid), None)
            self._write(file, report.nodeid, "died", report, "", [report])
        else:
            self._reports.setdefault((self._file(report.location[0]), report.nodeid), []).append(report)

    def pytest_runtest_logfinish(self, nodeid: str, location: Tuple[str, Optional[int], str]) -> None:
        file = self._file(location[0])
        # What was tried and is going to be tried again (pytest-rerunfailures) has no say.
        reports = [report for report in self._reports.pop((file, nodeid), []) if report.outcome != "rerun"]
        if reports:
            telling = min(reports, key=_weight)
            self._write(file, nodeid, _result(telling), telling, telling.when, reports)

    def _write(self, file: str, nodeid: str, result: str, telling: Any, phase: str, reports: List[Any]) -> None:
        text = str(getattr(telling, "longreprtext", "") or "")
        self._record.write(
            "test",
            {
                **_named(file, nodeid),
                "result": result,
                "phase": phase,
                "message": _message(telling),
                "reason": _reason(telling),
                "text": text[-TEXT_LIMIT:] if result not in ("passed", "skipped", "xpassed") else None,
                "output": _output(telling) if result not in ("passed", "skipped", "xpassed") else None,
                "seconds": round(sum(getattr(report, "duration", 0.0) or 0.0 for report in reports), 4),
            },
        )

    def _likely(self, name: str) -> str:
        """Of what a worker could not tell there is the node id alone: it begins at the root, or at an argument."""
        places = [self._config.rootpath, *(Path(self._project, word.partition("::")[0]) for word in self._config.args)]
        return next((str(place / name) for place in places if (place / name).is_file()), name)

    def _file(self, told: str) -> str:
        """A file that pytest tells by its path from its root directory, by that from the project's, where it is in it.

        A node id is no such path: where a file is outside of the root directory, it begins at the argument.
        """
        path = os.path.normpath(os.path.join(str(self._config.rootpath), told))  # noqa: PTH118 - `..` is to go
        return os.path.relpath(path, self._project) if (path + os.sep).startswith(self._project + os.sep) else path


def _named(file: str, nodeid: str) -> Dict[str, Optional[str]]:
    name, bracket, variant = nodeid.partition("::")[2].partition("[")
    return {"file": file, "name": name, "variant": variant[:-1] if bracket else None}


def _described() -> Dict[str, Any]:
    sys.path.insert(0, HERE)
    try:
        from spsuite.process import describe_process
    finally:
        with suppress(ValueError):
            sys.path.remove(HERE)
    return describe_process(0)


def _weight(report: Any) -> int:
    """What decides about a test comes first: a failure of its own, then one of what it needs, then the test itself."""
    if report.failed:
        return 0 if report.when == "call" else 1
    return 2 if report.skipped else 3 if report.when == "call" else 4


def _result(report: Any) -> str:
    expected = hasattr(report, "wasxfail")
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if report.skipped:
        return "xfailed" if expected and "[NOTRUN]" not in report.wasxfail else "skipped"
    return "xpassed" if expected else "passed"


def _message(report: Any) -> Optional[str]:
    """What was raised, in pytest's words: `ValueError: no group`, and `assert 1 == 2` of a bare assertion."""
    longrepr = report.longrepr
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)[:OUTPUT_LIMIT]
    if isinstance(longrepr, tuple):  # of a skip: file, line and reason
        return str(longrepr[2])[:OUTPUT_LIMIT]
    lines = [line for line in str(longrepr or "").strip().splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if re.match(r"E\s", line)]
    chosen = errors[-1:] or (lines[-1:] if getattr(report, "when", None) is None else lines[:1])
    return chosen[0][:OUTPUT_LIMIT] if chosen else None


def _reason(report: Any) -> Optional[str]:
    """Why it was skipped, or is expected to fail."""
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail).replace("reason: ", "", 1)[:OUTPUT_LIMIT]
    if report.skipped:
        return (_message(report) or "").replace("Skipped: ", "", 1)
    return None


def _output(report: Any) -> Optional[str]:
    """The ends of what was printed and logged."""
    parts = ["--- {} ---\n{}".format(title, text[-OUTPUT_LIMIT:]) for title, text in report.sections if text.strip()]
    return "\n".join(parts)[-TEXT_LIMIT:] or None


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2], sys.argv[3:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # torch's own destructors can hang
