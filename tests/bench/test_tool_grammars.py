from .scripts import load_script


def test_shows_every_format_and_count(smollm2, capsys):
    assert load_script("tool_grammars").main([str(smollm2), "--tools", "1", "2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:2] for row in rows] == [[name, count] for name in ("hermes", "qwen3_coder") for count in ("1", "2")]
    assert all(float(number) > 0 for row in rows for number in row[2:])
