"""Write services/bottomless_server/contract/ anew, after openapi/ was changed.

PYTHONPATH=tests .venv/bin/python -m contract_http.regenerate
"""

import json
from pathlib import Path
from typing import Final

from support.documents import PUBLIC, bundled

SERVED: Final = Path(__file__).parents[2] / "services/bottomless_server/contract"


def main() -> None:
    SERVED.mkdir(exist_ok=True)
    for name in PUBLIC:
        text = json.dumps(bundled(name), indent=1, ensure_ascii=False)
        (SERVED / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
