"""Keys from the command line: a secret is seen once, or lies in a file that nobody else reads."""

from pathlib import Path

import pytest
from support.command_line import CommandLine

from bottomless.cli.secret_file import SecretFile

ONCE = "bottomless: keep the secret now: it is not shown again\n"


def test_a_key_is_created_shown_rotated_and_revoked(cli: CommandLine, tmp_path: Path) -> None:
    created = cli.run("keys", "create", "--scope", "read:orders-*", "--label", "shop", "-o", "json")
    assert (created.exit_code, created.stderr) == (0, ONCE)
    (key,) = [key for key in cli.json("keys", "ls") if key["label"] == "shop"]
    assert f'"secret": "sk_{key["key_id"]}_' in created.stdout
    assert (key["scopes"], key["state"]) == (["read:orders-*"], "active")

    assert cli.json("keys", "show", key["key_id"]) == key
    assert "secret" not in cli.ok("keys", "show", key["key_id"])
    file = tmp_path / "rotated.key"
    rotated = cli.ok("keys", "rotate", key["key_id"], "--overlap", "0s", "--secret-file", file)
    assert "sk_" not in rotated
    assert file.read_text().startswith(f"sk_{key['key_id']}_")

    assert cli.ok("keys", "revoke", key["key_id"], "--yes", "-o", "name") == f"{key['key_id']}\n"
    assert cli.json("keys", "show", key["key_id"])["state"] == "revoked"
    gone = cli.run("keys", "rotate", key["key_id"])
    assert (gone.exit_code, "key-not-active" in gone.stderr) == (4, True)
    none = cli.run("keys", "show", "0" * 24)
    assert (none.exit_code, "`bottomless keys ls`" in none.stderr) == (3, True)


def test_a_secret_file_is_for_its_owner_and_for_token_file(
    cli: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "a.key"
    key_id = cli.ok(
        *("keys", "create", "--scope", "*", "--ttl", "1D", "--secret-file", file, "-o", "name")
    ).strip()
    assert file.stat().st_mode & 0o777 == 0o600
    secret = file.read_text()
    assert cli.run("--token-file", file, "whoami").exit_code == 0
    assert cli.json("keys", "show", key_id)["expires_at"] is not None

    again = cli.run("keys", "create", "--scope", "*", "--secret-file", file)
    assert (again.exit_code, "is there already" in again.stderr) == (2, True)
    assert file.read_text() == secret
    cli.ok("keys", "rotate", key_id, "--secret-file", file)
    assert file.read_text() != secret


def test_no_key_is_made_whose_secret_would_be_lost(cli: CommandLine, tmp_path: Path) -> None:
    before = cli.json("keys", "ls")
    lost = cli.run("keys", "create", "--scope", "*", "-o", "name")
    assert (lost.exit_code, "--secret-file" in lost.stderr) == (2, True)
    nowhere = cli.run("keys", "create", "--scope", "*", "--secret-file", tmp_path / "no/where")
    assert (nowhere.exit_code, "No such file" in nowhere.stderr) == (1, True)
    assert cli.json("keys", "ls") == before


@pytest.mark.parametrize("option", ["--ttl", "--overlap"])
def test_a_duration_that_is_none_is_wrong_usage(cli: CommandLine, option: str) -> None:
    words = ("create", "--scope", "*") if option == "--ttl" else ("rotate", "0" * 24)
    result = cli.run("keys", *words, option, "soon")
    assert (result.exit_code, "a duration must" in result.stderr) == (2, True)


def test_a_secret_that_did_not_come_leaves_no_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_text("old")
    with SecretFile(path):
        pass
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("k", "old")]


def test_a_secret_that_cannot_take_its_name_is_kept_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "k"
    path.mkdir()
    with pytest.raises(OSError, match="k"), SecretFile(path) as file:
        file.keep("sk_1")
    assert (tmp_path / "k.new").read_text() == "sk_1\n"
    assert f"the secret is in {tmp_path / 'k.new'}" in capsys.readouterr().err


def test_a_half_made_secret_file_of_an_earlier_run_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "k.new").write_text("sk_of_somebody")
    with pytest.raises(FileExistsError):
        SecretFile(tmp_path / "k")
    assert (tmp_path / "k.new").read_text() == "sk_of_somebody"
