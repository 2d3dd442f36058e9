"""Users at work: what changes for connected clients, files of users, and ways around the rules that lead nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from riverbed.server.commands import load_commands
from riverbed.server.commands.access.denials import _COMPARED, Denials
from riverbed.server.commands.access.interface import Reason
from riverbed.server.commands.access.user import User
from riverbed.server.commands.access.users import MAX_FILE_BYTES, Users
from tests.conftest import StartRiverbed
from tests.support.effort import measured
from tests.support.raw import RawClient, encode
from tests.support.servers import RiverbedServer, StartError
from tests.support.waiting import until, until_blocked

NO_KEY = b"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n"


def no_command(name: str) -> bytes:
    return f"-NOPERM this user has no permissions to run the '{name}' command\r\n".encode()


@pytest.fixture
def admin(client: RawClient) -> Iterator[RawClient]:
    """A client of the default user; no other user is left from other tests, nor afterwards."""

    def clean() -> None:
        names = [one.text for one in client.tree("ACL", "USERS").children or () if one.text != b"default"]
        if names:
            client.ask("ACL", "DELUSER", *names)
        client.ask("ACL", "LOG", "RESET")

    clean()
    yield client
    clean()


def logged_in(server: RiverbedServer, name: str, password: str = "x") -> RawClient:
    client = server.client()
    assert client.ask("AUTH", name, password) == b"+OK\r\n"
    return client


def set_user(admin: RawClient, *words: str) -> None:
    assert admin.ask("ACL", "SETUSER", *words) == b"+OK\r\n"


# -- clients that are connected ----------------------------------------------------------------------------------------


def test_new_rules_hold_for_the_next_request_of_a_connected_client(server: RiverbedServer, admin: RawClient) -> None:
    set_user(admin, "u", "on", "nopass", "~*", "+xadd")
    with logged_in(server, "u") as client:
        assert client.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
        set_user(admin, "u", "resetkeys", "~other")
        assert client.ask("XADD", "s", "1-2", "f", "v") == NO_KEY
        set_user(admin, "u", "allkeys", "-xadd")
        assert client.ask("XADD", "s", "1-2", "f", "v") == no_command("xadd")
        set_user(admin, "u", "+@all", "&*")
        assert client.ask("XADD", "s", "1-2", "f", "v") == b"$3\r\n1-2\r\n"
    assert admin.ask("XLEN", "s") == b":2\r\n"


def test_each_entry_of_a_pipeline_is_checked(server: RiverbedServer, admin: RawClient) -> None:
    set_user(admin, "u", "on", "nopass", "~a", "+xadd")
    with logged_in(server, "u") as client:
        lines = [("XADD", key, "*", "f", "v") for key in ("a", "b", "a", "b") * 50]
        replies = client.pipeline(lines)
    assert [reply == NO_KEY for reply in replies] == [key == "b" for key in "abab" * 50]
    assert admin.ask("EXISTS", "b") == b":0\r\n"
    assert admin.ask("XLEN", "a") == b":100\r\n"


@pytest.mark.parametrize(
    ("rule", "error"), [("-xread", no_command("xread")), ("resetkeys", NO_KEY)], ids=["command", "keys"]
)
def test_a_reader_that_waits_is_refused_when_it_may_no_longer(
    server: RiverbedServer, admin: RawClient, rule: str, error: bytes
) -> None:
    set_user(admin, "u", "on", "nopass", "~*", "+xread", "+ping")
    with logged_in(server, "u") as client:
        client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        until_blocked(admin, 1)
        set_user(admin, "u", rule)
        assert client.reply() == error
        assert client.ask("PING") == b"+PONG\r\n"
    assert b"blocked_clients:0" in admin.ask("INFO", "clients")


def test_a_reader_that_waits_goes_on_when_it_still_may(server: RiverbedServer, admin: RawClient) -> None:
    set_user(admin, "u", "on", "nopass", "~*", "+xread")
    with logged_in(server, "u") as client:
        client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        until_blocked(admin, 1)
        set_user(admin, "u", "resetkeys", "~s")
        admin.ask("XADD", "s", "1-1", "f", "v")
        assert b"1-1" in client.reply()


@pytest.mark.parametrize(
    ("line", "rules", "stays"),
    [
        ("SUBSCRIBE news", ("resetchannels",), False),
        ("SUBSCRIBE news", ("resetchannels", "&n*"), True),
        ("PSUBSCRIBE n*", ("resetchannels", "&news"), False),
        ("PSUBSCRIBE n*", ("resetchannels", "&n*"), True),
        ("SSUBSCRIBE news", ("resetchannels", "&other"), False),
    ],
)
def test_a_subscriber_is_cut_off_when_it_may_no_longer_listen(
    server: RiverbedServer, admin: RawClient, line: str, rules: tuple[str, ...], *, stays: bool
) -> None:
    set_user(admin, "u", "on", "nopass", "&*", "+@pubsub", "+ping")
    with logged_in(server, "u") as client:
        client.ask(*line.split())
        set_user(admin, "u", *rules)
        if stays:
            assert b"pong" in client.ask("PING")
        else:
            with pytest.raises(ConnectionError):
                client.ask("PING")


@pytest.mark.parametrize(("rule", "stays"), [("-monitor", False), ("-xadd", True)])
def test_a_monitor_is_cut_off_when_it_may_no_longer_watch(
    server: RiverbedServer, admin: RawClient, rule: str, *, stays: bool
) -> None:
    set_user(admin, "u", "on", "nopass", "+@all")
    with logged_in(server, "u") as client:
        client.ask("MONITOR")
        set_user(admin, "u", rule)
        admin.ask("PING")
        if stays:
            while b'"PING"' not in client.reply():
                pass
        else:
            with pytest.raises(ConnectionError):
                client.ask("PING")


@pytest.mark.parametrize("line", ["ACL DELUSER u", "ACL SETUSER u resetchannels"])
def test_a_client_that_cuts_itself_off_is_answered_first(server: RiverbedServer, admin: RawClient, line: str) -> None:
    set_user(admin, "u", "on", "nopass", "+@all", "~*", "&*")
    with logged_in(server, "u") as client:
        client.ask("HELLO", 3)
        client.ask("SUBSCRIBE", "news")
        client.send_bytes(encode(line.split()) + encode(["XADD", "s", "*", "f", "v"]))
        assert client.reply() in (b":1\r\n", b"+OK\r\n")
        assert client.rest_until_closed() == b""
    assert admin.ask("EXISTS", "s") == b":0\r\n"


def test_clients_of_a_deleted_user_are_cut_off(server: RiverbedServer, admin: RawClient) -> None:
    set_user(admin, "u", "on", "nopass", "+@all", "~*")
    with logged_in(server, "u") as client, logged_in(server, "u") as waiting, server.client() as other:
        waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
        until_blocked(admin, 1)
        assert admin.ask("ACL", "DELUSER", "u", "nobody") == b":1\r\n"
        for one in (client, waiting):
            with pytest.raises(ConnectionError):
                one.ask("PING")
        assert other.ask("PING") == b"+PONG\r\n"
        assert other.ask("AUTH", "u", "x").startswith(b"-WRONGPASS")


def test_a_user_that_is_off_keeps_its_clients_and_takes_no_new_ones(server: RiverbedServer, admin: RawClient) -> None:
    set_user(admin, "u", "on", "nopass", "+ping")
    with logged_in(server, "u") as client:
        set_user(admin, "u", "off")
        assert client.ask("PING") == b"+PONG\r\n"
        assert client.ask("AUTH", "u", "x").startswith(b"-WRONGPASS")


def test_users_are_shown_and_killed_by_name(server: RiverbedServer, admin: RawClient) -> None:
    set_user(admin, "u", "on", "nopass", "+ping")
    with logged_in(server, "u") as client:
        assert b" user=u " in admin.ask("CLIENT", "LIST")
        assert admin.ask("CLIENT", "KILL", "USER", "u") == b":1\r\n"
        with pytest.raises(ConnectionError):
            client.ask("PING")
    assert admin.ask("CLIENT", "KILL", "USER", "nobody") == b"-ERR No such user 'nobody'\r\n"


def test_reset_makes_a_client_the_default_user_again(server: RiverbedServer, admin: RawClient) -> None:
    set_user(admin, "u", "on", "nopass", "+acl|whoami")
    with logged_in(server, "u") as client:
        assert client.ask("ACL", "WHOAMI") == b"$1\r\nu\r\n"
        assert client.ask("RESET") == b"+RESET\r\n"
        assert client.ask("ACL", "WHOAMI") == b"$7\r\ndefault\r\n"
        assert client.ask("HELLO", 3, "AUTH", "u", "x").startswith(b"%")
        assert client.ask("PING") == no_command("ping")


# -- ways around the rules ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("COPY a secret", "COPY secret a", "RENAME a secret", "RENAME secret a", "RENAMENX a secret", "MOVE secret 1"),
        *(
            "XREAD STREAMS a secret 0 0",
            "XREAD COUNT 1 STREAMS secret 0",
            "XREADGROUP GROUP STREAMS c STREAMS secret >",
        ),
        *("XREADGROUP GROUP g STREAMS STREAMS secret >", "DEL a secret", "WATCH a secret", "XGROUP CREATE secret g $"),
        *("XGROUP POLICY a g MAXDELIVERIES 1 DEADLETTER secret", "XGROUP POLICY a g deadletter secret MAXDELIVERIES 1"),
        *("OBJECT ENCODING secret", "MEMORY USAGE secret", "XINFO STREAM secret", "EXISTS secret", "TOUCH a secret"),
    ],
)
def test_no_command_reaches_a_key_that_is_not_the_users(server: RiverbedServer, admin: RawClient, line: str) -> None:
    for key in ("a", "secret"):
        admin.ask("XADD", key, "1-1", "f", key)
        admin.ask("XGROUP", "CREATE", key, "g", 0)
    before = admin.ask("XRANGE", "secret", "-", "+")
    set_user(admin, "u", "on", "nopass", "~a", "+@all")
    with logged_in(server, "u") as client:
        assert client.ask(*line.split()) == NO_KEY
        client.ask("MULTI")
        assert client.ask(*line.split()) in (NO_KEY, b"-ERR WATCH inside MULTI is not allowed\r\n")
        assert client.ask("EXEC").startswith(b"-EXECABORT") or "WATCH" in line
        client.ask("SELECT", 1)
        assert client.ask(*line.split()) == NO_KEY
    assert admin.ask("XRANGE", "secret", "-", "+") == before


@pytest.mark.parametrize(
    "line",
    [
        "XREADGROUP COUNT 1 GROUP g streams streams payroll >",
        "XREADGROUP GROUP g streams COUNT 1 streams payroll >",
        "XREADGROUP BLOCK 1 GROUP streams streams STREAMS payroll >",
        "XREADGROUP GROUP g s NOACK CLAIM 0 streams payroll >",
    ],
)
def test_what_is_called_like_the_word_before_the_keys_is_not_taken_for_it(
    server: RiverbedServer, admin: RawClient, line: str
) -> None:
    """A consumer may be; the key behind it would be looked at as if it were that word."""
    admin.ask("XADD", "payroll", "1-1", "f", "v")
    for group in ("g", "streams"):
        admin.ask("XGROUP", "CREATE", "payroll", group, 0)
    set_user(admin, "u", "on", "nopass", "~s*", "+@all")
    with logged_in(server, "u") as client:
        assert client.ask(*line.split()) == NO_KEY
    assert admin.ask("COMMAND", "GETKEYS", *line.split()) == b"*1\r\n$7\r\npayroll\r\n"
    assert admin.ask("XPENDING", "payroll", "g").startswith(b"*4\r\n:0\r\n")


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        ([b"%RW~*", b"~foo"], b"%RW~* ~foo "),
        ([b"%R~*", b"~foo", b"%W~*"], b"%RW~* ~foo "),
        ([b"%R~*", b"%W~foo"], b"%R~* %W~foo "),
        ([b"~foo", b"%RW~*"], b"~foo ~* "),  # which are all keys again
        ([b"(%RW~* ~foo +xadd)"], b"(%RW~* ~foo resetchannels -@all +xadd)"),
    ],
)
def test_what_is_shown_of_a_user_is_what_a_file_may_say(rules: list[bytes], shown: bytes) -> None:
    """A start with another line would be refused."""
    load_commands()
    line = bytes(Users().changed(b"u", [b"on", b"nopass", *rules]))
    assert shown in line
    again = Users()
    again.add_lines([("users.acl:1", line.split(b" ")[1:])])
    user = again.get(b"u")
    assert user is not None
    assert bytes(user) == line.replace(b"~foo ~* ", b"~* ")


@pytest.mark.parametrize("key", [b"a\0secret", b"a\0", b"A", b"aa", b"", b"*", b"[a]", b"a\n"])
def test_a_pattern_fits_whole_keys(server: RiverbedServer, admin: RawClient, key: bytes) -> None:
    set_user(admin, "u", "on", "nopass", "~a", "+xlen")
    with logged_in(server, "u") as client:
        assert client.ask("XLEN", key) == NO_KEY
        assert client.ask("XLEN", "a") == b":0\r\n"


def test_a_queued_command_that_became_forbidden_does_not_run(server: RiverbedServer, admin: RawClient) -> None:
    set_user(admin, "u", "on", "nopass", "~*", "+xadd", "+multi", "+exec", "+ping")
    with logged_in(server, "u") as client:
        for line in ("MULTI", "XADD s 1-1 f v", "PING"):
            client.ask(*line.split())
        set_user(admin, "u", "-xadd")
        reply = client.ask("EXEC")
    assert reply.startswith(b"*2\r\n-NOPERM ACLs rules changed between the moment")
    assert reply.endswith(b"+PONG\r\n")
    assert admin.ask("EXISTS", "s") == b":0\r\n"


def test_a_user_that_may_do_nothing_may_log_in_and_leave(server: RiverbedServer, admin: RawClient) -> None:
    set_user(admin, "u", "on", ">p")
    with logged_in(server, "u", "p") as client:
        assert client.ask("PING") == no_command("ping")
        assert client.ask("ACL", "SETUSER", "u", "+@all") == no_command("acl|setuser")
        assert client.ask("AUTH", "default", "x") == b"+OK\r\n"
        assert client.ask("PING") == b"+PONG\r\n"


@pytest.mark.parametrize(
    "rule", ["+select|0\nuser evil on nopass ~* +@all", "+select|0\tx", "(~x) ~y)", "(+xlen) +xadd)"]
)
def test_no_rule_makes_lines_that_read_as_others(admin: RawClient, rule: str) -> None:
    assert admin.ask("ACL", "SETUSER", "u", rule).startswith(b"-ERR Error in ACL SETUSER modifier '")
    assert admin.ask("ACL", "GETUSER", "u") == b"$-1\r\n"


# -- passwords ---------------------------------------------------------------------------------------------------------


def test_several_passwords_fit_until_they_are_removed(server: RiverbedServer, admin: RawClient) -> None:
    set_user(admin, "u", "on", ">one", ">two")
    for password in ("one", "two"):
        logged_in(server, "u", password).close()
    set_user(admin, "u", "<one")
    with server.client() as client:
        assert client.ask("AUTH", "u", "one").startswith(b"-WRONGPASS")
        assert client.ask("AUTH", "u", "two") == b"+OK\r\n"


def test_passwords_of_users_are_shown_nowhere(server: RiverbedServer, admin: RawClient) -> None:
    admin.ask("CONFIG", "SET", "slowlog-log-slower-than", 0)
    with server.client() as monitor:
        monitor.ask("MONITOR")
        set_user(admin, "u", "on", ">tell-me-not")
        admin.ask("ACL", "SETUSER", "u", ">tell-me-not", "nonsense")
        admin.ask("ACL", "DRYRUN", "u", "AUTH", "tell-me-not")
        admin.ask("ECHO", "over")
        seen = b""
        while b"over" not in seen:
            seen += monitor.reply()
    assert b"tell-me-not" not in seen
    assert b"tell-me-not" not in admin.ask("SLOWLOG", "GET", 100)
    assert b"tell-me-not" not in admin.ask("ACL", "LIST")
    admin.ask("CONFIG", "SET", "slowlog-log-slower-than", 10_000)


@pytest.mark.parametrize("asked", ["new", ""])
@pytest.mark.parametrize("how", ["ACL SETUSER default resetpass >old", "CONFIG SET requirepass old"])
def test_a_refused_change_of_the_password_lets_nobody_in(start_riverbed: StartRiverbed, how: str, asked: str) -> None:
    server = start_riverbed()
    with server.client() as client:
        assert client.ask(*how.split()) == b"+OK\r\n"
        with server.client() as stranger:
            assert stranger.ask("PING").startswith(b"-NOAUTH")
            refused = client.ask("CONFIG", "SET", "requirepass", asked, "tls-replication", "yes")
            assert refused.startswith(b"-ERR CONFIG SET failed (possibly related to argument 'tls-replication')")
            assert stranger.ask("PING").startswith(b"-NOAUTH")
            assert stranger.ask("AUTH", "old") == b"+OK\r\n"


def test_requirepass_is_the_password_of_the_default_user(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"requirepass": "one"})
    with server.client() as client, server.client() as stranger:
        assert stranger.ask("PING").startswith(b"-NOAUTH")
        assert client.ask("AUTH", "one") == b"+OK\r\n"
        set_user(client, "default", ">two")
        assert stranger.ask("AUTH", "two") == b"+OK\r\n"
        assert client.ask("CONFIG", "SET", "requirepass", "three") == b"+OK\r\n"
        with server.client() as newcomer:
            assert newcomer.ask("AUTH", "two").startswith(b"-WRONGPASS")
            assert newcomer.ask("AUTH", "default", "three") == b"+OK\r\n"
        set_user(client, "default", "nopass")
        with server.client() as newcomer:
            assert newcomer.ask("PING") == b"+PONG\r\n"


# -- files -------------------------------------------------------------------------------------------------------------


def test_an_aclfile_is_saved_loaded_and_read_at_a_start(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    file = tmp_path / "users.acl"
    file.write_text("# who may do what\nuser default on nopass ~* &* +@all\nuser u on >p ~a* +xadd (%R~b* +xread)\n")
    server = start_riverbed(options={"aclfile": file})
    with server.client() as admin, logged_in(server, "u", "p") as client, logged_in(server, "u", "p") as other:
        set_user(admin, "v", "on", ">q", "+ping", "&news")
        before = admin.ask("ACL", "LIST")
        assert admin.ask("ACL", "SAVE") == b"+OK\r\n"
        set_user(admin, "u", "resetkeys", "+acl")
        set_user(admin, "w", "on", "nopass", "+ping")
        with logged_in(server, "w") as gone:
            assert other.ask("ACL", "LOAD") == b"+OK\r\n"
            for one in (gone, client, other):  # u was another user until now
                with pytest.raises(ConnectionError):
                    one.ask("PING")
        assert admin.ask("ACL", "LIST") == before
        with logged_in(server, "v", "q") as same:
            assert admin.ask("ACL", "LOAD") == b"+OK\r\n"
            assert same.ask("PING") == b"+PONG\r\n"
        good = file.read_text()
        file.write_text(good + "user x +nothing\nuser y ~a\nusr z on\nuser u on\n")
        reply = admin.ask("ACL", "LOAD")
        assert reply.startswith(b"-ERR") and b"users.acl:" in reply
        assert admin.ask("ACL", "LIST") == before
        file.write_text(good)
    server.restart()
    with server.client() as admin:
        assert admin.ask("ACL", "LIST") == before


def test_requirepass_protects_default_where_the_aclfile_has_no_line_for_it(
    start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    file = tmp_path / "users.acl"
    file.write_text("user u on >p ~* +@all\n")
    server = start_riverbed(options={"aclfile": file, "requirepass": "one"})

    def enters(*password: str) -> bool:
        with server.client() as client:
            return not (client.ask("AUTH", *password) if password else client.ask("PING")).startswith(b"-")

    with logged_in(server, "u", "p") as admin:
        at_start = admin.ask("ACL", "LIST")
        assert admin.ask("ACL", "LOAD") == b"+OK\r\n"
        assert admin.ask("ACL", "LIST") == at_start
        assert (enters(), enters("one")) == (False, True)
        set_user(admin, "default", ">two")
        admin.ask("CONFIG", "SET", "requirepass", "three")
        assert admin.ask("ACL", "LOAD") == b"+OK\r\n"
        assert (enters(), enters("one"), enters("two"), enters("three")) == (False, False, False, True)
        assert admin.ask("ACL", "SAVE") == b"+OK\r\n"
        assert "user default on #" in file.read_text()
    server.restart()
    assert (enters(), enters("one"), enters("three")) == (False, False, True)  # its line decides now
    with logged_in(server, "u", "p") as admin:
        assert admin.ask("ACL", "LOAD") == b"+OK\r\n"
        assert (enters(), enters("one"), enters("three")) == (False, False, True)
        admin.ask("CONFIG", "SET", "requirepass", "")
        file.write_text("user u on >p ~* +@all\n")
        assert admin.ask("ACL", "LOAD") == b"+OK\r\n"
        assert enters()


def test_of_a_file_of_wrong_lines_the_first_hundred_are_told_and_little_of_each(
    start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    file = tmp_path / "users.acl"
    file.write_text("user default on nopass ~* &* +@all\n")
    server = start_riverbed(options={"aclfile": file})
    with server.client() as admin:
        file.write_text("".join(f"user u{number} +{'x' * 10_000}\n" for number in range(500)))
        reply = admin.ask("ACL", "LOAD")
        assert reply.count(b"users.acl:") == 100
        assert len(reply) < 100 * (len(str(file)) + 300)
        file.write_text("user u on (~a\n")
        assert b"users.acl:1: Unmatched parenthesis in selector definition. WARNING" in admin.ask("ACL", "LOAD")


def test_an_aclfile_that_was_deleted_is_made_again_for_its_owner_alone(
    start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    file = tmp_path / "users.acl"
    file.write_text("user default on nopass ~* &* +@all\n")
    server = start_riverbed(options={"aclfile": file})
    with server.client() as admin:
        assert admin.ask("ACL", "SETUSER", "Ann", "on", ">secret", "+ping") == b"+OK\r\n"
        file.unlink()
        assert admin.ask("ACL", "SAVE") == b"+OK\r\n"
        users = admin.ask("ACL", "LIST")
    assert file.stat().st_mode & 0o777 == 0o600
    server.restart()
    with server.client() as admin:
        assert admin.ask("ACL", "LIST") == users


def test_an_aclfile_that_is_no_file_or_too_long_is_refused_at_once(
    start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    file, there = tmp_path / "users.acl", tmp_path / "there.acl"
    there.write_text("user default on nopass ~* &* +@all\n")
    file.symlink_to(there)
    server = start_riverbed(options={"aclfile": file})
    with server.client(timeout_s=20) as admin:
        assert admin.ask("ACL", "LOAD") == b"+OK\r\n"
        before = admin.ask("ACL", "LIST")
        file.unlink()
        os.mkfifo(file)
        assert b"is a pipe" in admin.ask("ACL", "LOAD")
        file.unlink()
        assert b"No such file" in admin.ask("ACL", "LOAD")
        file.mkdir()
        assert b"is a directory" in admin.ask("ACL", "LOAD")
        file.rmdir()
        with file.open("wb") as long:
            long.truncate(MAX_FILE_BYTES + 1)
        assert b"has more than" in admin.ask("ACL", "LOAD")
        assert admin.ask("ACL", "LIST") == before


def test_users_that_cannot_be_saved_stay_and_so_does_the_file(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    file = tmp_path / "folder" / "users.acl"
    file.parent.mkdir()
    file.write_text("user default on nopass ~* &* +@all\n")
    server = start_riverbed(options={"aclfile": file})
    with server.client() as admin:
        set_user(admin, "u", "on", ">p", "~a*", "+xadd")
        file.parent.rename(tmp_path / "elsewhere")
        assert admin.ask("ACL", "SAVE").startswith(b"-ERR There was an error trying to save the ACLs")
        assert "the users were not saved: " in server.log_text()
        assert b"user u on" in admin.ask("ACL", "LIST")
        (tmp_path / "elsewhere").rename(file.parent)
        assert b"user u " not in file.read_bytes()
        assert admin.ask("ACL", "SAVE") == b"+OK\r\n"
        assert b"user u on" in file.read_bytes()
        assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_lines_of_the_configuration_make_users_and_are_written_back(
    start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    conf = tmp_path / "riverbed.conf"
    conf.write_text('maxclients 500\nuser u on >p ~a* +xadd\nuser "v" off\n')
    server = start_riverbed_with(conf, tmp_path)
    try:
        with server.client() as admin:
            logged_in(server, "u", "p").close()
            set_user(admin, "u", "-@all", "+xlen", "%R~b")
            set_user(admin, "w", "on", "nopass", "(~c +xtrim)")
            admin.ask("ACL", "DELUSER", "v")
            before = admin.ask("ACL", "LIST")
            assert admin.ask("CONFIG", "REWRITE") == b"+OK\r\n"
        lines = [line for line in conf.read_text().splitlines() if line.startswith("user ")]
        assert [line.split()[1] for line in lines] == ["default", "u", "w"]
        assert ">p" not in conf.read_text()
        server.restart()
        with server.client() as admin:
            assert admin.ask("ACL", "LIST") == before
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("lines", "commands"),
    [
        ("", ["ACL SETUSER u on >p", "CONFIG SET requirepass new"]),
        ("requirepass old\n", ["ACL SETUSER u on >p", "CONFIG SET requirepass new"]),
        ("user default on >old ~* &* +@all\n", ["CONFIG SET requirepass new"]),
        ("", ["CONFIG SET requirepass new"]),
        ("user u on >p\n", ["CONFIG SET requirepass new", "ACL DELUSER u"]),
        ("requirepass new\nuser u on >p\n", []),
    ],
    ids=lambda what: what if isinstance(what, str) else ", ".join(what),
)
def test_the_password_in_force_is_written_back(
    start_riverbed: StartRiverbed, tmp_path: Path, lines: str, commands: list[str]
) -> None:
    conf = tmp_path / "riverbed.conf"
    conf.write_text(lines)
    server = start_riverbed_with(conf, tmp_path)
    password = "new" if "requirepass new" in lines else "old" if "old" in lines else None
    try:
        with server.client() as admin:
            if password is not None:
                assert admin.ask("AUTH", password) == b"+OK\r\n"
            for command in commands:
                assert not admin.ask(*command.split()).startswith(b"-")
            before = admin.ask("ACL", "LIST")
            assert admin.ask("CONFIG", "REWRITE") == b"+OK\r\n"
        assert ">p" not in conf.read_text()
        server.restart()
        with server.client() as admin:
            assert admin.ask("PING").startswith(b"-NOAUTH")
            assert admin.ask("AUTH", "new") == b"+OK\r\n"
            assert admin.ask("ACL", "LIST") == before
    finally:
        server.kill()


def start_riverbed_with(conf: Path, tmp_path: Path) -> RiverbedServer:
    class Configured(RiverbedServer):
        def program(self) -> list[str]:
            return [*super().program(), str(conf)]

    place = tmp_path / "configured"
    place.mkdir()
    return Configured(place, tmp_path / "logs").start()


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("user u on +nothing\n", "riverbed.conf:1: +nothing: Unknown command or category name in ACL"),
        ("port 1\nuser u on (~a\n", "riverbed.conf:2:"),
        ("user u on\nuser u off\n", "riverbed.conf:2: Duplicate user found"),
        ("user\n", "riverbed.conf:1:"),
        ("user u on\naclfile {there}\n", "not both"),
        ("aclfile {missing}\n", "missing.acl: No such file or directory"),
        ("aclfile {loop}\n", "loop.acl: Too many levels of symbolic links"),
    ],
)
def test_wrong_users_keep_a_server_from_starting_and_say_where(tmp_path: Path, lines: str, text: str) -> None:
    there, missing, conf = tmp_path / "there.acl", tmp_path / "missing.acl", tmp_path / "riverbed.conf"
    there.write_text("user x on\n")
    loop = tmp_path / "loop.acl"
    loop.symlink_to(loop)
    conf.write_text(lines.format(there=there, missing=missing, loop=loop))
    with pytest.raises(StartError) as refused:
        start_riverbed_with(conf, tmp_path)
    assert text in str(refused.value)


# -- who is told -------------------------------------------------------------------------------------------------------


def test_equal_refusals_are_one_entry_and_old_ones_go() -> None:
    denials = Denials()

    def note(what: bytes, now_ms: int) -> None:
        denials.note(Reason.KEY, what, b"u", b"client", now_ms, in_transaction=False, most=20)

    note(b"a", 0)
    note(b"b", 10)
    note(b"a", 59_000)
    assert [(each.what, each.count, each.number) for each in denials.entries] == [(b"a", 2, 0), (b"b", 1, 1)]
    note(b"a", 59_000 + 60_001)
    assert (denials.entries[0].what, denials.entries[0].count) == (b"a", 1)
    for number in range(50):
        note(b"%d" % number, 200_000)
    assert len(denials.entries) == 20
    assert denials.totals[Reason.KEY] == 54
    assert _COMPARED < 20
    note(b"x" * 100_000, 200_000)
    assert len(denials.entries[0].what) < 2000  # a client chooses it


def test_a_long_name_of_a_client_is_cut_in_the_entry() -> None:
    denials = Denials()
    denials.note(Reason.KEY, b"a", b"u", b"name=" + b"x" * 65536, 0, in_transaction=False, most=20)
    assert len(denials.entries[0].client) == 4096


def test_info_counts_refusals_by_reason(server: RiverbedServer, admin: RawClient) -> None:
    def counts() -> list[int]:
        return [int(value) for name, value in admin.info("stats").items() if name.startswith("acl_access_denied_")]

    before = counts()
    set_user(admin, "u", "on", ">p", "~a", "+xlen", "+publish")
    with logged_in(server, "u", "p") as client:
        for line in ("XLEN b", "PUBLISH c m", "PING", "AUTH u wrong"):
            client.ask(*line.split())
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [1, 1, 1, 1]


# -- clients and replicas ----------------------------------------------------------------------------------------------


def test_redis_py_manages_users(server: RiverbedServer, admin: RawClient) -> None:
    with redis.Redis(port=server.port, decode_responses=True) as client:
        assert client.acl_setuser(
            "u", enabled=True, passwords=["+p"], keys=["orders:*"], commands=["+xadd", "+@connection"], channels=["n"]
        )
        found = client.acl_getuser("u")
        assert found["flags"] == ["on"] and found["keys"] == ["~orders:*"] and found["enabled"]
        assert client.acl_whoami() == "default"
        assert client.acl_users() == ["default", "u"]
        assert "stream" in client.acl_cat() and "xadd" in client.acl_cat("stream")
        assert len(client.acl_genpass()) == 64
        assert client.acl_dryrun("u", "XADD", "orders:1", "*", "f", "v") == "OK"
        with redis.Redis(port=server.port, username="u", password="p") as producer:
            assert producer.xadd("orders:1", {"f": "v"})
            with pytest.raises(redis.exceptions.NoPermissionError):
                producer.xadd("other", {"f": "v"})
        (entry,) = client.acl_log()
        assert (entry["reason"], entry["object"], entry["username"], entry["count"]) == ("key", "other", "u", 1)
        assert client.acl_log_reset() and client.acl_log() == []
        assert client.acl_deluser("u") == 1


def test_a_replica_logs_in_as_a_user_that_may_only_replicate(start_riverbed: StartRiverbed) -> None:
    primary = start_riverbed()
    with primary.client() as admin:
        set_user(admin, "replica", "on", ">r", "+psync", "+replconf", "+ping")
        set_user(admin, "default", "resetpass", ">d")
        follower = start_riverbed(
            options={"replicaof": f"127.0.0.1 {primary.port}", "masteruser": "replica", "masterauth": "r"}
        )
        admin.ask("XADD", "s", "1-1", "f", "v")
        with follower.client() as client:
            until(lambda: client.ask("XLEN", "s") == b":1\r\n", f"the entry\n{follower.log_tail()}")


def test_many_patterns_and_rules_of_a_user_are_added_in_a_time_that_grows_with_their_number() -> None:
    def units(count: int) -> float:
        user = User(b"u")
        with measured() as effort:
            for number in range(count):
                for rule in (b"~k%d", b"&c%d", b"+xlen|%d"):
                    user.apply(rule % number)
        return effort.units

    few, many = units(1_000), units(8_000)
    assert many < 24 * few
