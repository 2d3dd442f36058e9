"""Runs the tests of streams and of users of Redis's own test suite against Riverbed: `make redis-tests`.

    apt-get source redis                               with deb-src lines in the sources of apt
    make redis-tests REDIS_SOURCE=redis-7.0.15         needs tclsh

The suite runs from a copy, in its mode for an external server, which has the documented settings, except for
`enable-debug-command yes` and a long `checkpoint-interval-ms`: a checkpoint begins the count of changes again.  Of its
harness two lines are left out, which empty the scripts and functions of the server; there are none here.  The first
group of tests of a unit runs although it is not meant for an external server.  Tests in `SKIPPED` are left out, for the
reason that stands there.  Nothing of Redis's is stored in this repository.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support.servers import RiverbedServer

UNITS: Final = ("unit/type/stream", "unit/type/stream-cgroups", "unit/acl", "unit/acl-v2")
_OTHER_TYPES: Final = "uses keys of other types, or DUMP and RESTORE"
_OF_USERS: Final = "uses commands of other types, or a user that such a test has made"
_NEWER: Final = "the newest Redis answers otherwise than 7.0"
# Test -> why it is left out.
SKIPPED: Final = {
    "XREAD: XADD + DEL + LPUSH should not awake client": _OTHER_TYPES,
    "Blocking XREADGROUP: key type changed with SET": _OTHER_TYPES,
    "Blocking XREADGROUP: key type changed with transaction": _OTHER_TYPES,
    "Blocking XREAD: key type changed with SET": _OTHER_TYPES,
    "Blocking XREADGROUP for stream key that has clients blocked on list": _OTHER_TYPES,
    "Loading from legacy (Redis <= v6.2.x, rdb_ver < 10) persistence": _OTHER_TYPES,
    "Loading from legacy (Redis <= v7.0.x, rdb_ver < 11) persistence": _OTHER_TYPES,
    "Consumer seen-time and active-time": _OTHER_TYPES,
    "XINFO FULL output": "newer fields in the reply",
    **dict.fromkeys(
        (
            "By default users are not able to access any command",
            "By default users are not able to access any key",
            "It's possible to allow the access of a subset of keys",
            "ACLs can exclude single commands",
            "ACLs can include or exclude whole classes of commands",
            "ACLs including of a type includes also subcommands",
            "ACLs can block all DEBUG subcommands except one",
            "ACLs set can exclude subcommands, if already full command exists",
            "ACL GETUSER is able to translate back command permissions",
            "ACL CAT category - list all commands/subcommands that belong to category",
            "ACL requires explicit permission for scripting for EVAL_RO, EVALSHA_RO and FCALL_RO",
            "ACL LOG shows failed command executions at toplevel",
            "ACL LOG shows failed subcommand executions at toplevel",
            "ACL LOG is able to test similar events",
            "ACL LOG is able to log keys access violations and key name",
            "ACL LOG is able to log channel access violations and channel name",
            "ACL LOG can distinguish the transaction context (1)",
            "ACL LOG can distinguish the transaction context (2)",
            "ACL can log errors in the context of Lua scripting",
            "ACL LOG can accept a numerical argument to show less entries",
            "ACL LOG entries are limited to a maximum amount",
            "Test basic multiple selectors",
            "Test flexible selector definition",
            "Test separate read permission",
            "Test separate write permission",
            "Test separate read and write permissions",
            "Test separate read and write permissions on different selectors are not additive",
            "Test SET with separate read permission",
            "Test SET with separate write permission",
            "Test SET with read and write permissions",
            "Test BITFIELD with separate read permission",
            "Test BITFIELD with separate write permission",
            "Test BITFIELD with read and write permissions",
            "Test ACL log correctly identifies the relevant item when selectors are used",
            "Test ACL GETUSER response information",
            "Test ACL list idempotency",
            "Test basic dry run functionality",
            "Test various commands for command permissions",
            "Test various odd commands for key permissions",
            "Existence test commands are not marked as access",
            "Intersection cardinaltiy commands are access commands",
            "Test general keyspace commands require some type of permission to execute",
            "Cardinality commands require some type of permission to execute",
            "Test sort with ACL permissions",
            "Test DRYRUN with wrong number of arguments",
        ),
        _OF_USERS,
    ),
}
SKIPPED_OF_7_0: Final = {
    "Blocking XREADGROUP: key deleted": _NEWER,
    "Blocking XREADGROUP: flushed DB": _NEWER,
    "Blocking XREADGROUP for stream that ran dry (issue #5299)": _NEWER,
    "Consumer without PEL is present in AOF after AOFRW": _NEWER,
    "ACLs set can include subcommands, if already full command exists": _NEWER,
}
_HARNESS_LINE: Final = re.compile(r"^ *r (?:function|script) flush\b.*$", re.MULTILINE)
_ONLY_OWN_SERVER: Final = re.compile(r' *"?external:skip"?')
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_TIMEOUT_S: Final = 1200


def main(source: Path) -> int:
    """Run the units of the suite in `source`; -> an exit status."""
    version = (source / "src" / "version.h").read_text().split('"')[1]
    skipped = SKIPPED | (SKIPPED_OF_7_0 if version.startswith("7.0.") else {})
    failed = False
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "redis"
        shutil.copytree(source / "tests", copy / "tests")
        (copy / "tests" / "tmp").mkdir(exist_ok=True)
        harness = copy / "tests" / "support" / "server.tcl"
        harness.write_text(_HARNESS_LINE.sub("", harness.read_text()))
        for unit in UNITS:
            path = copy / "tests" / f"{unit}.tcl"
            first, _, rest = path.read_text().partition("\n")
            path.write_text(f"{_ONLY_OWN_SERVER.sub('', first)}\n{rest}")
        (copy / "skipped").write_text("".join(f"{name}\n" for name in skipped))
        data = Path(work) / "data"
        data.mkdir()
        with RiverbedServer(data, Path(work) / "logs", options={"checkpoint-interval-ms": 3_600_000}) as server:
            for unit in UNITS:
                failed = not _run(copy, unit, server) or failed
            server.stop()
    for name, reason in skipped.items():
        sys.stdout.write(f"left out: {name}: {reason}\n")
    return int(failed)


def _run(copy: Path, unit: str, server: RiverbedServer) -> bool:
    """Run one unit, and print how it went; -> whether all of its tests passed."""
    place = ["--host", "127.0.0.1", "--port", str(server.port)]
    command = ["tclsh", "tests/test_helper.tcl", *place, "--durable", "--skipfile", "skipped", "--single", unit]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    output = _COLOUR.sub("", done.stdout)
    passed, failures = output.count("[ok]: "), re.findall(r"^\[(?:err|exception)\]: .*$", output, re.MULTILINE)
    is_good = done.returncode == 0 and passed > 0 and not failures
    sys.stdout.write(f"{unit}: {passed} tests passed, {len(failures)} failed\n")
    if not is_good:
        sys.stdout.write("\n".join((output[-6000:], done.stderr[-2000:], server.log_tail(), "")))
    return is_good


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
