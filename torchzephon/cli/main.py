"""The command line: finds the verb and turns what users can mend into a message and an exit code."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

import torchzephon
from torchzephon.cli import index

_VERBS = (index,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: without the program's name; None takes those of the process.

    Returns:
        The exit code: 0 if all went well, 1 for bad data and failing storage, 130 for an interrupt. A wrong command
        line exits with 2.
    """
    parser = argparse.ArgumentParser("torchzephon", description="Tools for the data of elastic training jobs.")
    parser.add_argument("--version", action="version", version=f"torchzephon {torchzephon.__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is done")
    verbs = parser.add_subparsers(required=True, metavar="verb")
    for verb in _VERBS:
        verb.add_parser(verbs)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING, format="%(message)s")
    try:
        options.run(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"torchzephon: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
