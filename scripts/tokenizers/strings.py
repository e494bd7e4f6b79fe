"""Strings that tokenizers go wrong on; ``goldens.py`` writes a thousand to ``tests/data/tokenizers``.

Code points are of ranges that have long been in Unicode: libraries disagree on the newest.
"""

from random import Random

COUNT = 1000

RANGES = [
    *((0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0x7F, 0x9F), (0xA0, 0xFF), (0x100, 0x24F), (0x250, 0x2AF)),
    *((0x300, 0x36F), (0x391, 0x3C9), (0x410, 0x44F), (0x531, 0x556), (0x5D0, 0x5EA), (0x5B0, 0x5BD)),
    *((0x621, 0x64A), (0x64B, 0x652), (0x660, 0x669), (0x6F0, 0x6F9), (0x905, 0x939), (0x93E, 0x94D), (0x966, 0x96F)),
    *((0x985, 0x98C), (0x9E6, 0x9EF), (0xB95, 0xB95), (0xE01, 0xE3A), (0xE40, 0xE4E), (0xE50, 0xE59), (0xF40, 0xF47)),
    *((0x10D0, 0x10F0), (0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2), (0x13A0, 0x13EF), (0x16A0, 0x16EA)),
    *((0x1780, 0x17B3), (0x1E00, 0x1EFF), (0x1F00, 0x1F15), (0x2000, 0x200F), (0x2010, 0x2027), (0x2028, 0x202F)),
    *((0x2030, 0x205E), (0x2070, 0x2071), (0x2074, 0x208E), (0x20A0, 0x20BF), (0x20D0, 0x20F0), (0x2100, 0x214F)),
    *((0x2150, 0x2188), (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x257F), (0x2600, 0x26FF)),
    *((0x2800, 0x28FF), (0x2E80, 0x2E99), (0x2F00, 0x2FD5), (0x3000, 0x303F), (0x3041, 0x3096), (0x30A1, 0x30FA)),
    *((0x3131, 0x318E), (0x3220, 0x3243), (0x3400, 0x4DB5), (0x4E00, 0x9FA5), (0x4E00, 0x9FA5), (0xA000, 0xA48C)),
    *((0xA640, 0xA66D), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFA2D), (0xFB00, 0xFB06), (0xFB50, 0xFBB1)),
    *((0xFE00, 0xFE0F), (0xFE30, 0xFE4F), (0xFEFF, 0xFEFF), (0xFF01, 0xFF5E), (0xFF66, 0xFF9F), (0xFFF9, 0xFFFD)),
    *(
        (0x378, 0x379),
        (0x10000, 0x1000B),
        (0x10330, 0x1034A),
        (0x10400, 0x1044F),
        (0x1D400, 0x1D454),
        (0x1D7CE, 0x1D7FF),
    ),
    *((0x1F1E6, 0x1F1FF), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F910, 0x1F93A)),
    *((0x20000, 0x2A6D6), (0xE0020, 0xE007F), (0x10FFFD, 0x10FFFD)),
]


def _words(text: str) -> list[str]:
    return text.split()


WORDS = _words("""
the The THE and of hello Hello world World's it's I'LL we've don'T 'tis 's 'S 'ſ naïve café Straße Ünïcödé
camelCase HTTPServer snake_case kebab-case __init__ foo.bar(baz) x=1; a[i]+=2 // # $HOME /usr/bin C:\\\\
https://a.b/c?d=e&f#g me@x.org Привет мир ПРИВЕТ γειά σου 你好 世界 中文abc混排 日本語 カタカナ ひらがな 한국어
안녕 สวัสดี नमस्ते مرحبا السلام שלום ქართული ไทย 123 1234567 3.14159 1e-9 0xFF 1,000,000 ½ ² Ⅷ ٣٤٥ १२३ １２３
2026-11-30 12:34:56 +1-555 $9.99 100% №5 ① 👍 🎉 ﷺ ﬁ
""")

