"""Read the url of an S3 store: `s3://bucket/prefix?endpoint=…&region=…&storage_class=…`.

Secrets have no place in it: credentials come from the environment, a profile or the
machine's role, as for every program that uses S3.
"""

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from bottomless_server.drives.s3_options import READ_AT_ONCE, S3Options
from bottomless_server.runtime.base.settings import CommonSettings

_PARAMETERS: Final = ("endpoint", "region", "path_style", "ca", "storage_class")
_BOOLEANS: Final = {"true": True, "false": False}


def parse_s3_url(url: str, settings: CommonSettings) -> S3Options:
    """What the url says of a store, and the settings of how it is waited for.

    Raises:
        ValueError: it says something else; the message completes "the url …".
    """
    parts = urlsplit(url)
    if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc or parts.fragment:
        raise ValueError("must look like s3://bucket/prefix?endpoint=…&region=…")
    given: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _PARAMETERS or name in given or not value:
            raise ValueError(f"may say {', '.join(_PARAMETERS)}, each once, and nothing else")
        given[name] = value
    endpoint = given.get("endpoint")
    if endpoint is not None:
        server = urlsplit(endpoint)
        if server.scheme not in ("http", "https") or not server.hostname or server.username:
            raise ValueError("needs an endpoint that looks like https://host:port")
    style = given.get("path_style")
    if style is not None and style not in _BOOLEANS:
        raise ValueError("needs path_style=true or path_style=false")
    ca_path = Path(given["ca"]) if "ca" in given else None
    if ca_path is not None and not ca_path.is_file():
        raise ValueError("names a ca that is not a file")
    storage_class = given.get("storage_class")
    if storage_class is not None and storage_class not in READ_AT_ONCE:
        classes = ", ".join(sorted(READ_AT_ONCE))
        raise ValueError(f"needs a storage_class whose objects are read at once: {classes}")
    return S3Options(
        bucket=parts.netloc,
        prefix=unquote(parts.path).strip("/"),
        endpoint=endpoint.rstrip("/") if endpoint else None,
        region=given.get("region"),
        path_style=None if style is None else _BOOLEANS[style],
        ca_path=ca_path,
        storage_class=storage_class,
        connection_count_max=settings.store_connection_count_max,
        connect_seconds=settings.store_connect_seconds,
        read_seconds=settings.store_read_seconds,
        call_seconds=settings.store_call_seconds,
        multipart_bytes=settings.store_multipart_bytes,
        part_bytes=settings.store_part_bytes,
        part_count_max=settings.store_part_count_max,
    )
