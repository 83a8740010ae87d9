"""The baseline of a run on GitHub: what the newest run measured where the change began, or as near before as there is.

It is the results.json in the artifact of a completed run of the same workflow. Only runs of what is in the repository
count: a pull request's, a fork's above all, could say anything of a commit that was merged later.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from matrix import activity
from matrix.activity import HeadTarget
from matrix.ancestry import TRUSTED, Commit, CommonAncestor, Start, start_of
from matrix.results import InvalidResults, Results, decode
from runner import commenting
from runner.errors import Failure, UsageError
from runner.github import Artifact, Forbidden, GitHub, Patience, Run, TooLarge
from runner.github_job import GitHubJob
from runner.results_files import RESULTS, UNTRUSTED_BYTES

COMMITS = 200
"""How far back is looked."""
ASKED_ONE_BY_ONE = 20
"""Of the nearest commits runs are asked for by commit: those of a merge queue are on no branch that stays."""
RUNS = 200
"""How many runs of the branch are looked through for the others."""
IN_PART = 5
"""How many runs with a leg that was lost are passed over for an older one without."""
ARCHIVE_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Baseline:
    """`results` is None where there is nothing to compare with; `sentence` says what was found, or why nothing was."""

    results: Results | None
    sentence: str


def find(job: GitHubJob, comment_id: str, agent: str, patience: Patience | None = None) -> Baseline:
    """Never fails for GitHub's sake: a run whose baseline cannot be had is judged by the known issues alone."""
    if job.repository is None or not job.in_actions:
        raise UsageError("--baseline auto looks for a run on GitHub, and this is none; name a results.json")
    if job.token is None:
        return Baseline(None, "no baseline: there is no token; pass one in GITHUB_TOKEN")
    hub = GitHub(job.api_url, job.repository, job.token, agent, patience)
    try:
        return _find(hub, job, comment_id)
    except Forbidden as refusal:
        needed = "the job needs 'permissions: actions: read, contents: read, pull-requests: read'"
        return Baseline(None, f"no baseline: GitHub does not allow to read it ({refusal}); {needed}")
    except Failure as failure:
        return Baseline(None, f"no baseline: {failure}")


def _find(hub: GitHub, job: GitHubJob, comment_id: str) -> Baseline:
    start = _start(hub, job)
    if start is None:
        return Baseline(None, f"no baseline: the event {job.event} does not say what to compare with")
    measuring, _ = activity.measured_by(job.event, job.payload, (job.run, job.attempt))
    workflow = hub.run(measuring).workflow
    sha = hub.merge_base(start.base, start.head) if isinstance(start, CommonAncestor) else start.sha
    refused = ""
    in_part: list[Baseline] = []
    for run, artifact in _candidates(hub, workflow, sha, start.branch, comment_id):
        try:
            results = _results_in(hub.archive(artifact.id, ARCHIVE_BYTES))
        except (UsageError, TooLarge) as failure:
            refused = f"; {artifact.name} of {run.url} is of no use: {failure}"
            continue
        found = Baseline(results, f"the baseline is {run.url}, of commit {run.head_sha[:10]}")
        if _is_whole(results):
            return found
        in_part.append(found)
        if len(in_part) == IN_PART:
            break
    if in_part:
        return in_part[0]
    return Baseline(None, f"no baseline: no completed run has measured commit {sha[:10]} or one before it{refused}")


def _is_whole(results: Results) -> bool:
    """Whether every leg came to an end: what a lost runner did not measure would otherwise count as never failing."""
    return all(
        leg.status == "completed" or (leg.status == "environment-failed" and leg.reason != "machine")
        for leg in results.legs
    )


def _start(hub: GitHub, job: GitHubJob) -> Start | None:
    target = activity.target_of(job.event, job.payload)
    if not isinstance(target, HeadTarget):
        return start_of(job.event, job.payload, job.sha, job.ref)
    pull = commenting.pull_request_of(hub, target)
    # The base that the run's merge was made of: what others have merged since the branch began is not its doing.
    return Commit(pull.base_sha, pull.base_ref) if pull else None


def _candidates(
    hub: GitHub, workflow: int, sha: str, branch: str | None, comment_id: str
) -> Iterator[tuple[Run, Artifact]]:
    """The nearest commit first, of one commit the newest run."""
    on_branch: dict[str, list[Run]] = defaultdict(list)
    for run in hub.completed_runs(workflow, RUNS, branch=branch) if branch else ():
        on_branch[run.head_sha].append(run)
    for place, ancestor in enumerate(hub.first_parents(sha, COMMITS)):
        runs = on_branch[ancestor]
        if not runs and place < ASKED_ONE_BY_ONE:
            runs = hub.completed_runs(workflow, RUNS, head_sha=ancestor)
        for run in sorted(runs, key=lambda run: -run.id):
            if run.event not in TRUSTED or not run.from_repository:
                continue
            for artifact in _results_artifacts(hub.artifacts(run.id), comment_id):
                yield run, artifact


def _results_artifacts(artifacts: list[Artifact], comment_id: str) -> list[Artifact]:
    """Those with the merged results of the run, one for each attempt, the newest first."""
    named = re.compile(rf"{re.escape(comment_id)}-results(-\d+)?")
    found = [one for one in artifacts if named.fullmatch(one.name) and not one.expired]
    return sorted(found, key=lambda artifact: (artifact.created, artifact.id), reverse=True)


def _results_in(archive: bytes) -> Results:
    """Read where it is: nothing is unpacked, so no name in it can lead anywhere."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files, files.open(RESULTS) as file:
            content = file.read(UNTRUSTED_BYTES + 1)
    except KeyError:
        raise UsageError(f"it has no {RESULTS}") from None
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        raise UsageError(f"it is no zip file that can be read ({error})") from None
    if len(content) > UNTRUSTED_BYTES:
        raise UsageError(f"its {RESULTS} has more than {UNTRUSTED_BYTES >> 20} MiB")
    try:
        return decode(content)
    except InvalidResults as error:
        raise UsageError(f"its {RESULTS} is {error}") from None
