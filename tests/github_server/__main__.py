"""`python -m tests.github_server --port-file F`: the stand-in for programs in other processes, until it is ended.

The scene is one pull request, number 7, of org/project: the port's file has its addresses, its commits and a token.
GET /_stand-in answers what happened: the comments, the requests and every violation of GitHub's description.
"""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

from tests.github_server.server import StandIn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port-file", type=Path, required=True, metavar="F", help="written when it serves, as JSON")
    parser.add_argument("--enterprise", action="store_true", help="as an Enterprise host, below /api/v3")
    parser.add_argument("--read-only", action="store_true", help="the token is a fork's")
    arguments = parser.parse_args()
    ending = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)  # before there is a thread that could take one
    stand_in = StandIn(enterprise=arguments.enterprise)
    base, head = stand_in.state.line(2)
    pull = stand_in.state.pull(head, base)
    permissions = {"pull_requests": "read"} if arguments.read_only else {}
    scene = {
        "port": stand_in.port,
        "api_url": stand_in.api_url,
        "server_url": stand_in.server_url,
        "repository": stand_in.state.repository,
        "pull_request": pull.number,
        "base_sha": base,
        "head_sha": head,
        "token": stand_in.state.token(**permissions),
    }
    with stand_in.running():
        temporary = arguments.port_file.with_name(f".{arguments.port_file.name}")
        temporary.write_text(json.dumps(scene), "utf-8")
        temporary.replace(arguments.port_file)
        signal.sigwait(ending)


if __name__ == "__main__":
    main()
