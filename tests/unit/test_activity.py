"""What an event asks for, as GitHub's payloads have it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from results_examples import crash, leg, observation, results

from matrix import activity
from matrix.activity import HeadTarget, Mode, NoPullRequest, Post, PullRequestTarget, Skip
from matrix.ancestry import Commit, CommonAncestor, Start, start_of
from matrix.known_issues import KnownIssues
from matrix.results import Results
from matrix.verdict import Verdict, judge

BASE, HEAD, MERGED = "a" * 40, "b" * 40, "c" * 40
PULL = {"number": 7, "head": {"sha": HEAD, "ref": "feature"}, "base": {"sha": BASE, "ref": "main"}}
RUN = {
    "id": 5,
    "run_attempt": 2,
    "event": "pull_request",
    "head_sha": HEAD,
    "head_branch": "feature",
    "head_repository": {"full_name": "someone/project", "owner": {"login": "someone"}},
    "pull_requests": [],
}
GROUP = {"base_sha": BASE, "head_sha": HEAD, "base_ref": "refs/heads/main"}
REPOSITORY = {"repository": {"default_branch": "main"}}

anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("event", "payload", "target"),
    [
        ("pull_request", {"pull_request": PULL}, PullRequestTarget(7, HEAD)),
        ("pull_request_target", {"pull_request": PULL}, PullRequestTarget(7, HEAD)),
        ("pull_request_review", {"pull_request": PULL}, PullRequestTarget(7, HEAD)),
        ("issue_comment", {"issue": {"number": 7, "pull_request": {}}}, PullRequestTarget(7)),
        ("issue_comment", {"issue": {"number": 7}}, NoPullRequest("the event issue_comment has no pull request")),
        ("workflow_run", {"workflow_run": RUN}, HeadTarget(HEAD, "someone", "feature", 5, 2)),
        ("push", {"after": HEAD}, NoPullRequest("the event push has no pull request")),
        ("merge_group", {"merge_group": GROUP}, NoPullRequest("the event merge_group has no pull request")),
        ("schedule", {}, NoPullRequest("the event schedule has no pull request")),
        ("", {}, NoPullRequest("this is not a workflow of GitHub")),
    ],
)
def test_the_pull_request_of_an_event(event: str, payload: dict[str, Any], target: activity.Target) -> None:
    assert activity.target_of(event, payload) == target


@pytest.mark.parametrize(
    "change", [{"event": "push"}, {"event": "schedule"}, {"head_sha": "main"}, {"head_sha": None}, {"id": "5"}]
)
def test_runs_that_ended_and_have_no_pull_request(change: dict[str, Any]) -> None:
    assert isinstance(activity.target_of("workflow_run", {"workflow_run": RUN | change}), NoPullRequest)


@given(
    st.sampled_from(["pull_request", "workflow_run", "merge_group", "push", "issue_comment", "schedule"]),
    st.dictionaries(
        st.sampled_from(["pull_request", "workflow_run", "merge_group", "issue", "before", "repository"]),
        st.one_of(
            anything,
            st.dictionaries(
                st.sampled_from([*PULL, *RUN, *GROUP, "default_branch", "pull_request"]), anything, max_size=6
            ),
        ),
    ),
)
def test_no_payload_is_too_strange(event: str, payload: dict[str, Any]) -> None:
    activity.target_of(event, payload)
    activity.measured_by(event, payload, (1, 1))
    start_of(event, payload, MERGED, "refs/heads/main")


def test_what_is_told_is_told_of_the_run_that_measured() -> None:
    assert activity.measured_by("workflow_run", {"workflow_run": RUN}, (9, 1)) == (5, 2)
    assert activity.measured_by("pull_request", {"pull_request": PULL}, (9, 1)) == (9, 1)


# --- where the baseline is looked for ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "payload", "ref", "start"),
    [
        ("pull_request", {"pull_request": PULL}, "refs/pull/7/merge", CommonAncestor(BASE, MERGED, "main")),
        # Here GitHub checks out the base; what is measured is the head.
        ("pull_request_target", {"pull_request": PULL}, "refs/heads/main", CommonAncestor(BASE, HEAD, "main")),
        ("merge_group", {"merge_group": GROUP}, None, CommonAncestor(BASE, HEAD, "main")),
        ("push", {"before": BASE, **REPOSITORY}, "refs/heads/main", CommonAncestor(BASE, MERGED, "main")),
        ("push", {"before": "0" * 40, **REPOSITORY}, "refs/heads/new", CommonAncestor("main", MERGED, "main")),
        ("schedule", REPOSITORY, "refs/heads/main", Commit(MERGED, "main")),
        ("workflow_dispatch", REPOSITORY, "refs/heads/new", CommonAncestor("main", MERGED, "main")),
        ("release", REPOSITORY, "refs/tags/v1", CommonAncestor("main", MERGED, "main")),
        ("workflow_dispatch", {}, "refs/tags/v1", Commit(MERGED, None)),
        ("workflow_run", {"workflow_run": RUN}, "refs/heads/main", None),
    ],
)
def test_where_a_change_began(event: str, payload: dict[str, Any], ref: str, start: Start | None) -> None:
    assert start_of(event, payload, MERGED, ref) == start


# --- whether there is to be a comment ---------------------------------------------------------------------------------


def judged(document: Results, baseline: Results | None = None) -> Verdict:
    return judge(document, KnownIssues(), baseline, "regression")


RIGHT = results([leg("2.2.2")], [observation()])
FAILING = results([leg("2.2.2")], [crash()])
NOTHING = results([leg(None, status="environment-failed", reason="machine")], [])


@pytest.mark.parametrize(
    ("verdict", "changes", "failures"),
    [
        (judged(RIGHT), False, False),
        (judged(RIGHT, RIGHT), False, False),
        (judged(FAILING), True, True),
        (judged(FAILING, RIGHT), True, True),
        (judged(FAILING, FAILING), False, True),
        (judged(RIGHT, FAILING), True, False),
        (judged(NOTHING), True, True),
    ],
    ids=["right", "right-before", "failing", "new-failure", "still-failing", "fixed", "nothing-ran"],
)
def test_what_is_worth_a_comment(verdict: Verdict, changes: bool, failures: bool) -> None:
    expected: dict[Mode, bool] = {"always": True, "changes": changes, "failures": failures}
    for mode, create in expected.items():
        assert activity.decide(mode, verdict) == Post(create)
    assert activity.decide("off", verdict) == Skip("comments are switched off")