PIECES = [
    "def f(x):\n    return x  # comment\n", "\tif (a && b) {\r\n\t\tx++;\r\n\t}\r\n",
    '{"a": [1, 2.5, null], "b\\n": "\\u00e9"}', "<div class='x'>&nbsp;</div>", "SELECT * FROM t WHERE a <> 'b''c';",
    "\\frac{a}{b} \\leq \\infty", "...!?!?--- *** ___", "\u00a0\u2003\u3000", "\u200b\u200c\u200d\u2060\ufeff",
    "e\u0301o\u0308\u0323", "\u0301\u0301\u0301", "\u1112\u1161\u11ab", "각\u11a8", "👨\u200d👩\u200d👧\u200d👦",
    "🏳\ufe0f\u200d🌈", "👍🏽", "🇩🇪🇫🇷🇯", "☎\ufe0f", "1\ufe0f\u20e3", "❤\ufe0f\u200d🔥", "\U000e0067\U000e007f",
    "\u202e\u202aabc\u202c", "a\u0000b", "\x1b[31mred\x1b[0m", "\x7f\x80\x9f", "\r", "\n", "\r\n", "\n\r", "\r\r\n\n",
    "\x0b\x0c\x85\u2028\u2029", "▁", "▁▁", "a▁b", "<0x41>", "<0x0A>", "<0xZZ>", "Ġ", "Ċ", "Ã©", "�", "##ing", "</w>",
    "@@",
]  # fmt: skip

CONTROL = _words("""
<|im_start|> <|im_end|> <|endoftext|> <|eot_id|> <|begin_of_text|> <|start_header_id|>
<|reserved_special_token_7|> <s> </s> <unk> <pad> <bos> <eos> <mask> <start_of_turn> <end_of_turn> <unused7>
[multimodal] <h1> </table> [INST] [/INST] [TOOL_CALLS] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [ARGS] [THINK]
[AVAILABLE_TOOLS] [REF] [REFERENCE_DOC_3] <SPECIAL_36> [BOS] [EOS] [EOT] [PAD] [gMASK] <sop> <|user|>
<|assistant|> <|observation|> <|im_user|> <|im_middle|> <|tool_call_begin|> ]~b] ]~!b[ [e~[ <｜User｜>
<｜Assistant｜> <｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜tool▁calls▁begin｜> ｜DSML｜ <think> </think>
<tool_call> </tool_call> <tool_response> <|fim_prefix|> <|channel|> <|return|> <|reserved_token_163590|>
<control_8>
""")

RUNS = [
    " ",
    " ",
    "\n",
    "\t",
    "\r\n",
    "  \n",
    "a",
    "A",
    "=",
    "-",
    ".",
    "0",
    "9",
    "é",
    "中",
    "ー",
    "क",
    "\u0301",
    "🎉",
    "\u00a0",
    "▁",
    "\u3000",
    "ab",
    "'",
]


def adversarial_strings(seed: int = 0) -> list[str]:
    """``COUNT`` different strings of 1 to about 500 characters: each list above alone, then mixtures of all."""
    draw = Random(seed)
    found = dict.fromkeys([*PIECES, *CONTROL, *(run * length for run in RUNS for length in (2, 3, 7, 40, 300))])
    while len(found) < COUNT:
        found["".join(_fragment(draw) for _ in range(draw.randint(1, 10)))[: draw.choice((20, 80, 500))]] = None
    return list(found)[:COUNT]


def _fragment(draw: Random) -> str:
    kind = draw.randrange(8)
    if kind == 0:  # one script
        low, high = draw.choice(RANGES)
        return "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 12)))
    if kind == 1:  # all scripts at once
        return "".join(chr(draw.randint(*draw.choice(RANGES))) for _ in range(draw.randint(1, 12)))
    if kind == 2:
        return "".join(draw.choice(" \t\n\r\u00a0\u3000\v") for _ in range(draw.randint(1, 12)))
    if kind == 3:
        return draw.choice(PIECES)
    if kind == 4:  # whole, or cut somewhere
        token = draw.choice(CONTROL)
        return token[draw.choice((0, 0, 1)) : draw.choice((len(token), len(token), len(token) // 2))]
    if kind == 5:
        return draw.choice(RUNS) * draw.randint(2, 30)
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 8))) + draw.choice(("", " ", "\n"))
