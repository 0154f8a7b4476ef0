"""Work that is done as another user, who has no rights to a table's files."""

import os
import pickle
from collections.abc import Callable
from typing import Any

READER = 65534  # a user who owns nothing


def as_reader(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, or the error that it raised, for a user without rights.

    A process that is not root's cannot become another user: it does the work on files that are
    read-only for itself.
    """
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(READER)
                os.setuid(READER)
            found = work()
        except BaseException as error:
            found = error
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(pickle.dumps(found))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    os.waitpid(process, 0)
    return pickle.loads(content)
