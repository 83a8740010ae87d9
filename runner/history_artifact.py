"""`sp-compat history fetch`: the database that the newest run of the same workflow has left, in a workflow of GitHub.

Each night takes over the database of the night before as an artifact, adds its own run and leaves the whole again. So
no token has to be able to write to the repository. What cannot be fetched ends the job: a database that begins anew
would be what the next night takes over.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterator

from matrix import log_text, marker
from matrix.ancestry import TRUSTED
from runner import github_job, history_database
from runner.cli import program_version
from runner.errors import MachineError, UsageError
from runner.github import Artifact, GitHub, Patience, Run
from runner.github_job import GitHubJob
from runner.outputs import write_whole

RUNS = 200
"""How many runs are looked through: more than half a year of nights in which nothing was left."""
DATABASE_BYTES = 128 * 2**20


def fetch(arguments: argparse.Namespace) -> int:
    if not marker.is_comment_id(arguments.comment_id):
        raise UsageError(f"--comment-id {arguments.comment_id!r}: write letters, digits, '.', '_' and '-'")
    if arguments.database.exists():
        raise UsageError(f"{arguments.database} is there already; fetch into a file that is not")
    found = newest(github_job.read(os.environ), arguments.comment_id, f"sp-compat/{program_version()}")
    if found is None:
        print(log_text.safe(f"no run of this workflow has left a history; {arguments.database} will begin it"))
        return 0
    content, run = found
    try:
        arguments.database.parent.mkdir(parents=True, exist_ok=True)
        write_whole(arguments.database, content)
    except OSError as error:
        raise MachineError(f"{arguments.database} cannot be written: {error.strerror}") from None
    with history_database.open_existing(arguments.database) as database:
        count = len(database.runs())
    print(log_text.safe(f"{arguments.database} has {count} runs, as {run.url} left it"))
    return 0


def newest(job: GitHubJob, comment_id: str, agent: str, patience: Patience | None = None) -> tuple[bytes, Run] | None:
    """The database and the run that left it; None where there is none.

    Only runs of what is in the repository count: a pull request's could have left anything under that name.
    """
    if job.repository is None or not job.in_actions:
        raise UsageError("history fetch looks for a run on GitHub, and this is no job of it; keep the file yourself")
    if job.token is None:
        raise UsageError("there is no token to read the history of the last run with; pass one in GITHUB_TOKEN")
    hub = GitHub(job.api_url, job.repository, job.token, agent, patience)
    for run, artifact in _candidates(hub, job, comment_id):
        return _database_in(hub.archive(artifact.id, DATABASE_BYTES), artifact, run), run
    return None


def _candidates(hub: GitHub, job: GitHubJob, comment_id: str) -> Iterator[tuple[Run, Artifact]]:
    branch = (job.ref or "").removeprefix("refs/heads/")
    named = re.compile(rf"{re.escape(comment_id)}-history-\d+")
    for run in hub.completed_runs(hub.run(job.run).workflow, RUNS, branch=branch):
        if run.event not in TRUSTED or not run.from_repository:
            continue
        left = [one for one in hub.artifacts(run.id) if named.fullmatch(one.name) and not one.expired]
        for artifact in sorted(left, key=lambda one: (one.created, one.id), reverse=True):
            yield run, artifact


def _database_in(archive: bytes, artifact: Artifact, run: Run) -> bytes:
    """Read where it is: nothing is unpacked, so no name in it can lead anywhere."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            [name] = files.namelist()
            with files.open(name) as file:
                content = file.read(DATABASE_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        raise UsageError(f"{artifact.name} of {run.url} is not the one file of a history: {error}") from None
    if len(content) > DATABASE_BYTES:
        raise UsageError(f"{artifact.name} of {run.url} has more than {DATABASE_BYTES >> 20} MiB")
    return content
