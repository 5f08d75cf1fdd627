"""The option `--tiers`, what stands below a description, and how long `--wait` waits."""

from pathlib import Path

import orjson
import pytest
import typer
from support.command_line import CommandLine
from support.stand_in import OURS, Answer, Asked, standing_in

from bottomless.cli.tiers import show_bars
from bottomless.cli.tiers_option import tiers_in, with_tiers


def test_a_policy_is_one_word() -> None:
    assert tiers_in("default:age=7d:bytes=10GB,shelf:bytes=5,cold") == [
        {"drive": "default", "max_age": "7d", "max_bytes": 10_000_000_000},
        {"drive": "shelf", "max_bytes": 5},
        {"drive": "cold"},
    ]


def test_a_tier_may_promote_what_is_read() -> None:
    assert tiers_in("default:age=7d,cold:reads=3") == [
        {"drive": "default", "max_age": "7d"},
        {"drive": "cold", "promote_after_reads": 3},
    ]


def test_none_takes_the_tiers_away_and_nothing_said_changes_nothing() -> None:
    assert with_tiers({"labels": {}}, "none") == {"labels": {}, "tiers": []}
    assert with_tiers({"labels": {}}, None) == {"labels": {}}


@pytest.mark.parametrize(
    "text",
    ["", "a,", ":age=7d", "a:7d", "a:age=", "a:size=5", "a:bytes=many", "a:bytes=", "a:reads=3d"],
)
def test_what_is_of_another_form_is_refused_as_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        tiers_in(text)


def test_each_drive_has_a_bar_of_its_part(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    drives = [
        {"drive": "default", "number": 0, "bytes": 3_000},
        {"drive": None, "number": 9, "bytes": 1_000},
    ]
    show_bars({"drives": drives, "several": {"bytes": 0}})

    assert capfdbinary.readouterr().out.decode().splitlines() == [
        "",
        "default  ##################......  3.0 kB",
        "drive 9  ######..................  1.0 kB",
    ]


def test_a_stream_without_a_fragment_has_empty_bars(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    show_bars({"drives": [{"drive": "a", "number": 0, "bytes": 0}], "several": {"bytes": 0}})

    assert b"#" not in capfdbinary.readouterr().out


class Moving:
    """Answers an evaluation with a move each, and shows what is under way as it is told to."""

    def __init__(
        self, *, entered: list[list[str]], left: list[int], shown: list[list[str]]
    ) -> None:
        self._entered, self._left, self._shown = entered, left, shown
        self.evaluated = 0

    def answer(self, asked: Asked) -> Answer:
        if asked.path.endswith("/evaluate"):
            self.evaluated += 1
            return (
                200,
                orjson.dumps({"moves": [_move(name) for name in self._entered.pop(0)]}),
                OURS,
            )
        if asked.path.endswith("/preview"):
            waiting = [{"fragments": self._left.pop(0)}]
            return 200, orjson.dumps({"moves": [], "waiting": waiting}), OURS
        shown = self._shown.pop(0) if self._shown else []
        return 200, orjson.dumps({"moves": [_move(name) for name in shown]}), OURS


def _move(name: str) -> dict[str, object]:
    range_ = {"from_offset": 0, "to_offset": 9, "from_drive": "default", "to_drive": "cold"}
    return {"move": name, **range_, "taken_up": True}


def _apply(tmp_path: Path, moving: Moving) -> tuple[str, str]:
    with standing_in(moving.answer) as server:
        result = CommandLine(server.url, tmp_path).run(
            "tiers", "apply", "s", "--wait", "-o", "name"
        )
    assert result.exit_code == 0
    return result.stdout, result.stderr


def test_what_a_timer_enters_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    """Of a stream that is written a policy wants more each minute: the wait never ended."""
    moving = Moving(entered=[["a"]], left=[0], shown=[["a", "before"], ["later"]])

    assert _apply(tmp_path, moving) == ("a\n", "")
    assert moving.evaluated == 1


def test_what_there_was_no_room_for_is_entered_after_the_wait(tmp_path: Path) -> None:
    moving = Moving(entered=[["a"], ["b"]], left=[7, 0], shown=[["a"], [], ["b"], []])

    assert _apply(tmp_path, moving)[0] == "a\nb\n"
    assert moving.evaluated == 2


def test_what_the_server_does_not_enter_is_not_asked_for_again_and_again(tmp_path: Path) -> None:
    moving = Moving(entered=[[]], left=[7], shown=[[]])

    assert "7 fragments are left" in _apply(tmp_path, moving)[1]
    assert moving.evaluated == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("move", "s", "21", "25", "cold"), "no fragment lies whole between these offsets"),
        (("move", "s", "21", "25", "cold"), "not on cold, or on its way, already"),
        (("move", "s", "21", "25", "cold"), "`bottomless fragments ls`"),
        (("promote", "s", "21", "25"), "not in the first tier, promoted or on its way already"),
        (("apply", "s"), "the stream has no tiers"),
    ],
)
def test_where_nothing_is_to_be_moved_it_is_told_why(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    nothing = orjson.dumps({"moves": [], "left": {"fragments": 0}})
    with standing_in(lambda _: (200, nothing, OURS)) as server:
        told = CommandLine(server.url, tmp_path).ok("tiers", *words)
        listed = CommandLine(server.url, tmp_path).ok("tiers", *words, "-o", "name")
    assert told.startswith("nothing is to be moved: ")
    assert said in told
    assert listed == ""


def test_a_policy_that_wants_nothing_moved_is_not_told_to_be_missing(tmp_path: Path) -> None:
    nothing = orjson.dumps({"moves": [], "tiers": [{"drive": "default"}]})
    with standing_in(lambda _: (200, nothing, OURS)) as server:
        assert CommandLine(server.url, tmp_path).ok("tiers", "apply", "s") == (
            "nothing is to be moved\n"
        )
