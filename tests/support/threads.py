"""Threads that do the same at once."""

import threading


def in_threads(work, count, timeout=60):
    """Calls ``work(0)``, ``work(1)``, ... at once, and waits until all have ended."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    assert not any(thread.is_alive() for thread in threads)
