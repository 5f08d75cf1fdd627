"""OpenTelemetry, as an extra: one request is one trace with spans of several services."""

import subprocess
import sys
from pathlib import Path

from support.command_line import PROGRAM
from support.otlp import receiving_spans
from support.server import AllInOne
from support.waiting import until

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"


def test_one_read_is_one_trace_through_the_services(tmp_path: Path) -> None:
    with receiving_spans() as receiver:
        settings = {
            "BOTTOMLESS_OTEL": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        with AllInOne(tmp_path / "data", settings) as server, server.client() as client:
            client.put("/v1/streams/traced").raise_for_status()
            client.get(
                "/v1/streams/traced/records",
                params={"offset": "first"},
                headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"},
            ).raise_for_status()

            until(
                lambda: any(span.parent_id == PARENT_ID for span in receiver.spans),
                what="spans received while the process lives",
            )
            # What waits to be sent is sent at the end.
            assert server.stop() == 0
        spans = [span for span in receiver.spans if span.trace_id == TRACE_ID]

    (root,) = (span for span in spans if span.parent_id == PARENT_ID)
    assert (root.service, root.name) == ("bottomless", "GET /v1/streams/{s}/records")
    inner = [span for span in spans if span is not root]
    assert {span.service for span in inner} == {"bottomless-manifest", "bottomless-ingest"}
    assert {span.parent_id for span in inner} <= {span.span_id for span in spans}
    assert not any("traced" in span.name for span in spans)


def test_without_the_libraries_the_start_says_what_to_install(tmp_path: Path) -> None:
    missing = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{missing!r}] = None")
    ended = subprocess.run(
        [sys.executable, PROGRAM, "serve", "--data-dir", str(tmp_path / "data"), "--port", "0"],
        env={"BOTTOMLESS_OTEL": "1", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "cannot start" in ended.stderr
    assert "./services[otel]" in ended.stderr
