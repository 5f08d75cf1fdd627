"""Write services/bottomless_server/contract/public.json anew, after openapi/ was changed.

PYTHONPATH=tests .venv/bin/python -m contract_http.regenerate
"""

import json
from pathlib import Path
from typing import Final

from support.documents import PUBLIC, bundled

SERVED: Final = Path(__file__).parents[2] / "services/bottomless_server/contract/public.json"


def main() -> None:
    SERVED.parent.mkdir(exist_ok=True)
    text = json.dumps(bundled(*PUBLIC), indent=1, ensure_ascii=False)
    SERVED.write_text(text + "\n")


if __name__ == "__main__":
    main()
