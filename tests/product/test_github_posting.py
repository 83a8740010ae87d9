"""One comment on a pull request, whatever happens on the way: against the stand-in, over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from matrix.marker import Marker
from runner.errors import UsageError
from runner.github import Forbidden, GitHub, Patience, Unreachable
from runner.posting import Message, Outcome, post
from tests.github_server.operations import Answer
from tests.github_server.server import UNAVAILABLE, Gate, Misfortune, StandIn, primary_limit, secondary_limit
from tests.github_server.state import ACTIONS, Account, PullRequest

PROMPT = Patience(retries=3, backoff=0.01, secondary_limit=0.05, longest=2.0, between_requests=0, between_writes=0)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn().running() as running:
        yield running
        assert not running.violations


def hub(stand_in: StandIn, token: str | None = None) -> GitHub:
    token = token or stand_in.state.token()
    return GitHub(stand_in.api_url, "org/project", token, "sp-compat", PROMPT)


def pull_of(stand_in: StandIn) -> PullRequest:
    base, head = stand_in.state.line(2)
    return stand_in.state.pull(head, base)


def message(sha: str, text: str = "the verdict", run: int = 1, attempt: int = 1, name: str = "sp-compat") -> Message:
    return Message(Marker(name, sha, run, attempt), lambda limit: text[:limit])


def bodies(stand_in: StandIn) -> list[str]:
    return [comment.body.partition("\n")[2] for comment in stand_in.state.comments]


def test_the_first_run_creates_and_the_second_updates(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    first = post(hub(stand_in), pull.number, message(pull.head_sha, "first"), create=True)
    second = post(hub(stand_in), pull.number, message(pull.head_sha, "second", run=2), create=True)
    assert (first.did, second.did) == ("created", "updated")
    assert first.url == second.url
    assert bodies(stand_in) == ["second"]
    assert [seen.operation for seen in stand_in.seen if seen.method != "get"] == [
        "issues/create-comment",
        "issues/update-comment",
    ]


def test_two_matrices_have_two_comments(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    for name in ("training", "inference", "training"):
        post(hub(stand_in), pull.number, message(pull.head_sha, name, name=name), create=True)
    assert bodies(stand_in) == ["training", "inference"]


@pytest.mark.parametrize("place", [33, 140])
def test_scenario_16_our_comment_is_found_on_a_later_page(stand_in: StandIn, place: int) -> None:
    pull = pull_of(stand_in)
    reader = Account("reader")
    for number in range(1, place):
        stand_in.state.comment(pull.number, reader, f"remark {number}")
    ours = stand_in.state.comment(pull.number, ACTIONS, message(pull.head_sha, "old").body())
    stand_in.state.comment(pull.number, reader, "thanks")
    assert post(hub(stand_in), pull.number, message(pull.head_sha, "new", run=2), create=True).did == "updated"
    assert len(stand_in.state.comments) == place + 1
    assert len(stand_in.asked("issues/list-comments")) == -(-(place + 1) // 100)
    assert ours.body == message(pull.head_sha, "new", run=2).body()


def test_scenario_17_ten_racing_posters_leave_one_comment(stand_in: StandIn) -> None:
    """All have seen that there is no comment before the first of them creates one."""
    pull = pull_of(stand_in)
    stand_in.gates.append(Gate("issues/create-comment", parties=10))
    token = stand_in.state.token()

    def race(run: int) -> Outcome:
        return post(hub(stand_in, token), pull.number, message(pull.head_sha, f"run {run}", run=run), create=True)

    with ThreadPoolExecutor(10) as pool:
        outcomes = list(pool.map(race, range(1, 11)))
    assert len(stand_in.asked("issues/create-comment")) == 10
    assert len(stand_in.state.comments) == 1
    assert sum(outcome.did == "created" for outcome in outcomes) == 1


def test_scenario_17_the_list_that_lags_behind_hides_no_race(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    stand_in.listing_lag = 0.5
    stand_in.gates.append(Gate("issues/create-comment", parties=2))
    token = stand_in.state.token()
    with ThreadPoolExecutor(2) as pool:
        list(
            pool.map(
                lambda run: post(hub(stand_in, token), pull.number, message(pull.head_sha, run=run), create=True),
                (1, 2),
            )
        )
    assert len(stand_in.state.comments) == 1


def test_what_a_crashed_race_has_left_behind_is_removed(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    for run in (1, 2):
        stand_in.state.comment(pull.number, ACTIONS, message(pull.head_sha, f"run {run}", run=run).body())
    post(hub(stand_in), pull.number, message(pull.head_sha, "run 3", run=3), create=True)
    assert bodies(stand_in) == ["run 3"]


# --- which run is the newer -------------------------------------------------------------------------------------------


def test_scenario_17b_an_older_commit_never_overwrites_a_newer(stand_in: StandIn) -> None:
    base, old, head = stand_in.state.line(3)
    pull = stand_in.state.pull(head, base)
    assert post(hub(stand_in), pull.number, message(old, "old", run=5), create=True).did == "created"
    assert post(hub(stand_in), pull.number, message(head, "head", run=6), create=True).did == "updated"
    late = post(hub(stand_in), pull.number, message(old, "old, run again", run=9, attempt=2), create=True)
    assert late.did == "left"
    assert late.why == f"this run is of commit {old[:10]}, and the pull request has gone on to {head[:10]}"
    assert bodies(stand_in) == ["head"]


def test_scenario_17b_of_one_commit_the_later_run_and_attempt(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    for run, attempt, did in ((5, 1, "created"), (4, 2, "left"), (5, 2, "updated"), (5, 1, "left"), (6, 1, "updated")):
        shown = post(hub(stand_in), pull.number, message(pull.head_sha, f"{run}.{attempt}", run, attempt), create=True)
        assert shown.did == did
    assert bodies(stand_in) == ["6.1"]


def test_scenario_17b_after_a_force_push_the_commit_that_is_gone_is_the_older(stand_in: StandIn) -> None:
    base, gone = stand_in.state.line(2)
    pull = stand_in.state.pull(gone, base)
    post(hub(stand_in), pull.number, message(gone, "gone", run=9), create=True)
    pull.head_sha = stand_in.state.commit(base)
    assert post(hub(stand_in), pull.number, message(pull.head_sha, "new", run=3), create=True).did == "updated"
    assert post(hub(stand_in), pull.number, message(gone, "gone", run=10), create=True).did == "left"
    assert bodies(stand_in) == ["new"]


def test_scenario_17b_racing_runs_of_several_commits_leave_the_newest(stand_in: StandIn) -> None:
    base, *shas = stand_in.state.line(6)
    pull = stand_in.state.pull(shas[-1], base)
    stand_in.gates.append(Gate("issues/create-comment", parties=5))
    token = stand_in.state.token()

    def race(place: int) -> Outcome:
        return post(hub(stand_in, token), pull.number, message(shas[place], f"{place}", run=9 - place), create=True)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(race, range(5)))
    assert bodies(stand_in) == ["4"]


class Interrupted(GitHub):
    """Somebody else writes, or deletes, just after this one has written."""

    then: Callable[[], None] | None = None

    def update_comment(self, number: int, comment: int, body: str) -> None:
        super().update_comment(number, comment, body)
        then, self.then = self.then, None
        if then:
            then()


@pytest.mark.parametrize(("other", "last"), [(4, "mine"), (6, "other")])
def test_scenario_17b_another_run_of_the_commit_that_writes_between_reading_and_writing(
    stand_in: StandIn, other: int, last: str
) -> None:
    pull = pull_of(stand_in)
    ours = stand_in.state.comment(pull.number, ACTIONS, message(pull.head_sha, "old").body())
    interrupted = Interrupted(stand_in.api_url, "org/project", stand_in.state.token(), "sp-compat", PROMPT)
    interrupted.then = lambda: setattr(ours, "body", message(pull.head_sha, "other", run=other).body())
    post(interrupted, pull.number, message(pull.head_sha, "mine", run=5), create=True)
    assert bodies(stand_in) == [last]


def test_a_comment_that_is_deleted_while_it_is_updated_is_made_again(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    stand_in.state.comment(pull.number, ACTIONS, message(pull.head_sha, "old").body())
    interrupted = Interrupted(stand_in.api_url, "org/project", stand_in.state.token(), "sp-compat", PROMPT)
    interrupted.then = stand_in.state.comments.clear
    assert post(interrupted, pull.number, message(pull.head_sha, "new", run=2), create=True).did == "created"
    assert bodies(stand_in) == ["new"]


def test_a_comment_that_is_gone_when_it_is_written(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    stand_in.state.comment(pull.number, ACTIONS, message(pull.head_sha, "old").body())
    stand_in.misfortunes.append(Misfortune("issues/update-comment", Answer(404, {"message": "Not Found"})))
    assert post(hub(stand_in), pull.number, message(pull.head_sha, "new", run=2), create=True).did == "updated"


# --- whose comment it is ----------------------------------------------------------------------------------------------

MEMBER = Account("a-member", association="MEMBER")
OUTSIDER = Account("a-machine-account")
APP = Account("our-app[bot]", "Bot")


@pytest.mark.parametrize("first", [ACTIONS, MEMBER, APP])
@pytest.mark.parametrize("second", [ACTIONS, MEMBER, APP])
def test_scenario_18_the_same_comment_whatever_token(stand_in: StandIn, first: Account, second: Account) -> None:
    pull = pull_of(stand_in)
    for account in (first, second):
        post(hub(stand_in, stand_in.state.token(account)), pull.number, message(pull.head_sha), create=True)
    assert len(stand_in.state.comments) == 1


def test_scenario_18_an_account_that_does_not_belong_to_the_repository_finds_its_own(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    for run in (1, 2):
        post(hub(stand_in, stand_in.state.token(OUTSIDER)), pull.number, message(pull.head_sha, run=run), create=True)
    assert len(stand_in.state.comments) == 1


def test_a_strangers_comment_with_our_marker_is_not_ours(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    forged = stand_in.state.comment(pull.number, Account("stranger"), message(pull.head_sha, "forged", run=99).body())
    quoted = stand_in.state.comment(pull.number, MEMBER, "> " + message(pull.head_sha, "quoted").body())
    assert post(hub(stand_in), pull.number, message(pull.head_sha), create=True).did == "created"
    assert bodies(stand_in)[2:] == ["the verdict"]
    assert (forged.author.login, quoted.author.login) == ("stranger", "a-member")


# --- what the token may not do, and what is too long ------------------------------------------------------------------


def test_scenario_14_a_read_only_token(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    reading = hub(stand_in, stand_in.state.token(contents="read", pull_requests="read"))
    with pytest.raises(Forbidden, match="Resource not accessible by integration"):
        post(reading, pull.number, message(pull.head_sha), create=True)
    assert len(stand_in.asked("issues/create-comment")) == 1


@pytest.mark.parametrize("limit", [65_536, 65_000, 30_000])
def test_scenario_15_a_body_that_is_refused_is_shortened(stand_in: StandIn, limit: int) -> None:
    pull = pull_of(stand_in)
    stand_in.state.body_limit = limit
    for run in (1, 2):  # on create, and on update
        long = message(pull.head_sha, f"{run}" * 100_000, run=run)
        assert post(hub(stand_in), pull.number, long, create=True).did in ("created", "updated")
        (body,) = (comment.body for comment in stand_in.state.comments)
        assert body.startswith(str(long.marker))
        assert limit / 4 < len(body) <= limit


def test_nothing_to_tell_creates_nothing_and_updates_what_is_there(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    assert post(hub(stand_in), pull.number, message(pull.head_sha), create=False).did == "left"
    assert not stand_in.state.comments
    stand_in.state.comment(pull.number, ACTIONS, message(pull.head_sha, "a failure").body())
    assert post(hub(stand_in), pull.number, message(pull.head_sha, "mended", run=2), create=False).did == "updated"
    assert bodies(stand_in) == ["mended"]


# --- GitHub in trouble ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [secondary_limit(), secondary_limit(retry_after=1), primary_limit(reset=0), UNAVAILABLE],
    ids=["secondary", "secondary-after", "primary", "502"],
)
@pytest.mark.parametrize("operation", ["issues/list-comments", "issues/create-comment", "issues/update-comment"])
def test_scenario_19_limits_and_5xx_are_waited_for(stand_in: StandIn, operation: str, answer: Answer) -> None:
    pull = pull_of(stand_in)
    if operation == "issues/update-comment":
        stand_in.state.comment(pull.number, ACTIONS, message(pull.head_sha, "old").body())
    stand_in.misfortunes.append(Misfortune(operation, answer))
    post(hub(stand_in), pull.number, message(pull.head_sha, run=2), create=True)
    assert bodies(stand_in) == ["the verdict"]
    assert stand_in.asked(operation)[0].status == answer.status


def test_scenario_19_a_plain_403_is_not_asked_again(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    refusal = Answer(403, {"message": "Unable to create comment because issue is locked."})
    stand_in.misfortunes.append(Misfortune("issues/create-comment", refusal, times=9))
    with pytest.raises(Forbidden, match="locked"):
        post(hub(stand_in), pull.number, message(pull.head_sha), create=True)
    assert len(stand_in.asked("issues/create-comment")) == 1


def test_a_comment_whose_answer_was_lost_is_not_doubled(stand_in: StandIn) -> None:
    pull = pull_of(stand_in)
    stand_in.misfortunes.append(Misfortune("issues/create-comment", UNAVAILABLE, done=True))
    post(hub(stand_in), pull.number, message(pull.head_sha), create=True)
    assert len(stand_in.asked("issues/create-comment")) == 2
    assert bodies(stand_in) == ["the verdict"]


@pytest.mark.parametrize("answer", [UNAVAILABLE, primary_limit(reset=4_000_000_000), secondary_limit()])
def test_who_never_answers_is_told_in_one_sentence(stand_in: StandIn, answer: Answer) -> None:
    pull = pull_of(stand_in)
    stand_in.misfortunes.append(Misfortune("pulls/get", answer, times=99))
    with pytest.raises(Unreachable, match="GitHub") as failure:
        post(hub(stand_in), pull.number, message(pull.head_sha), create=True)
    assert failure.value.exit_code == 4
    assert "secret" not in str(failure.value)
    assert "\n" not in str(failure.value)


def test_nobody_is_there(stand_in: StandIn) -> None:
    absent = GitHub("http://127.0.0.1:9/api/v3", "org/project", "secret", "sp-compat", PROMPT)
    with pytest.raises(Unreachable, match=r"GitHub cannot be reached: .*Connection refused") as failure:
        post(absent, 7, message("0" * 40), create=True)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("page", [b"<html>Please log in</html>", b"[]", b'{"message": "welcome"}'])
def test_a_page_that_is_not_githubs(stand_in: StandIn, page: bytes) -> None:
    pull = pull_of(stand_in)
    stand_in.misfortunes.append(Misfortune("pulls/get", Answer(200, page), times=9))
    with pytest.raises(Unreachable, match="the answer is not GitHub's, is GITHUB_API_URL right"):
        post(hub(stand_in), pull.number, message(pull.head_sha), create=True)
    stand_in.violations.clear()


def test_behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn(enterprise=True, name="github.internal").running() as stand_in:
        pull = pull_of(stand_in)
        with pytest.raises(Unreachable):
            post(hub(stand_in), pull.number, message(pull.head_sha), create=True)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{stand_in.port}")
        monkeypatch.setenv("no_proxy", "")
        assert post(hub(stand_in), pull.number, message(pull.head_sha), create=True).did == "created"
        assert not stand_in.violations


@pytest.mark.parametrize(
    ("token", "number", "sentence"),
    [("wrong", 7, "GitHub does not accept the token: Bad credentials"), (None, 99, "GitHub has no pull request 99 of")],
)
def test_mistakes_are_named(stand_in: StandIn, token: str | None, number: int, sentence: str) -> None:
    pull_of(stand_in)
    with pytest.raises(UsageError, match=sentence):
        post(hub(stand_in, token), number, message("0" * 40), create=True)
