"""Features: what a record or an object of version 2 names, so that a release that lacks one refuses it.

What is written in version 2 has the member `features`, a sorted list of names. A reader refuses by its
name what it does not know or does not serve, and touches nothing of it. Spec: docs/formats.md, "Features".
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from bottomless.formats.checks import VERSION, check, check_served
from bottomless.formats.sealed_json import version_of
from bottomless.model.config import StreamConfig, encode_config

VERSION_2: Final = 2
"""The version of what has features."""
_NAME_SIZE_MAX: Final = 32
"""What is longer, or no word, is no feature's name and is not shown."""


def version_in(data: bytes) -> int:
    """Read the version of an object as far as it is known; any other is refused where it is read."""
    return VERSION_2 if version_of(data) == VERSION_2 else VERSION


def check_features(
    what: str, members: Mapping[str, Any], known: Collection[str], served: AbstractSet[str]
) -> list[str]:
    """Read the features that the members of an object of version 2 name, in the order in which they
    stand there.

    Raises:
        NotServed: one is not among those `known`, or not among those `served`.
        Corrupt: they are no list of texts.
    """
    features = members.get("features", [])
    check(what, isinstance(features, list), "its features are no list")
    for feature in features:
        check(what, isinstance(feature, str), "a feature is no text")
        name = feature if feature.isidentifier() and len(feature) <= _NAME_SIZE_MAX else "?"
        check_served(what, feature in known, f"its feature {name} is not known")
        check_served(what, feature in served, f"its feature {name} is not served by this release")
    return [*features]


def check_sections(
    what: str, sections: Iterable[str], config: StreamConfig, said: Mapping[str, Any]
) -> None:
    """Check that sections of a configuration stand there as a writer writes them: `said` is all of it.

    Raises:
        Corrupt
    """
    written = encode_config(config)
    for section in sections:
        kept = written.get(section) == said.get(section)
        check(what, kept, f"its {section} is not as it is written")
