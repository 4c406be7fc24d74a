"""What can be imported on a machine without vLLM."""

import subprocess
import sys


def test_settings_and_identity_import_without_vllm() -> None:
    code = (
        "import sys; sys.modules['vllm'] = None; sys.modules['torch'] = None\n"
        "import hearthfs.connector, hearthfs.connector.settings, hearthfs.connector.identity\n"
        "import hearthfs.connector.loads, hearthfs.connector.stores, hearthfs.connector.plain\n"
        "import hearthfs.connector.breakeven, hearthfs.connector.neighbours, hearthfs.connector.prompt_keys\n"
        "import hearthfs.cli.kv\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
