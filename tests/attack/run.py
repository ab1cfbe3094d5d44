#!/usr/bin/env python3
"""Attacks a server of its own: see README.md.

run.py --flatbed PATH [--seed N] [--group NAME]... [--list]
"""

import argparse
import importlib
import random
import signal
import sys
import time
import traceback

# Nothing is left in the sources.
sys.dont_write_bytecode = True

import check
from server import Server

MODULES = [
    "h1_heads",
    "h1_bodies",
    "h2_frames",
    "endpoints",
    "json_bodies",
    "attachments",
    "multipart",
    "browsers",
    "memory",
    "processor",
    "sharing",
    "floods",
    "names",
    "values",
    "revisions",
    "stubs",
    "settings",
    "promises",
    "mango",
    "views",
    "functions",
    "exhaustion",
    "replication",
    "replicator",
    "gate",
    "rights",
    "tokens",
    "pages",
    "outward",
    "guesses",
    "sync",
    "channels",
    "channel_feeds",
    "hogs",
    "large_reads",
    "queries",
    "replicas",
    "vanishing",
    "uploads",
    "churn",
    "rendered",
    "strangers_pages",
    "ports",
    "outsiders",
]


def groups():
    for name in MODULES:
        module = importlib.import_module(name)
        for group in module.GROUPS:
            yield f"{name}.{group.__name__}", group, getattr(module, "SETUP", {})


def run(binary, name, group, setup, seed):
    setup = {**setup, **getattr(group, "setup", {})}
    server = Server(binary, **setup)
    try:
        return check.run_group(server, group, random.Random(f"{seed} {name}"))
    except Exception:
        traceback.print_exc()
        result = check.Result(name)
        result.add("the attack itself", "it failed: see above")
        return result
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flatbed", required=True, help="the program to attack")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", action="append", help="only groups whose name has this in it")
    parser.add_argument("--list", action="store_true", help="only list the groups")
    parser.add_argument("--failures", type=int, default=8, help="how many failures of a group are shown")
    given = parser.parse_args()
    # A run that is ended ends its server, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    wanted = [entry for entry in groups() if not given.group or any(part in entry[0] for part in given.group)]
    if given.list:
        print("\n".join(name for name, _, _ in wanted))
        return 0
    passed = failed = 0
    print(f"seed {given.seed}\n{'group':34} {'inputs':>7} {'held':>7} {'failed':>7} {'s':>6}", flush=True)
    for name, group, setup in wanted:
        began = time.monotonic()
        result = run(given.flatbed, name, group, setup, given.seed)
        lost = len(result.failed)
        print(f"{name:34} {result.held + lost:7} {result.held:7} {lost:7} {time.monotonic() - began:6.1f}", flush=True)
        for which, wrong in result.failed[: given.failures]:
            print(f"    {which}: {wrong}", flush=True)
        if lost > given.failures:
            print(f"    and {lost - given.failures} more", flush=True)
        passed, failed = passed + result.held, failed + lost
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
