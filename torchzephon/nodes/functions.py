"""How a user's function is named in a graph description, and how a change of its source is noticed."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any


def function_name(fn: Callable[..., Any]) -> str:
    """The name by which a function is compared between runs, the same in every process that runs it.

    Args:
        fn: a function, lambda, method, class, ``functools.partial`` or object with ``__call__``.

    Returns:
        ``"module.qualname"``; of an object, its class; of a partial, also its arguments, ``"module.qualname(...,
        lower=True)"``, where anything but numbers, strings and containers shows as its type, because a ``repr`` may
        hold an address.
    """
    if isinstance(fn, functools.partial):
        arguments = [*map(_argument, fn.args), "..."]
        arguments += [f"{name}={_argument(value)}" for name, value in sorted(fn.keywords.items())]
        return f"{function_name(fn.func)}({', '.join(arguments)})"
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    module = getattr(named, "__module__", None) or "builtins"
    if module == "__mp_main__":  # what multiprocessing calls the main module in a spawned process
        module = "__main__"
    return f"{module}.{named.__qualname__}"


def source_digest(fn: Callable[..., Any]) -> str | None:
    """Sixteen hex digits that change when the source text of a function (of an object: of its class) changes.

    Returns:
        The digest, or None where there is no source to read: built-in functions, code typed into an interpreter.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    has_source = inspect.isroutine(fn) or inspect.isclass(fn)
    try:
        source = inspect.getsource(fn if has_source else type(fn))
    except (OSError, TypeError):
        return None
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _argument(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(_argument, value))})"
    if type(value) is dict:
        return "dict(" + ", ".join(f"{_argument(key)}: {_argument(item)}" for key, item in value.items()) + ")"
    return function_name(value) if callable(value) else type(value).__qualname__
