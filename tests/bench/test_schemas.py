"""Answers in many schemas, from folders and drawn, by a small model; what ``bench/schemas.py`` does with a real one."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.engine.driving import null_engine
from tests.server.byte_model import END, VOCAB, write_byte_model

from trimaran.base.errors import ConfigError
from trimaran.bench.schema_cases import DRAFTS, drawn_schemas, schemas_in
from trimaran.checkpoint import open_checkpoint
from trimaran.kernels.null import NullModel
from trimaran.text.template import open_template
from trimaran.text.tokenizer import open_tokenizer


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "schemas.py"
    spec = importlib.util.spec_from_file_location("schemas_tool", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["schemas_tool"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_finished_answer_is_valid(tool, tmp_path):
    path = write_byte_model(tmp_path)
    with open_checkpoint(path) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
        template = open_template(checkpoint, tokenizer, None)
    null = NullModel(vocab=VOCAB, context=2048, eos_id=END)
    engine = null_engine(null=null, model=str(path), seed=1, max_num_seqs=8, kv_memory_bytes=2**22)
    cases = list(drawn_schemas(60, seed=5))
    tally = tool.run(engine, tokenizer, template, cases, 8, 500)
    engine.close()
    assert tally.invalid == []
    assert tally.broken == []
    assert tally.finished > 40
    assert 0 < sum(tally.refused.values()) < 15
    assert all("cannot be enforced" in why for why in tally.refused), tally.refused
    assert tally.finished + tally.cut + sum(tally.refused.values()) == 60


def test_schemas_of_suites_files_and_packages(tmp_path):
    (tmp_path / "draft7").mkdir()
    suite = [{"description": "a number", "schema": {"type": "number"}}, {"description": "all", "schema": True}]
    (tmp_path / "draft7" / "numbers.json").write_text(json.dumps(suite))
    (tmp_path / "person.json").write_text('{"properties": {}}')
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "broken.json").write_text("{")
    assert list(schemas_in(str(tmp_path))) == [
        ("draft7/numbers.json: a number", {"$schema": DRAFTS["draft7"], "type": "number"}),
        ("person.json", {"properties": {}}),
    ]
    assert list(schemas_in("trimaran")) == []
    with pytest.raises(ConfigError, match="neither a folder nor"):
        list(schemas_in("no_such_package"))


def test_the_tool_tells_an_answer_that_is_not_valid(tool):
    schema = {"type": "array", "items": {"type": "string", "format": "ipv4"}}
    assert tool.problem('["1.2.3.4"]', schema) is None
    assert "ipv4" in tool.problem('["1.2.3"]', schema)
    assert tool.problem("[", schema) is not None


def test_drawn_schemas_are_of_all_kinds():
    text = json.dumps([schema for _, schema in drawn_schemas(200, seed=0)])
    words = ("pattern", "format", "anyOf", "oneOf", "$ref", "enum", "prefixItems")
    assert [word for word in words if word not in text] == []
