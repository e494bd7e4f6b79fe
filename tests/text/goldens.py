"""The goldens of ``tests/data/tokenizers``: strings, tiny tokenizers, and the ids of reference libraries."""

import gzip
import json
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "tokenizers"
TINY = DATA / "tiny"
STRINGS = json.loads(gzip.decompress((DATA / "strings.json.gz").read_bytes()))
GOLDENS = json.loads((DATA / "tiny.json").read_text())
