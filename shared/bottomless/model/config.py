"""The configuration of a stream, as users send it, as it is kept and as it is shown.

The parsing is pydantic's, strict and closed: an unknown member or a number in quotes is refused,
and the answer names its place, never what was sent.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from bottomless.model.closed_schema import (
    UNLIMITED,
    Closed,
    Sections,
    checked,
    merged,
    read_size,
    refused,
)
from bottomless.model.duration import parse_duration, stored_duration
from bottomless.model.limits import (
    FILTER_SIZE_DEFAULT,
    FILTER_SIZE_MAX,
    FILTER_SIZE_MIN,
    FRAGMENT_AGE_MS_DEFAULT,
    FRAGMENT_AGE_MS_MAX,
    FRAGMENT_AGE_MS_MIN,
    FRAGMENT_TARGET_SIZE_DEFAULT,
    FRAGMENT_TARGET_SIZE_MAX,
    FRAGMENT_TARGET_SIZE_MIN,
    LABEL_COUNT_MAX,
    LABEL_SIZE_MAX,
    LEADERLESS_AGE_MS_DEFAULT,
    LEADERLESS_AGE_MS_MAX,
    LEADERLESS_AGE_MS_MIN,
    OFFSET_MAX,
    REPLICA_COUNT_MAX,
)
from bottomless.model.tiers import TierConfig, check_tiers


def _stored_duration(text: str) -> str:
    return text if text == UNLIMITED else stored_duration(text)


class RetentionConfig(Closed):
    """How long records are kept. The limit that removes more wins; the last fragment stays."""

    max_age: Annotated[str, AfterValidator(_stored_duration)] | None = None
    max_bytes: Annotated[
        Annotated[int, Field(ge=1, le=OFFSET_MAX)] | Literal["unlimited"] | None,
        BeforeValidator(read_size),
    ] = None

    def with_default(self, default: "RetentionConfig") -> "RetentionConfig":
        """Fill the members that this configuration leaves open from the server's default."""
        return RetentionConfig(
            max_age=default.max_age if self.max_age is None else self.max_age,
            max_bytes=default.max_bytes if self.max_bytes is None else self.max_bytes,
        )

    @property
    def age_limit_seconds(self) -> int | None:
        """The limit of `max_age` in seconds; None for no limit."""
        if self.max_age is None or self.max_age == UNLIMITED:
            return None
        return parse_duration(self.max_age)

    @property
    def bytes_limit(self) -> int | None:
        """The limit of `max_bytes` in bytes; None for no limit."""
        return None if self.max_bytes == UNLIMITED else self.max_bytes


class FragmentConfig(Closed):
    """When the tail is cut into a fragment: at `target_bytes` or after `max_age_ms`, whichever is
    first.
    """

    target_bytes: Annotated[
        int, Field(ge=FRAGMENT_TARGET_SIZE_MIN, le=FRAGMENT_TARGET_SIZE_MAX)
    ] = FRAGMENT_TARGET_SIZE_DEFAULT
    max_age_ms: Annotated[int, Field(ge=FRAGMENT_AGE_MS_MIN, le=FRAGMENT_AGE_MS_MAX)] = (
        FRAGMENT_AGE_MS_DEFAULT
    )


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("must be a power of two")
    return value


FilterIndex = Literal["none", "values", "values-and-keys"]
"""The columns of which new fragments get filters: none, `filter_value`, or `key` too."""


class FilterConfig(Closed):
    """The filters that new fragments get: with them a read with a filter can leave some out.

    Reads are exact without them too.
    """

    index: FilterIndex | None = None
    """None says nothing: of a new stream the server's default counts, of another one no index."""
    max_bytes: Annotated[
        int,
        Field(ge=FILTER_SIZE_MIN, le=FILTER_SIZE_MAX),
        AfterValidator(_power_of_two),
    ] = FILTER_SIZE_DEFAULT
    """The largest filter of a chunk, in bytes."""

    def settled(self, default: FilterIndex = "none") -> "FilterConfig":
        """Make the form in which it is kept: with the server's default where nothing is said."""
        index = self.index or default
        return FilterConfig(index=None if index == "none" else index, max_bytes=self.max_bytes)


class ReplicationConfig(Closed):
    """On how many nodes the tail of a stream lies."""

    replicas: Annotated[int, Field(ge=1, le=REPLICA_COUNT_MAX)] = 1
    """How many nodes hold the tail, its owner included."""
    min_in_sync: Annotated[int, Field(ge=1, le=REPLICA_COUNT_MAX)] | None = None
    """How many of them must have a record before it is acknowledged; None for more than half."""

    @model_validator(mode="after")
    def _no_more_are_needed_than_there_are(self) -> Self:
        if self.least_in_sync > self.replicas:
            raise ValueError("min_in_sync must not be above replicas")
        return self

    @property
    def least_in_sync(self) -> int:
        """How many nodes must have a record before it is acknowledged."""
        return self.replicas // 2 + 1 if self.min_in_sync is None else self.min_in_sync

    def settled(self, default: int) -> "ReplicationConfig":
        """Make the form in which it is kept: with the server's `default` where nobody says how many nodes
        hold the tail.
        """
        if "replicas" in self.model_fields_set:
            return self
        return ReplicationConfig(replicas=default, min_in_sync=self.min_in_sync)


