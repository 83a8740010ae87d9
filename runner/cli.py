"""The command line: its words, and how it ends. What a command does is in a module of its own, imported late."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.marker import COMMENT_ID
from runner.examples import EXAMPLES
from runner.values import duration, number, positive, sha, size, workers

if TYPE_CHECKING:
    from matrix.verdict import Verdict

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

OUT = "out"
HISTORY = "sp-compat-history.sqlite"
LIST_BUDGET = "40G"
MODES = ("always", "changes", "failures", "off")
RUNNERS = ("all", "cpu")
CURRENT_PYTHON = "SP_COMPAT_PYTHON"
"""The variable with the interpreter that `current` measures where --python names none."""

DESCRIPTION = """\
On which versions of PyTorch and DeepSpeed does a training step with Ulysses sequence parallelism compute the right
gradient? sp-compat measures it, in an environment for each release, and says what it saw."""


def say(sentence: str) -> None:
    from matrix import log_text

    print(f"sp-compat: {log_text.safe(sentence)}", file=sys.stderr)


def main(
    arguments: Sequence[str] | None = None,
    *,
    concluded: Callable[[Verdict, Path], None] = lambda verdict, directory: None,
    say: Callable[[str], None] = say,
) -> int:
    """Run the program; returns its exit code. Nothing that goes wrong in here is shown as a traceback.

    `concluded` is told the verdict, and the directory that the report was written to, of a command that has one;
    `say` is told in one sentence why a command cannot be run.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal or a pipe that is not of UTF-8 has not every sign
            stream.reconfigure(errors="backslashreplace")
    try:
        namespace = parser().parse_args(arguments)
        namespace.concluded = concluded
        command: Callable[[argparse.Namespace], int] = namespace.command
        code = command(namespace)
        sys.stdout.flush()
    except KeyboardInterrupt as interruption:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say(str(interruption) or "interrupted")
        return getattr(interruption, "exit_code", 130)
    except BrokenPipeError:
        # The reader of our output has left, `| head` for one. Python would complain again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _failed(error, say)
    return code


