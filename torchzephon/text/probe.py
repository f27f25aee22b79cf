"""The probe: texts on which a fast encoder must agree with the reference before it is trusted."""

from __future__ import annotations

# ruff: noqa: RUF001  (lookalike characters are the point)
from torchzephon.text.content import Content

_WORDS = (
    "The quick brown fox jumps over 13 lazy dogs; it's 1,234.56 dollars (don't ask), isn't IT'S I'LL we'Ve",
    "Größenwahn, naïve façade, Œuvre, ŻÓŁĆ, İstanbul ıI, ǅ ǆ ſ ß ẞ ﬁ ﬃ",
    "Привет, мир! Ελληνικά Ἀθῆναι ὈΔΥΣΣΕΎΣ հայերեն ქართული",
    "مرحبا بالعالم ١٢٣ שָׁלוֹם עוֹלָם नमस्ते दुनिया १२३ สวัสดีชาวโลก ๑๒๓ မင်္ဂလာပါ",
    "你好，世界！一二三 こんにちは世界 カタカナ ｶﾀｶﾅ 안녕하세요 세계 한",
    "👋🏽 👩‍👩‍👧‍👦 🇫🇷🇩🇪 ❤️ ☃︎ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🤷🏿‍♀️ 𝒜𝓃𝒹 𝟘𝟙𝟚 𐍈 𠜎",
    "e\u0301 é a\u0308\u0323 a\u0323\u0308 \u0301x q\u0307\u0323 ᾳ'ſ'SA ᾳ\u0345 Å Å ﷺ ½ ² Ⅷ ㎏ ｆｕｌｌ",
    "\x00 a\x00b \x00\x00\x01\x7f\x80\x9f \ufeff \ufffd \u200b\u200c\u200d\u2060 \xad a\u202eb \U000e0001 \U0010ffff",
    "tabs\tand\t\tmore  two   three    four\n\nlines\r\nwindows\rmac\x0bv\x0cf\x85nel\u2028ls\u2029ps\xa0nb\u3000w ",
    "  leading", "trailing  ", " ", "   ", "\n", "\n\n\n", "\r\n\r\n", "\t\t", " \n \n ", "a \n", "a\n b", "",
    "1 12 123 1234 12345 123456789 1a2b3c 0x1F 3.14e-10 1_000 ½3 ²³ ٣٤٥ 一二",
    "'s 's's é'ſ あ'ſ ' s ''ll 'RE 'Ve'D'M'T it’s I’m 'ſ 'K s't's 'll've",
    "def f(x: int) -> list[int]:\n    return [i ** 2 for i in range(x) if i % 3 != 0]  # ok\n\n\n\tif x:\n\t\tpass\n",
    '#include <vector>\nstd::vector<int> v{1,2,3}; /* c */ auto&& y = *v.begin() >>= 1; // "q\\n"\n',
    '{"a": [1, 2.5e3, null], "b": {"c": "\\u00e9"}}\n<p class="x">&amp;</p>\nSELECT * FROM t WHERE a <> \'b\';',
    "https://example.com/a/b?c=d&e=%20f#g user@example.com C:\\dir\\file.txt ./x/../y ~/z $HOME ${A}",
    "...!!??---___***###+++===///\\\\\\|||~~~```\"\"\"''' (((([[[[{{{{ a.b,c;d:e !x ?y .z -w /v //u /\n/",
    "CamelCase HTTPServer iPhone fooBAR BARfoo ABCdefGHI aB Ab AB'S aB's ǅx xǅ ʰx xʰ",
)  # fmt: skip


def probe_texts(content: Content) -> list[str]:
    """Texts that have told encoders apart: scripts, marks, code, digits, spaces, control tokens, long runs.

    The last ones are long enough for what encoders do only to long texts: cut them for several threads, and reuse
    what an earlier text with the same beginning gave.
    """
    texts = [*_WORDS, *(text + text[:7] for text in _WORDS), *(f"\n {text}" for text in _WORDS)]
    texts += ["a" * 300, "aB" * 200, "é" * 150, "中" * 150, " " * 300, "\n" * 100, "1" * 301, "!" * 200, "a b" * 100]
    for token in content.control_tokens[:4] + content.control_tokens[4:][-4:]:
        texts += [
            token,
            f"a{token}b",
            f" {token} ",
            f"{token}{token}\n",
            f"x{token[:-1]}",
            f"{token}'s",
            f"\n{token.upper()}",
        ]
    prose = " ".join(_WORDS[:4]) * 12
    texts += [prose + space + end for space in (" " * 90, "\n" * 40) for end in ("x and on", " ", "\n")]
    texts.append("\n".join(_WORDS) * 5)
    return texts
