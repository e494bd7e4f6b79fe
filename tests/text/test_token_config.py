import pytest

from trimaran.base.errors import CheckpointError
from trimaran.text.token_config import TokenConfig


@pytest.mark.parametrize(("value", "ends"), [(None, set()), (2, {2}), ([2, 3], {2, 3})])
def test_end_ids_are_an_id_or_several(tmp_path, value, ends):
    assert TokenConfig.read(tmp_path, {"eos_token_id": value}).end_ids == ends


@pytest.mark.parametrize("value", [[[2]], {"a": 1}, [{}], "2", [2, None], True])
def test_what_is_no_id(tmp_path, value):
    with pytest.raises(CheckpointError, match="eos_token_id"):
        TokenConfig.read(tmp_path, {"eos_token_id": value})