def _failed(error: Exception, say: Callable[[str], None]) -> int:
    """Failures that are meant for the user carry their exit code; of any other the traceback is kept in a file."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        say(str(error))
        return code
    if isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EBADF, errno.EIO):
        say(f"standard output cannot be written: {error.strerror}")
        return 4
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="sp-compat-", suffix="-traceback.txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write("".join(traceback.format_exception(error)))
    say(f"a mistake in sp-compat itself, please report it with the file {file.name} ({type(error).__name__}: {error})")
    return 4


# The words


def parser() -> argparse.ArgumentParser:
    top = _parser("sp-compat", DESCRIPTION)
    top.add_argument("--version", action=_Version, help="show the program's version and exit")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, summary: str, command: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        added = _sub(commands, name, summary)
        added.set_defaults(command=command)
        return added

    run = add("run", "measure: build the environments, run the suite in each, report", _command("run", "measure"))
    _add_selection(run)
    _add_execution(run)

    plan = add("plan", "show what `run` would do, without doing it", _command("plan", "show_plan"))
    _add_selection(plan)
    plan.add_argument("--json", action="store_true", help="for a program, and for `leg --plan`")
    plan.add_argument(
        "--runners",
        choices=RUNNERS,
        help="plan for the runners that the configuration names, not for this machine: all of them, or cpu alone, for "
        "code that is not trusted with GPUs",
    )

    leg = add("leg", "measure one leg of a plan, for a job of its own", _command("leg", "measure"))
    leg.add_argument(
        "id", nargs="?", metavar="LEG", help="its id, as `plan` shows it; not needed where there is one leg"
    )
    leg.add_argument("--plan", type=Path, metavar="FILE", help="the leg is one of this plan, of `plan --json`")
    _add_selection(leg)
    _add_execution(leg)

    report = add(
        "report", "write the report again, of one results.json or of several together", _command("report", "report")
    )
    report.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a results.json, or a directory that has one or whose directories do",
    )
    report.add_argument("--out", type=Path, metavar="DIR", help="where to write it (default: the directory of PATH)")
    report.add_argument(
        "--plan", type=Path, metavar="FILE", help="show each leg of this plan, of `plan --json`, also one that was lost"
    )
    _add_config(report)
    _add_judgement(report)
    _add_manner(report)

    comment = add(
        "comment",
        "post the verdict on the pull request, or bring the comment that is there up to date",
        _command("comment", "comment"),
    )
    comment.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=Path(OUT),
        metavar="PATH",
        help=f"a results.json, a directory that has one or whose directories do (default: {OUT})",
    )
    _add_commenting(comment)
    _add_config(comment)
    _add_judgement(comment)

    doctor = add(
        "doctor",
        "look for what stands against a run on this machine, within ten seconds, and say what to do about it",
        _command("run", "doctor"),
    )
    _add_doctor(doctor)
    _add_bisect(
        add(
            "bisect",
            "find the release, nightly or commit where the outcome of a case changes",
            _command("run", "bisect"),
        )
    )

    explain = add("explain", "say what a case measures and what is known of it", _command("explain", "explain"))
    explain.add_argument("case", metavar="SUITE/CASE")

    _add_history(commands)
    _add_environments(commands)
    return top


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to measure")

    def several(option: str, metavar: str, text: str) -> None:
        group.add_argument(option, action="append", default=[], metavar=metavar, help=f"{text}; may be repeated")

    several("--torch", "RELEASE", "2.2, 2.2.2, '>=2.1,<2.4', latest, nightly, 2.4.0+cu121 or the path of a wheel")
    several("--deepspeed", "RELEASE", "auto, none, 0.17, 0.17.6, '>=0.16,<0.18', latest, a directory or a git URL")
    several("--lane", "LANE", "gloo, nccl-path (emulated) or nccl")
    several("--suite", "SUITE", "collectives, loss, attention, engine, user or tests")
    several("--case", "PATTERN", "cases by name, all_* or loss/all_*")
    several("--topology", "NAME", "sp4, sp2-contiguous, sp2-strided, sp2-offset or groups of ranks, 0,3/1,2")
    several("--loss", "MODULE:FUNCTION", "a loss of your own, imported from the current directory; adds the suite user")
    several(
        "--tests",
        "PATH",
        "tests of your own, run by pytest in every environment: a directory, a file, tests/test_x.py::test_y; adds the "
        "suite tests",
    )
    several("--tests-require", "REQUIREMENT", "what they need beside torch and DeepSpeed, as pip takes it")
    group.add_argument(
        "-n",
        "--tests-workers",
        type=workers,
        metavar="N",
        help="processes that share your own tests, or auto; installs pytest-xdist in the environments",
    )
    several("--parameter", "KEY=VALUE", "a variant of the cases, such as dtype=bfloat16")
    several("--exclude", "PATTERN", "cases to leave out, loss/* or gloo:collectives/all_to_all")
    group.add_argument("--world-size", type=int, metavar="N", help="ranks, 2 to 8 (default: 4)")
    group.add_argument("--thorough", action="store_true", help="the full product of every case's variants")
    _add_config(group)

    group = parser.add_argument_group("environments")
    group.add_argument(
        "--environment",
        metavar="KIND",
        help="container: an image for each release; venv: a virtual environment; current: an interpreter as it is; "
        "auto: container in a job of GitHub where Docker or Podman answers, else venv (default: auto)",
    )
    group.add_argument(
        "--base-image",
        metavar="IMAGE",
        help="what images are made from; {python} and {torch} stand for the leg's "
        "(default: python:{python}-slim-bookworm)",
    )
    group.add_argument(
        "--registry", metavar="REPOSITORY", help="images are fetched from here, and given to it when they were built"
    )
    group.add_argument("--python", type=Path, metavar="PATH", help="the interpreter that `current` measures")
    _add_judgement(parser)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"{parser.description} Exit code 0: it can run what is planned; 4: it cannot, whatever the kind of the "
        "finding, which is its `id` in --json."
    )
    for option, metavar, text in (
        ("--torch", "RELEASE", "a release that is going to be measured; may be repeated"),
        ("--lane", "LANE", "gloo, nccl-path or nccl; may be repeated"),
    ):
        parser.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    parser.add_argument("--world-size", type=int, metavar="N", help="ranks, 2 to 8 (default: 4)")
    parser.add_argument("--environment", metavar="KIND", help="container, venv or current (default: auto)")
    parser.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="an interpreter with torch and pytest, to try all_reduce with (default: an environment that is kept)",
    )
    _add_config(parser)
    parser.add_argument("--json", action="store_true", help="the findings for a program")


def _add_config(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="default: sp-compat.yml, where there is one")


def _add_judgement(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what it means")
    group.add_argument(
        "--known-issues", metavar="FILE", help="added to the built-in ones; none: no known issues at all"
    )
    group.add_argument("--fail-on", metavar="WHAT", help="regression, unexpected, any or never (default: regression)")
    group.add_argument(
        "--baseline",
        metavar="PATH",
        help="results.json to compare with, or its directory; auto: that of the newest run on GitHub where this change "
        "began, or before; none",
    )
    group.add_argument(
        "--comment-id",
        default=COMMENT_ID,
        metavar="ID",
        help=f"tells several matrices of a repository apart, their comments and baselines (default: {COMMENT_ID})",
    )


def _add_commenting(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the comment")
    group.add_argument(
        "--comment",
        dest="mode",
        choices=MODES,
        default=MODES[0],
        help="always; where something changed; where something fails; off (default: always)",
    )
    group.add_argument("--pull-request", type=number, metavar="N", help="default: the one of the workflow's event")
    group.add_argument(
        "--sha", type=sha, metavar="SHA", help="the head commit that was measured (default: the event's)"
    )
    group.add_argument("--out", type=Path, metavar="DIR", help="for comment.md (default: the directory of PATH)")


def _add_execution(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to run")
    group.add_argument(
        "--out", type=Path, default=Path(OUT), metavar="DIR", help=f"for results and logs (default: {OUT})"
    )
    group.add_argument("--budget", type=duration, metavar="TIME", help="end in good time before 30m, 90s, 1h are over")
    group.add_argument(
        "--case-limit",
        type=positive,
        default=10.0,
        metavar="SECONDS",
        help="until a case counts as a hang (default: 10)",
    )
    group.add_argument(
        "--tests-limit",
        type=duration,
        default=600.0,
        metavar="TIME",
        help="for your own tests in each environment, all together (default: 10m)",
    )
    group.add_argument(
        "--pass-env",
        action="append",
        default=[],
        metavar="NAME",
        help="a variable that the suite is to see; may be repeated",
    )
    _add_manner(group)


def _add_manner(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="the verdict on standard output, for a program")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--verbose", action="store_true", help="each failure as it is seen")


def _add_history(commands: Commands) -> None:
    history = _sub(commands, "history", "keep runs in a database, and say when a cell changed and with what")
    actions = history.add_subparsers(metavar="ACTION", required=True)

    adding = _sub(actions, "history add", "add runs to the database; one that is there already is left as it is")
    adding.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[Path(OUT)],
        metavar="PATH",
        help=f"a results.json, or a directory that has one or whose directories do; each is a run (default: {OUT})",
    )
    adding.set_defaults(command=_command("add", "history"))

    showing = _sub(actions, "history show", "what has changed from run to run, the newest first")
    showing.add_argument("cases", nargs="*", metavar="CASE", help="cases by name, all_* or loss/all_* (default: all)")
    showing.add_argument("--json", action="store_true", help="runs, changes and the spans of each cell, for a program")
    showing.add_argument("--html", type=Path, metavar="PATH", help="write the page, PATH.html or PATH/history.html")
    showing.add_argument(
        "--badge", type=Path, metavar="DIR", help="write a badge for the newest run's verdict and for each floor"
    )
    showing.set_defaults(command=_command("show", "history"))

    fetching = _sub(
        actions,
        "history fetch",
        "in a workflow of GitHub: the database that the newest run of it on this branch has left",
    )
    fetching.add_argument(
        "--comment-id", default=COMMENT_ID, metavar="ID", help=f"of several matrices (default: {COMMENT_ID})"
    )
    fetching.set_defaults(command=_command("fetch", "history_artifact"))

    for action in (adding, showing, fetching):
        action.add_argument("--database", type=Path, default=Path(HISTORY), metavar="FILE", help=f"default: {HISTORY}")


def _add_bisect(parser: argparse.ArgumentParser) -> None:
    parser.description = f"""{parser.description}

