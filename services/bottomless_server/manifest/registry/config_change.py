"""Another configuration in the record of a stream or super stream, put there once however often it is tried."""

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from bottomless.model.config import StreamConfig
from bottomless.model.stream import StreamRecord
from bottomless.model.super_stream import SuperRecord

R = TypeVar("R", StreamRecord, SuperRecord)


class ConfigChange(Generic[R]):
    """One change of a configuration, which may be tried again after a reply was lost."""

    def __init__(self, change: Callable[[R], StreamConfig]) -> None:
        """`change` sees the record as it is, and says what the configuration should be."""
        self._change: Callable[[R], StreamConfig] = change
        self._tried: R | None = None

    def apply(self, record: R) -> R:
        """The record with its next configuration; as it is where nothing is to be changed."""
        tried = self._tried
        if tried is not None and (record.config_version, record.config) == (
            tried.config_version,
            tried.config,
        ):
            # The attempt whose reply was lost did arrive.
            return record
        config = self._change(record)
        if config == record.config:
            return record
        self._tried = replace(
            record,
            config=config,
            config_version=record.config_version + 1,
            registry_version=record.registry_version + 1,
        )
        return self._tried
