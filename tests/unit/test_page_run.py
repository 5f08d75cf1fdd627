"""The reader of the docs notices what does not do what its page says."""

from pathlib import Path

import pytest
from support.page_run import PageRun
from support.pages import pattern_of, steps_of


def follow(tmp_path: Path, markdown: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(markdown)
    with PageRun(tmp_path / "reader", {"localhost:8080": "localhost:9"}) as reader:
        reader.take(steps_of(page))


GOOD = """
```sh
number=7; echo "seven
to localhost:8080"
```
What it prints:
```text
seven
to …
```
```python
print(2 + 2)
```
```text
4
```
```sql query.sql
SELECT 1
```
```sh
cat query.sql
```
```text
SELECT 1
```
```sh fails
test $number = 8
```
"""


def test_a_page_that_does_what_it_says_is_followed_to_its_end(tmp_path: Path) -> None:
    follow(tmp_path, GOOD)


def test_what_stays_is_seen_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    # What is seen comes of the program itself: a shell that is about to start one may lose a Ctrl-C. So
    # may one wait of Python's that begins as it comes.
    program = (
        "import time; print('one', 'two', sep=chr(10), flush=True); "
        "[time.sleep(0.1) for _ in iter(int, 1)]"
    )
    follow(
        tmp_path,
        f'```sh stays\npython3 -c "{program}"\n```\n'
        "```text python3\none\n…\n```\n<!-- Ctrl-C python3 -->\n```sh\ntrue\n```\n",
    )


def test_what_is_true_a_moment_later_is_looked_for_until_it_is_shown(tmp_path: Path) -> None:
    look = "echo look >> looks; wc -l < looks"
    follow(tmp_path, f"```sh until\n{look}\n```\n```text\n3\n```\n```sh\ntrue\n```\n")


@pytest.mark.parametrize(
    "wrong",
    [
        "```sh\necho one\n```\n```text\ntwo\n```\n",
        "```sh\necho one; echo more\n```\n```text\none\n```\n",
        "```sh\nfalse\ntrue\n```\n",
        "```sh\nfalse | true\n```\n",
        "```sh\necho $unset\n```\n",
        "```sh\necho complaint >&2\n```\n",
        "```sh fails\ntrue\n```\n",
        "```python\nprint(1)\n```\n```text\n2\n```\n",
        "```python\nraise SystemError\n```\n",
        "```sh\ncurl localhost:8080/\n```\n",
        "```sh stays\ntrap '' INT; echo on; exit 3\n```\n```text echo\non\n```\n",
        "```ruby\nputs 1\n```\n",
    ],
)
def test_a_page_that_does_not_do_what_it_says_fails(tmp_path: Path, wrong: str) -> None:
    with pytest.raises((AssertionError, SystemError)):
        follow(tmp_path, wrong)


def test_what_is_different_each_time_is_not_compared() -> None:
    said = pattern_of("first …\n…\nlast\n")
    assert said.fullmatch("first thing\nlast\n")
    assert said.fullmatch("first thing\nand\nmore\nlast  \n")
    assert not said.fullmatch("first thing\nand more\n")
    assert not said.fullmatch("the first thing\nlast\n")
