"""Room for as many connections as may come: each is a file descriptor, and processes may open 1,024 unless they ask."""

import logging
import resource

OTHERS = 64  # descriptors for all that is no connection

log = logging.getLogger(__name__)


def room_for(connections: int) -> int:
    """Raises this process's limit as far as it may be; how many of ``connections`` there is room for then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHERS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning(
            "this process may open %d files, too few for --max-connections %d; raise `ulimit -Hn`", hard, connections
        )
    return max(1, min(connections, allowed - OTHERS))
