"""Bodies of requests as closed schemas: an unknown member is refused, never ignored."""

from pydantic import BaseModel, ConfigDict


class ClosedBody(BaseModel):
    """Strict: `"5"`, `5.0` and `true` are no integers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)