A change is another outcome, factor or convention in any cell of the case: of all its lanes, topologies and parameters,
or of those that are selected. With --good and --bad, of which either may be the older, it halves what lies between
them. Without, it visits the newest patch of every minor release and narrows each change down. What cannot be built or
imported is passed over. Ends with 0 when the search has come to its end, with a change or without; 1 when the ends do
the same; 4 when an end, or fewer than two releases, could be measured; 130 on Ctrl-C, with what is known so far."""
    parser.add_argument("case", metavar="SUITE/CASE", help="user/MODULE:FUNCTION for a loss of your own")

    group = parser.add_argument_group("along what")
    group.add_argument(
        "--good", metavar="END", help="a release where it is right: 2.3, 2.3.1, latest, a date, a commit"
    )
    group.add_argument("--bad", metavar="END", help="one where it is not")
    group.add_argument("--axis", choices=("torch", "deepspeed"), help="what is searched (default: torch)")
    group.add_argument("--nightly", action="store_true", help="among the dated nightlies of torch")
    for option, text in (
        ("--torch", "a range to search in; with --axis deepspeed the release to stay at (default: latest)"),
        (
            "--deepspeed",
            "the release to stay at (default: auto where the case needs it, else none); with --axis deepspeed a range "
            "to search in, or a checkout, path:DIR, to search among its commits",
        ),
    ):
        group.add_argument(option, action="append", default=[], metavar="RELEASE", help=text)

    group = parser.add_argument_group("which cells")
    for option, metavar, text in (
        ("--lane", "LANE", "gloo, nccl-path (emulated) or nccl"),
        ("--topology", "NAME", "sp4, sp2-contiguous ... or groups of ranks, 0,3/1,2"),
        ("--parameter", "KEY=VALUE", "a variant of the case, such as dtype=bfloat16"),
    ):
        group.add_argument(option, action="append", default=[], metavar=metavar, help=f"{text}; may be repeated")
    group.add_argument("--world-size", type=int, metavar="N", help="ranks, 2 to 8 (default: 4)")
    group.add_argument("--thorough", action="store_true", help="the full product of the case's variants")
    _add_config(group)
    group.add_argument("--known-issues", metavar="FILE", help="for the report: added to the built-in ones; or none")

    group = parser.add_argument_group("environments")
    group.add_argument("--environment", metavar="KIND", help="venv or container (default: auto)")
    group.add_argument(
        "--disk-budget",
        type=size,
        metavar="SIZE",
        help="what environments may take, looked at after each: what was built for this is removed first, then the "
        f"least recently used (default: {LIST_BUDGET}, or what is there already)",
    )
    _add_execution(parser)
    parser.set_defaults(python=None, fail_on=None, base_image=None, registry=None)
    parser.set_defaults(tests=[], tests_require=[], tests_workers=None)


def _add_environments(commands: Commands) -> None:
    environments = _sub(commands, "env", "the environments that are kept, and what releases of DeepSpeed they can have")
    actions = environments.add_subparsers(metavar="ACTION", required=True)

    listing = _sub(actions, "env list", "the environments, their size and when they were used")
    listing.add_argument("--json", action="store_true", help="for a program")
    listing.set_defaults(command=_command("list_environments", "env"))

    measuring = _sub(
        actions,
        "env measure-deepspeed",
        "measure which releases of DeepSpeed can be built, imported and used with a torch: the table behind `auto`",
    )
    for option, text in (
        ("--torch", "releases of torch (default: those in the table)"),
        ("--deepspeed", "releases to try (default: what it takes to find the newest that works)"),
    ):
        measuring.add_argument(option, action="append", default=[], metavar="RELEASE", help=f"{text}; may be repeated")
    measuring.add_argument(
        "--table", type=Path, metavar="FILE", help="a copy of the table, brought up to date after each pair"
    )
    measuring.add_argument("--keep", action="store_true", help="keep the environments that were built")
    measuring.add_argument("--quiet", action="store_true", help="no progress")
    measuring.set_defaults(command=_command("measure_deepspeed", "measure_deepspeed"))

    gc = _sub(actions, "env gc", "remove environments and images of ours; never one that is in use")
    gc.add_argument(
        "--budget",
        type=size,
        metavar="SIZE",
        help=f"what may stay of environments, and of images, least recently used first (default: {LIST_BUDGET})",
    )
    gc.add_argument("--image-budget", type=size, metavar="SIZE", help="of images, where it is another")
    gc.add_argument("--older-than", type=duration, metavar="TIME", help="what was not used for 30d, 12h")
    gc.add_argument("--all", action="store_true", help="everything, uv's cache too")
    gc.add_argument("--json", action="store_true", help="for a program")
    gc.set_defaults(command=_command("collect_environments", "env"))


def _command(name: str, module: str) -> Callable[[argparse.Namespace], int]:
    """The function of that name in a module that is imported only when it is called: help has to be quick."""

    def call(namespace: argparse.Namespace) -> int:
        from importlib import import_module

        function: Callable[[argparse.Namespace], int] = getattr(import_module(f"runner.{module}"), name)
        return function(namespace)

    return call


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"sp-compat {program_version()}")
        parser.exit()


def program_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("sp-compat")
    except metadata.PackageNotFoundError:
        return "of a checkout"


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=EXAMPLES[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _sub(commands: Commands, name: str, summary: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name.rpartition(" ")[2],
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=EXAMPLES[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


if __name__ == "__main__":
    sys.exit(main())
