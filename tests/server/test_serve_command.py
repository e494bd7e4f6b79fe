"""``trimaran serve`` as a user starts it: its flags, where options come from, and how it ends."""

import dataclasses
import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from trimaran import server
from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.cli.serve import engine_config
from trimaran.server.options import ServeOptions

TRIMARAN = str(Path(sys.executable).with_name("trimaran"))
READY = re.compile(rb"Trimaran \S+ serves (\S+) on (http://\S+)/v1 ")


@contextmanager
def serving(*flags: str, **environ: str) -> Iterator[tuple[subprocess.Popen, str, str]]:
    """Starts the command and yields it once it is ready, with the model's name and the URL."""
    command = [TRIMARAN, "serve", *flags]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TRIMARAN_PORT")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**clean, **environ}) as process:
        try:
            seen = b""
            for line in process.stderr:
                seen += line
                if ready := READY.match(line):
                    yield process, ready[1].decode(), ready[2].decode()
                    break
            else:
                pytest.fail(f"the server ended before it was ready: {seen.decode()}")
        finally:
            process.kill()


def refused(*flags: str, **environ: str) -> str:
    """What the command says when it refuses to start."""
    command = [TRIMARAN, "serve", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ}, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_from_file_environment_and_flags(byte_model, tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text(
        f"model: {byte_model}\nexecutor: 'null'\nport: 1\nmax-model-len: 64\nserved_model_name: from-file\n"
    )
    with serving("--config", str(config), "--port", "0", TRIMARAN_MAX_MODEL_LEN="128") as (process, name, url):
        assert name == "from-file"
        assert httpx.get(url + "/v1/models").json()["data"][0]["max_model_len"] == 128
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_chat_template_of_ones_own(byte_model, tmp_path):
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages[-1].content }}=")
    with (
        serving(str(byte_model), "--executor", "null", "--port", "0", "--chat-template", str(template)) as (
            _,
            name,
            url,
        ),
        openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0) as client,
    ):
        answer = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "12345"}], max_tokens=1
        )
    assert answer.usage.prompt_tokens == 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(byte_model, number):
    with serving(str(byte_model), "--executor", "null", "--port", "0") as (process, name, url):
        assert name == byte_model.name
        engine = psutil.Process(process.pid).children()[0]
        with openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0) as client:
            stream = iter(
                client.completions.create(
                    model=name, prompt="x", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
                )
            )
            next(stream)
            process.send_signal(number)
            assert list(stream)[-1].choices[0].finish_reason in ("stop", "length")
        assert process.wait(30) == 0
        assert not engine.is_running()


