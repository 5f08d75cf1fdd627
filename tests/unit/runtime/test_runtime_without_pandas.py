"""Pandas stays out of a service that runs where it is installed."""

import subprocess
import sys

CONVERT = "import sys, pyarrow; pyarrow.array([b'x']); print('pandas' in sys.modules)"
FORGO = (
    "from bottomless_server.runtime.process.service import run_process\n"
    "async def main():\n"
    "    import sys, pyarrow\n"
    "    print(pyarrow.array([b'x'])[0].as_py(), 'pandas' in sys.modules)\n"
    "    return 0\n"
    "run_process(main)"
)


def said(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    ).stdout.strip()


def test_a_process_of_services_converts_values_without_pandas() -> None:
    assert said(CONVERT) == "True", "without that, the next line would say nothing"
    assert said(FORGO) == "b'x' False"