def _read_tiers(value: object) -> object:
    """A list is what JSON has for what never changes here."""
    return tuple(value) if isinstance(value, list) else value


def _checked_tiers(tiers: tuple[TierConfig, ...]) -> tuple[TierConfig, ...]:
    check_tiers(tiers)
    return tiers


_Tiers = Annotated[
    tuple[TierConfig, ...], BeforeValidator(_read_tiers), AfterValidator(_checked_tiers)
]
Profile = Literal["local", "leaderless"]
"""How the newest records of a stream are kept until they are in fragments."""
_Label = Annotated[str, Field(max_length=LABEL_SIZE_MAX)]


class _AskedConfig(Closed):
    """What a request may say; every member has a default."""

    retention: RetentionConfig = RetentionConfig()
    fragment: FragmentConfig = FragmentConfig()
    filter: FilterConfig = FilterConfig()
    labels: Annotated[dict[_Label, _Label], Field(max_length=LABEL_COUNT_MAX)] = Field(
        default_factory=dict
    )


_SECTIONS: Final[Sections] = {
    "retention": RetentionConfig,
    "fragment": FragmentConfig,
    "filter": FilterConfig,
    "replication": ReplicationConfig,
}


class _AskedTiered(_AskedConfig):
    """What a request may say of a stream where tiers and replicas are served."""

    replication: ReplicationConfig = ReplicationConfig()
    tiers: _Tiers = ()


class _AskedToCreate(_AskedConfig):
    """What a request to create a stream may say where leaderless ones are served."""

    profile: Literal["local", "leaderless"] = "local"


class _AskedToCreateTiered(_AskedToCreate, _AskedTiered):
    """What a request to create a stream may say where leaderless ones and tiers are served."""


class _AskedToChange(_AskedConfig):
    """What a request to change a leaderless stream may say."""

    fenced: bool = False


class _AskedToChangeTiered(_AskedToChange, _AskedTiered):
    """What a request to change a leaderless stream may say where tiers are served."""


_WITH_TIERS: Final[Mapping[type[_AskedConfig], type[_AskedConfig]]] = {
    _AskedConfig: _AskedTiered,
    _AskedToCreate: _AskedToCreateTiered,
    _AskedToChange: _AskedToChangeTiered,
}


class StreamConfig(_AskedConfig):
    """The configuration of a stream as it is kept: what a request said, and what no request may
    say yet.
    """

    profile: Profile = "local"
    """It never changes."""
    fenced: bool = False
    """Whether a leaderless stream takes no appends, because an operator said so."""
    replication: ReplicationConfig = ReplicationConfig()
    """A leaderless stream has the default, since no node has a tail of it."""
    tiers: _Tiers = ()
    """The drives of its fragments, the newest first; without any they stay where they are, and new
    ones are put on drive 0."""

    @model_validator(mode="after")
    def _members_fit_the_profile(self) -> Self:
        if self.fenced and self.profile == "local":
            raise ValueError("only a leaderless stream is fenced")
        if self.profile != "local" and self.replication != ReplicationConfig():
            raise ValueError("a leaderless stream has no replicas")
        return self

    @property
    def leaderless(self) -> bool:
        """Whether no ingest node owns the stream."""
        return self.profile == "leaderless"


def parse_config(value: object, *, leaderless: bool = False, tiered: bool = False) -> StreamConfig:
    """Check a readable JSON value against the schema of what a request may say of a configuration.

    `leaderless` and `tiered` tell whether leaderless streams and tiers are served, so that a request
    may ask for them. Whether the drives of the tiers exist is not looked at.

    Raises:
        InvalidRequest: `validation-failed`, with a pointer to each fault.
    """
    schema = _AskedToCreate if leaderless else _AskedConfig
    asked = checked(_WITH_TIERS[schema] if tiered else schema, value, _SECTIONS)
    _require_owner(asked, leaderless=getattr(asked, "profile", "local") != "local")
    return _of_its_profile(StreamConfig(**dict(asked)))


def _require_owner(asked: _AskedConfig, *, leaderless: bool) -> None:
    """Refuse replicas of a stream whose tail no node has.

    Raises:
        InvalidRequest: `validation-failed`.
    """
    if leaderless and getattr(asked, "replication", ReplicationConfig()) != ReplicationConfig():
        raise refused("unchangeable", "a leaderless stream has no replicas", "/replication")


