"""Write anew what is made of openapi/*.yaml: `./dev contract`."""

import json
import sys
from pathlib import Path
from typing import Final

from bottomless_server.runtime.http.endpoint_table import EndpointTable
from openapi.bundle import PUBLIC, ROOT, bundled
from openapi.endpoints import Refused, compiled
from openapi.routing import of_nginx, operations_for_people, proxy_for_people, written_into

COMPILED: Final = ROOT / "services/bottomless_server/contract"


def outputs() -> dict[Path, str]:
    """The text of every file that is made of the contract, whole or in part.

    Raises:
        Refused: something in openapi/*.yaml is missing or contradicts itself.
    """
    endpoints = compiled()
    table = EndpointTable(endpoints)
    nginx, proxy, identity = (
        ROOT / file for file in ("deploy/nginx.conf", "docs/deployment.md", "docs/identity.md")
    )
    return {
        COMPILED / "public.json": json.dumps(bundled(*PUBLIC), indent=1, ensure_ascii=False) + "\n",
        COMPILED / "endpoints.json": _a_line_each(endpoints),
        nginx: written_into(nginx.read_text(), of_nginx(table, endpoints)),
        proxy: written_into(proxy.read_text(), proxy_for_people(table, endpoints)),
        identity: written_into(identity.read_text(), operations_for_people(endpoints)),
    }


def _a_line_each(value: dict[str, list[dict[str, object]]]) -> str:
    """As JSON in which each entry of a list has a line, so that changes of it are read easily."""
    members = []
    for name, member in value.items():
        text = json.dumps(member)
        if isinstance(member, list):
            text = "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in member) + "\n ]"
        members.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(members) + "\n}\n"


def main() -> int:
    try:
        made = outputs()
    except Refused as error:
        print(f"the contract is refused: {error}", file=sys.stderr)
        return 1
    for file, text in made.items():
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(f"wrote {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
