"""The process that runs a submission: it executes cells and answers calls of what they define. It knows no verdict.

Launch: by `confined`, as ``python -m edp_lab.course.publish.submission FD``, where FD is one end of a socket. Lines of
JSON go over it, requests (below on the left) and replies in turn; what the submission prints goes nowhere:

    {"setup": code, "seed": 7, "limits": {...}}       {"value": null}, with imports and parameters in place
    {"cell": text, "name": "clip", "answer": "clip"}  {"value": ...}, or {"function": bytecode} for a function
    {"call": [arguments]}                             {"value": ...}, of that function

A reply to any of them can be {"stopped": a sentence for the student} or {"open": text}, for NotImplementedError.
"""

from __future__ import annotations

import base64
import json
import linecache
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from typing import Any, SupportsFloat

import numpy as np

from edp_lab.course.kit.exercises import stopped

KINDS = "biufcU"  # of arrays: all that are bytes and hold no objects
KILL, DIE_WITH_PARENT, NO_NEW_PRIVILEGES = 9, 1, 38  # a signal, and options of Linux' prctl


# ---- What goes over the socket ---------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """What JSON can carry, of numbers, texts, lists, tuples, dictionaries, arrays, tensors and random generators.

    A generator is replaced by a new one that it seeds. TypeError: anything else, or a dictionary with keys that are no
    texts.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return {"tensor": encode(value.detach().cpu().numpy())}
    match value:
        case None | bool() | str():
            return value
        case np.bool_():
            return bool(value)
        case Integral():
            return int(value)
        case tuple():
            return {"tuple": [*map(encode, value)]}
        case Mapping():
            return {"dict": {_text(key): encode(item) for key, item in value.items()}}
        case Sequence():
            return [*map(encode, value)]
        case np.random.Generator():
            return {"generator": int(value.integers(2**63))}
        case np.ndarray() if value.dtype.kind in KINDS:
            return {"array": [value.dtype.str, value.shape, base64.b64encode(value.tobytes()).decode()]}
        case SupportsFloat():
            return float(value)
    raise TypeError(f"its type is {type(value).__name__}, not a number, text, list, dictionary or array")


def _text(key: Any) -> str:
    """A key. Only a text's hash is secret: numbers can be chosen so that a dictionary takes quadratic time."""
    if isinstance(key, str):
        return key
    raise TypeError(f"a key of its dictionary has the type {type(key).__name__}, not str")


def decode(value: Any) -> Any:
    """What was encoded. Plain data only, whoever wrote it: nothing is executed, and time and memory grow as its length.

    ValueError, TypeError, OverflowError: nothing that `encode` makes. RecursionError, MemoryError: too deep or large.
    """
    if isinstance(value, list):
        return [*map(decode, value)]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    match kind, content:
        case "tuple", list():
            return tuple(map(decode, content))
        case "dict", dict():
            return {key: decode(item) for key, item in content.items()}
        case "array", [str() as kind, shape, data] if re.fullmatch(f"[<>|][{KINDS}][0-9]{{1,9}}", kind):
            return np.frombuffer(base64.b64decode(data), kind).reshape(shape).copy()
        case "generator", int():
            return np.random.default_rng(content)
        case "tensor", dict():
            import torch

            return torch.from_numpy(decode(content))
    raise ValueError(f"{kind!r} is nothing that is sent")


# ---- The process -----------------------------------------------------------------------------------------------------


def evaluate(name: str, text: str, expression: str, space: dict[str, Any]) -> Any:
    """What the check of an exercise gets where its cell has this text; `space` gets the text's names."""
    file = f"<exercise {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # so that an error can quote a line
    exec(compile(text, file, "exec"), space)
    return eval(expression, space)


class Replies:
    """What a submission's process says to the requests; it keeps the names and the last function."""

    def __init__(self, space: dict[str, Any]) -> None:
        self._space = space
        self._function: Any = None

    def to(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if "setup" in request:
                return self._set_up(**request)
            if "call" in request:
                return {"value": encode(self._function(*map(decode, request["call"])))}
            answer = evaluate(request["name"], request["cell"], request["answer"], self._space)
            if not callable(answer):
                return {"value": encode(answer)}
            self._function = answer
            code = getattr(getattr(answer, "__code__", None), "co_code", b"")
            return {"function": base64.b64encode(code).decode()}
        except NotImplementedError as error:
            return {"open": str(error)}
        except BaseException as error:  # whatever the student's code does
            from_elsewhere = "cell" in request and isinstance(error, NameError)
            alone = " (of a submission, only the cells of exercises are run)" if from_elsewhere else ""
            return {"stopped": stopped(error) + alone}

    def _set_up(self, setup: str, seed: int, limits: Mapping[str, int]) -> dict[str, Any]:
        exec(compile(setup, "<notebook>", "exec"), self._space)
        if "seed" in self._space:
            self._space["seed"] = seed
        _limit(limits)
        return {"value": None}


def _limit(limits: Mapping[str, int]) -> None:
    """Set resource limits by name, as far as the system has them, for this process and all that it will start."""
    import resource

    for name, most in limits.items():
        with suppress(AttributeError, ValueError, OSError):  # a lower one is set already, or it cannot be set here
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, where the system is Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _serve(channel: socket.socket) -> None:
    """Reply to requests until there are none.

    This process is a child's child: killing its parent, as a submission can, kills no grader.
    """
    prctl(NO_NEW_PRIVILEGES, 1)  # nothing that it starts can escape being killed by becoming another user
    prctl(DIE_WITH_PARENT, KILL)
    if child := os.fork():
        channel.close()
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    prctl(DIE_WITH_PARENT, KILL)
    replies, lines = Replies({"__name__": "__main__"}), channel.makefile("rb")
    for line in lines:
        channel.sendall(json.dumps(replies.to(json.loads(line))).encode() + b"\n")
    os._exit(0)  # whatever threads the submission has left behind


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
