"""Ctrl-C at any line."""

import sys


def interrupt_at(line, function, run):
    """Runs with a KeyboardInterrupt before the ``line``-th line of what is named; whether there are so many."""
    lines = 0

    def tracer(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_name != function:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                raise KeyboardInterrupt
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
