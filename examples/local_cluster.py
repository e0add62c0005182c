"""Runs a program on a small cluster of this machine: a chief, workers and parameter servers.

    python examples/local_cluster.py --workers 2 --ps 2 -- train.py --its --flags

Each task is a process at a port of 127.0.0.1. The chief runs the program, unedited; the others
run `estimator-bridge serve`, and end when the chief does. Ends with the status of the chief. With
--asynchronous workers run the program, too: they must where it does not use a TPU.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys

BRIDGE = [sys.executable, "-m", "estimator_bridge"]


def free_ports(count):
    """Returns ports of 127.0.0.1 at which nothing listens."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main():
    """Starts the tasks and waits for the chief."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2, help="0: the chief runs the cores")
    parser.add_argument("--ps", type=int, default=2, help="parameter servers, at least one")
    parser.add_argument("--asynchronous", action="store_true", help="workers run the program, too")
    parser.add_argument("program", nargs="+", help="the program and its arguments, behind --")
    options = parser.parse_args()
    counts = {"chief": 1, "worker": options.workers, "ps": options.ps}
    ports = iter(free_ports(sum(counts.values())))
    cluster = {
        job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in counts.items() if n
    }

    def start(job, index, *command):
        config = {"cluster": cluster, "task": {"type": job, "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        return subprocess.Popen([*BRIDGE, *command], env=environment)

    trains = ("run", *options.program)
    servers = [start("ps", index, "serve") for index in range(options.ps)]
    servers += [
        start("worker", index, *(trains if options.asynchronous else ("serve",)))
        for index in range(options.workers)
    ]
    try:
        status = start("chief", 0, *trains).wait()
        for server in servers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(60)
    finally:
        for server in servers:
            server.kill()
    sys.exit(status)


if __name__ == "__main__":
    main()
