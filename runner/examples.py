"""What `--help` shows below the options of each command: how it is used."""

EXAMPLES = {
    "sp-compat": """\
examples:
  sp-compat run                                    sp-compat.yml if there is one, else the defaults
  sp-compat run --torch 2.2.2 --torch 2.3.1        two releases
  sp-compat run --loss my_pkg.training:sp_loss     a loss of your own, beside the built-in cases
""",
    "run": """\
examples:
  sp-compat run --torch 2.2.2 --torch 2.3.1 --deepspeed none --lane nccl-path --out out/
  sp-compat run --torch 2.6 --deepspeed auto --deepspeed 0.17.6 --deepspeed path:../DeepSpeed
  sp-compat run --suite collectives --case 'all_*' --topology sp2-strided --world-size 4
  sp-compat run --suite user --loss my_pkg.training:sp_loss --torch latest
  sp-compat run --suite tests --tests tests/sp --tests-require einops
  sp-compat run --environment current --python /opt/conda/bin/python
  sp-compat run --environment container --torch 2.2.2 --registry ghcr.io/owner/sp-compat
""",
    "plan": """\
examples:
  sp-compat plan --torch '>=2.1,<2.4' --json
  sp-compat plan --runners all --json > plan.json      for jobs on the configuration's runners
""",
    "leg": """\
examples:
  sp-compat leg torch2.2.2-dsnone-py3.11-cpu --out out/torch2.2.2
  sp-compat leg --torch 2.2.2 --out out/torch2.2.2
  sp-compat leg torch2.2.2-dsnone-py3.11-cpu --plan plan.json
  sp-compat report out/*/results.json --out out
""",
    "report": """\
examples:
  sp-compat report out/
  sp-compat report first/results.json second/results.json --out both/
  sp-compat report legs/ --plan plan.json          a leg of the plan that is not there is shown as lost
  sp-compat report out/ --baseline before/          compared with an earlier run
  sp-compat report out/ --baseline auto             in a workflow of GitHub: with the newest run where the change began
""",
    "comment": """\
examples:
  sp-compat comment out/                                 in a workflow of GitHub: on the event's pull request
  sp-compat comment out/ --pull-request 7 --comment changes
  sp-compat comment out/ --comment-id nightly            one of several comments on a pull request
""",
    "doctor": """\
examples:
  sp-compat doctor                                    this machine, against sp-compat.yml or the defaults
  sp-compat doctor --torch 2.13 --lane nccl --json    whether its GPUs and their driver can run this
  sp-compat doctor --environment container            whether its container engine can
""",
    "bisect": """\
examples:
  sp-compat bisect loss/all_gather_weighted --lane nccl-path --good 2.3 --bad 2.2
  sp-compat bisect collectives/broadcast --lane nccl-path --torch '>=2.1,<2.8' --disk-budget 20G
  sp-compat bisect attention/seq_all_to_all --axis deepspeed --torch 2.6 --good 0.17.0 --bad latest
  sp-compat bisect attention/seq_all_to_all --deepspeed path:../DeepSpeed --good v0.18.0 --bad HEAD
  sp-compat bisect collectives/all_gather --nightly --good 2026-11-01 --bad 2026-11-30
""",
    "explain": """\
example:
  sp-compat explain loss/all_gather_weighted
""",
    "history": """\
examples:
  sp-compat history add out/
  sp-compat history show
""",
    "history add": """\
examples:
  sp-compat history add                                  the run in out/
  sp-compat history add nights/ --database nightly.sqlite    every run in the directories of nights/
""",
    "history fetch": """\
example:
  sp-compat history fetch && sp-compat history add out/
""",
    "history show": """\
examples:
  sp-compat history show                           every change, the newest first, and what changed with it
  sp-compat history show 'loss/*' --json
  sp-compat history show --html site/ --badge site/badge/
""",
    "env": """\
examples:
  sp-compat env list
  sp-compat env gc --budget 40G --older-than 30d
""",
    "env list": """\
example:
  sp-compat env list --json
""",
    "env measure-deepspeed": """\
examples:
  sp-compat env measure-deepspeed --torch 2.2.2                     the newest release that works, found by trying
  sp-compat env measure-deepspeed --torch 2.2.2 --deepspeed 0.19.0  this pair
  sp-compat env measure-deepspeed --table matrix/data/deepspeed_releases.yaml
""",
    "env gc": """\
examples:
  sp-compat env gc                        what does not fit into 40G, the least recently used first
  sp-compat env gc --older-than 30d
  sp-compat env gc --budget 100G --image-budget 200G
  sp-compat env gc --all
""",
}
