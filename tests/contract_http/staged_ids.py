"""Ids of staged batches in the document that schemathesis reads.

A commit takes 10,000 different ones. To draw so many by their pattern took more time than all
other requests of ingest together; numbers are drawn in no time, and each makes another id.
"""

from typing import Any, Final

FORMAT: Final = "staged-id"


def draw_by_number(document: dict[str, Any]) -> None:
    """Say of the ids in a commit's body that they have this format, which hooks.py makes.

    Ids in answers keep their pattern. That a commit refuses what has another form is seen by
    tests/unit/ingest/test_staged.py.
    """
    staged = document["components"]["schemas"]["StagedIds"]["properties"]["staged"]
    staged["items"] = {"type": "string", "format": FORMAT}


def staged_id(number: int) -> str:
    return f"st_{number:032x}"