def test_the_key_comes_from_the_environment_and_stays_secret(byte_model):
    flags = (str(byte_model), "--executor", "null", "--port", "0", "--log-level", "debug")
    with serving(*flags, TRIMARAN_API_KEY="hush-hush") as (process, _, url):
        assert httpx.get(url + "/v1/models").status_code == 401
        assert httpx.get(url + "/v1/models", headers={"authorization": "Bearer hush-hush"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert b"hush" not in process.stderr.read()


def test_keys_of_a_file_stay_secret(byte_model, tmp_path):
    file = tmp_path / "keys"
    file.write_text("hush-hush name=alice requests=2\n")
    flags = (str(byte_model), "--executor", "null", "--port", "0", "--log-level", "debug", "--api-key-file", str(file))
    file.chmod(0o644)
    assert f"run: chmod 600 {file}" in refused(*flags)
    file.chmod(0o600)
    with serving(*flags) as (process, name, url):
        headers = {"authorization": "Bearer hush-hush"}
        ask = {"model": name, "prompt": "x", "max_tokens": 1}
        answers = [httpx.post(url + "/v1/completions", json=ask, headers=headers) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert httpx.post(url + "/v1/completions", json=ask).status_code == 401
        process.send_signal(signal.SIGTERM)
        assert b"hush" not in process.stderr.read()


def test_an_open_address_without_a_key_is_loud(byte_model):
    command = [TRIMARAN, "serve", str(byte_model), "--executor", "null"]
    with subprocess.Popen([*command, "--port", "0", "--host", "0.0.0.0"], stderr=subprocess.PIPE) as process:
        assert b"ANYBODY" in process.stderr.readline()
        process.terminate()
        process.stderr.read()


@pytest.mark.parametrize(
    ("flags", "environ", "says"),
    [
        ((), {}, "name a model to serve"),
        (("x", "--port", "many"), {}, "--port: 'many' is not valid"),
        (("x", "--executor", "cuda"), {}, "not one of native, reference, null"),
        (("x",), {"TRIMARAN_PROT": "1"}, "did you mean TRIMARAN_PORT?"),
        (("x", "--config", "/nowhere.yaml"), {}, "cannot read the configuration file"),
    ],
)
def test_refusals(flags, environ, says):
    assert says in refused(*flags, **environ)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--block-size", "17"), "--block-size must be a multiple of 16, not 17"),
        (("--speculative-ngram", "17"), "--speculative-ngram must be at most 16, not 17"),
        (("--kv-cache-memory-bytes", "1"), "raise --kv-cache-memory-bytes"),
    ],
)
def test_impossible_engines_are_refused_in_the_words_of_flags(byte_model, flags, says):
    assert says in refused(str(byte_model), "--executor", "null", "--port", "0", *flags)


def test_a_port_in_use(byte_model):
    with serving(str(byte_model), "--executor", "null", "--port", "0") as (_, _, url):
        assert "cannot listen" in refused(str(byte_model), "--executor", "null", "--port", url.rpartition(":")[2])


def test_help_has_every_option_and_an_example():
    command = [TRIMARAN, "serve", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, timeout=60)
    for field in dataclasses.fields(ServeOptions):
        if field.name != "model":
            assert "--" + field.name.replace("_", "-") in done.stdout
    assert "trimaran serve smollm2 --port 9000" in done.stdout


def test_every_option_is_read(byte_model):
    """No dead flags: what the engine's, the app's and the listener's parts read is all there is."""
    read: set[str] = set()

    class Recorder:
        def __init__(self, options: ServeOptions) -> None:
            self._options = options

        def __getattr__(self, name: str):
            read.add(name)
            return getattr(self._options, name)

    engine_config(Recorder(ServeOptions(executor="null")), byte_model, "x")
    source = "".join(path.read_text() for path in Path(server.__path__[0]).glob("*.py"))
    for module in ("trimaran.cli.serve", "trimaran.cli.pools"):
        source += Path(importlib.import_module(module).__file__).read_text()
    read |= set(re.findall(r"options\.(\w+)", source))
    assert {field.name for field in dataclasses.fields(ServeOptions)} <= read


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"weight_format": None, "kv_format": None, "seed": None}),
        ({"weight_format": "bfloat16"}, {"weight_format": WeightFormat.BF16}),
        ({"weight_format": "int4z"}, {"weight_format": WeightFormat.INT4Z}),
        ({"kv_cache_dtype": "float32"}, {"kv_format": KVFormat.FP32}),
        ({"kv_cache_dtype": "bf16"}, {"kv_format": KVFormat.BF16}),
        ({"block_size": 32, "seed": 5, "threads": 3}, {"page_size": 32, "seed": 5, "threads": 3}),
        ({"max_num_seqs": 4, "max_waiting": 6}, {"max_num_seqs": 4, "max_waiting": 10}),
        ({"enable_prefix_caching": False}, {"prefix_caching": False}),
        ({"overlap": False}, {"overlap": False}),
        ({"pin_threads": True}, {"pin_threads": True}),
        ({"kv_cache_memory_bytes": 2**30}, {"kv_memory_bytes": 2**30}),
        ({"kv_cache_scales": "s.json"}, {"kv_cache_scales": "s.json"}),
        ({"kv_cache_dtype_skip_layers": "0,sliding"}, {"kv_cache_dtype_skip_layers": (0, "sliding")}),
        ({"max_model_len": 99}, {"max_model_len": 99}),
    ],
)
def test_what_the_engine_is_told(byte_model, options, expected):
    config = engine_config(ServeOptions(**options), byte_model, "name")
    assert {name: getattr(config, name) for name in expected} == expected
    assert (config.model, config.served_name) == (str(byte_model), "name")


def test_more_sequences_than_rows_is_refused(byte_model):
    with pytest.raises(ConfigError, match=r"--max-num-batched-tokens \(32\) must be at least --max-num-seqs \(64\)"):
        engine_config(ServeOptions(max_num_seqs=64, max_num_batched_tokens=32), byte_model, "name")
