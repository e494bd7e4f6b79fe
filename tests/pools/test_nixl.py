"""What is special about links by NIXL."""

import subprocess
import sys

import pytest

from trimaran.base.errors import ConfigError
from trimaran.pools import nixl
from trimaran.pools.nixl import load_nixl

from .links import NAMES, ROOT
from .transfers import KEY

_ENDS = """
import time
from tests.pools.transfers import KEY, hello
from trimaran.pools.transports import open_transport
nixl = open_transport("nixl", KEY)
listener = nixl.listen(hello("receiver"))
link = nixl.connect(listener.address, hello("sender"))
links = []
while link.peer is None or not links:
    assert link.failure is None, link.failure
    links += listener.accept()
    time.sleep(0.01)
if {close}:
    for each in (listener, link, *links):
        each.close()
"""

installed = pytest.mark.parametrize("name", [name for name in NAMES if name.values == ("nixl",)])


@installed
@pytest.mark.parametrize("close", [True, False])
def test_a_process_may_end_with_links_of_it(name: str, close: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ENDS.format(close=close)], cwd=ROOT, timeout=60, check=False, capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"terminate" not in done.stderr


def test_where_it_is_not_installed_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "_BUILDS", ("no_such_build_of_nixl",))
    with pytest.raises(ConfigError, match=r"pip install 'trimaran\[nixl\]'"):
        load_nixl()
    with pytest.raises(ConfigError, match="no_such_build_of_nixl"):
        nixl.NixlTransport(KEY)
