"""What an interpreter has, in its own words. Run as a script by the interpreter that is going to measure.

    python -I probe.py                      # versions
    python -I probe.py module:name ...      # and what DeepSpeed offers of these, all of it imported for real

The last line of its output is a JSON object. After a build it imports what the suite does, for importing writes the
byte code that later runs, which write none, start from. Standard library and Python 3.8 only, like the suite.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import sys
from contextlib import suppress
from importlib import metadata
from typing import Any


def main(names: list[str]) -> None:
    found: dict[str, Any] = {"python": platform.python_version()}
    found["missing"] = [name for name in ("torch", "pytest") if importlib.util.find_spec(name) is None]
    if "torch" not in found["missing"]:
        import torch
        import torch.distributed.nn.functional

        found["torch"] = str(torch.__version__)
    if "pytest" not in found["missing"]:
        import pytest  # noqa: F401
    found["deepspeed"] = _installed("deepspeed")
    found["transformers"] = _installed("transformers")
    if names and "torch" not in found["missing"]:
        with suppress(Exception):  # what functional collectives and optimizers import at their first use
            importlib.import_module("torch._dynamo")
    if names and found["transformers"] is not None:
        found["transformers_error"] = _transformers_error()
    if names and found["deepspeed"] is not None:
        found.update(_deepspeed(names))
    print("\n" + json.dumps(found))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _transformers_error() -> str | None:
    """Why a model cannot be run: of some releases of torch that transformers declares, it cannot."""
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 8}
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **sizes))
        model(input_ids=torch.arange(4)[None])
    except (Exception, SystemExit) as error:
        return _described(error)
    return None


def _deepspeed(names: list[str]) -> dict[str, Any]:
    """Its version by its own word, which of `names` it offers, and what is there but cannot be imported."""
    try:
        import deepspeed
    except (Exception, SystemExit) as error:
        return {"deepspeed_error": _described(error)}
    offers: list[str] = []
    broken: dict[str, str] = {}
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            if hasattr(importlib.import_module(module), attribute):
                offers.append(name)
        except ModuleNotFoundError as error:
            if not (error.name and (module + ".").startswith(error.name + ".")):  # it lacks something else
                broken[module] = _described(error)
        except Exception as error:
            broken[module] = _described(error)
    return {"deepspeed": str(deepspeed.__version__), "offers": offers, "broken": broken}


def _described(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return "{}: {}".format(type(error).__name__, lines[0] if lines else "without a message")


if __name__ == "__main__":
    main(sys.argv[1:])
