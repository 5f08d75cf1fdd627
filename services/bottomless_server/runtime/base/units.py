"""Settings whose numbers may have units: what stands in the environment, and what it may mean.

The name of a setting says what a number alone is: bytes, milliseconds or seconds. Text with a unit
is taken too (`10GB`, `90s`), so nobody has to count zeros. What no clock and no memory holds is
refused, as are `nan` and `inf`, which pass every comparison that is not made for them.
"""

from enum import Enum, auto
from typing import Any, Final

from pydantic import ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from bottomless.model.duration import parse_milliseconds
from bottomless.model.limits import OFFSET_MAX
from bottomless.model.size import parse_size

_CENTURY_MS: Final = 100 * 365 * 86_400_000
_COUNT_MAX: Final = 2**31 - 1
_NUMBER_CHARACTERS: Final = frozenset("0123456789.+-_eE")


class Unit(Enum):
    """What a number in a setting counts."""

    BYTES = auto()
    MILLISECONDS = auto()
    SECONDS = auto()
    THINGS = auto()


def unit_of(name: str) -> Unit:
    """What a setting counts, by its name."""
    parts = name.split("_")
    if "bytes" in parts or "size" in parts:
        return Unit.BYTES
    if "ms" in parts:
        return Unit.MILLISECONDS
    return Unit.SECONDS if "seconds" in parts else Unit.THINGS


def number_of(name: str, text: str) -> str | float:
    """The number that text with a unit is, for a setting of this name; other text as it is.

    Raises:
        ValueError: it has a unit, and not one that this setting counts in.
    """
    unit = unit_of(name)
    if unit is Unit.THINGS or _NUMBER_CHARACTERS.issuperset(text) or _is_no_number(text):
        return text
    if unit is Unit.BYTES:
        return parse_size(text)
    milliseconds = parse_milliseconds(text)
    return milliseconds if unit is Unit.MILLISECONDS else milliseconds / 1_000


class WithUnits(BaseSettings):
    """The root of all settings."""

    model_config = SettingsConfigDict(
        env_prefix="BOTTOMLESS_",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read what is said by name, and the environment. There are no files of settings, and to look
        through all fields for them took as long as to read the environment."""
        return init_settings, env_settings

    @field_validator("*", mode="before")
    @classmethod
    def _take_units(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and info.field_name is not None:
            return number_of(info.field_name, value.strip())
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _refuse_absurd(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        bound, sentence = _BOUNDS[unit_of(info.field_name or "")]
        if abs(value) > bound:
            raise ValueError(f"it is more than {sentence}")
        return value


_BOUNDS: Final[dict[Unit, tuple[int, str]]] = {
    Unit.BYTES: (OFFSET_MAX, "2^53 - 1 bytes"),
    Unit.MILLISECONDS: (_CENTURY_MS, "a hundred years"),
    Unit.SECONDS: (_CENTURY_MS // 1_000, "a hundred years"),
    Unit.THINGS: (_COUNT_MAX, "2^31 - 1"),
}


def _is_no_number(text: str) -> bool:
    # Those two are words for floats, and refused as such.
    return text.lower().lstrip("+-") in ("nan", "inf", "infinity")