def _of_its_profile(config: StreamConfig) -> StreamConfig:
    """The configuration with the age of fragments that a leaderless stream has if nobody says any.

    Raises:
        InvalidRequest: `validation-failed`: it may not be as asked.
    """
    fragment = config.fragment
    if not config.leaderless:
        return config
    if "max_age_ms" not in fragment.model_fields_set:
        fragment = fragment.model_copy(update={"max_age_ms": LEADERLESS_AGE_MS_DEFAULT})
        return config.model_copy(update={"fragment": fragment})
    if not LEADERLESS_AGE_MS_MIN <= fragment.max_age_ms <= LEADERLESS_AGE_MS_MAX:
        raise refused(
            "out-of-range",
            "max_age_ms of a leaderless stream must be from"
            f" {LEADERLESS_AGE_MS_MIN} to {LEADERLESS_AGE_MS_MAX}",
            "/fragment/max_age_ms",
        )
    return config


def parse_stored_config(value: object) -> StreamConfig:
    """Check a readable JSON value against the schema of a configuration as it is kept.

    Raises:
        InvalidRequest: `validation-failed`, with a pointer to each fault.
    """
    config = checked(StreamConfig, value, _SECTIONS)
    return config.model_copy(update={"filter": config.filter.settled()})


def encode_config(config: StreamConfig) -> dict[str, Any]:
    """Turn a configuration into plain JSON values; members of later versions only where they say
    something, so that what has none of them is what it always was.
    """
    members = config.model_dump(mode="json")
    if not config.leaderless:
        del members["profile"]
    if not config.fenced:
        del members["fenced"]
    if config.replication == ReplicationConfig():
        del members["replication"]
    if not config.tiers:
        del members["tiers"]
    if config.filter == FilterConfig():
        del members["filter"]
    else:
        members["filter"]["index"] = config.filter.index or "none"
    return members


def patch_config(
    config: StreamConfig, patch: object, *, leaderless: bool = False, tiered: bool = False
) -> StreamConfig:
    """Apply a merge patch (RFC 7396) to a configuration; null takes a member back to its default.

    `leaderless` tells whether leaderless streams are served: such a one may be fenced. `tiered` tells
    whether tiers are: they are a list, which is replaced as a whole.

    Raises:
        InvalidRequest: `validation-failed`, with a pointer to each fault. A null for an unknown
            member is a fault too, since it can only be a typing error.
    """
    if leaderless and isinstance(patch, dict):
        if "profile" in patch:
            raise refused("unchangeable", "the profile of a stream never changes", "/profile")
        if "fenced" in patch and not config.leaderless:
            raise refused("unchangeable", "only a leaderless stream can be fenced", "/fenced")
    schema = _AskedToChange if leaderless and config.leaderless else _AskedConfig
    schema = _WITH_TIERS[schema] if tiered else schema
    asked = config.model_dump(mode="json", include=set(schema.model_fields))
    patched = checked(schema, merged(asked, patch), _SECTIONS)
    patched = patched.model_copy(update={"filter": patched.filter.settled()})
    _require_owner(patched, leaderless=config.leaderless)
    kept = {
        "profile": config.profile,
        "fenced": config.fenced,
        "replication": config.replication,
        "tiers": config.tiers,
    }
    return _of_its_profile(StreamConfig(**{**kept, **dict(patched)}))


def config_differences(mine: StreamConfig, theirs: StreamConfig) -> list[str]:
    """List JSON pointers to the members in which two configurations differ; empty if they are
    equal.

    What `mine` says nothing of in its sections `filter` and `replication` counts as equal: the server's
    default may have been another when the stream was made. Where the profiles differ, the age of fragments counts only if one has another than its
    profile's default: nobody asked for that.
    """
    pointers = [] if mine.profile == theirs.profile else ["/profile"]
    for section in ("retention", "fragment"):
        left, right = encode_config(mine)[section], encode_config(theirs)[section]
        pointers += [f"/{section}/{member}" for member in left if left[member] != right[member]]
    if "/profile" in pointers and _has_usual_age(mine) and _has_usual_age(theirs):
        pointers = [pointer for pointer in pointers if pointer != "/fragment/max_age_ms"]
    if mine.filter.index is not None and mine.filter.settled().index != theirs.filter.index:
        pointers.append("/filter/index")
    asks_size = "max_bytes" in mine.filter.model_fields_set
    if asks_size and mine.filter.max_bytes != theirs.filter.max_bytes:
        pointers.append("/filter/max_bytes")
    for member in ("replicas", "min_in_sync"):
        said = member in mine.replication.model_fields_set
        if said and getattr(mine.replication, member) != getattr(theirs.replication, member):
            pointers.append(f"/replication/{member}")
    if mine.tiers != theirs.tiers:
        pointers.append("/tiers")
    if orjson.dumps(mine.labels, option=orjson.OPT_SORT_KEYS) != orjson.dumps(
        theirs.labels, option=orjson.OPT_SORT_KEYS
    ):
        pointers.append("/labels")
    return pointers


def _has_usual_age(config: StreamConfig) -> bool:
    usual = LEADERLESS_AGE_MS_DEFAULT if config.leaderless else FRAGMENT_AGE_MS_DEFAULT
    return config.fragment.max_age_ms == usual
