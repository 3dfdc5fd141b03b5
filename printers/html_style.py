"""How traces look on a page: the style sheet that `printers/html.py` and `printers/difference.py` put before their text."""

from __future__ import annotations

_LIGHT = (
    "--tm-text:#24292f;--tm-comment:#6a737d;--tm-keyword:#a626a4;--tm-string:#2a7a3b;--tm-number:#986801;"
    "--tm-operation:#0b5cad;--tm-lit:#ffe58f;--tm-target:#e3effc;--tm-tip:#24292f;--tm-tip-text:#f6f8fa;"
    "--tm-removed:#ffebe9;--tm-added:#e2f6e6;--tm-changed:#fff5d6;--tm-edge:#d0d7de"
)
_DARK = (
    "--tm-text:#d4d7dd;--tm-comment:#8b949e;--tm-keyword:#d59df6;--tm-string:#9bd28f;--tm-number:#e5b567;"
    "--tm-operation:#79b8ff;--tm-lit:#6b5500;--tm-target:#14324f;--tm-tip:#e6e9ee;--tm-tip-text:#1c2128;"
    "--tm-removed:#4a2328;--tm-added:#1b3a26;--tm-changed:#423711;--tm-edge:#3d444d"
)

_RULES = """\
.tracemill{position:relative;color:var(--tm-text);margin:.5em 0;text-align:left}
.tracemill pre{margin:0;padding:.4em 0;overflow-x:auto;background:none;border:0;color:inherit;white-space:pre;\
font:13px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
.tracemill .c{color:var(--tm-comment)}
.tracemill .k{color:var(--tm-keyword)}
.tracemill .s{color:var(--tm-string)}
.tracemill .m{color:var(--tm-number)}
.tracemill .operation,.tracemill a.operation:visited{color:var(--tm-operation);text-decoration:none;cursor:help}
.tracemill a.operation{cursor:pointer}
.tracemill a.operation:hover{text-decoration:underline}
.tracemill .value{border-radius:3px;cursor:help}
.tracemill .line :target{scroll-margin:4em}
.tracemill .line:has(:target){background:var(--tm-target)}
.tracemill .del{opacity:.55}
.tracemill [data-tip]:hover::before{content:attr(data-tip);position:absolute;z-index:10;\
transform:translateY(calc(-100% - .35em));margin-left:-.5em;padding:.35em .7em;border-radius:5px;white-space:pre;\
text-decoration:none;pointer-events:none;background:var(--tm-tip);color:var(--tm-tip-text);\
box-shadow:0 2px 8px rgba(0,0,0,.35)}
.tracemill table{border-collapse:collapse;border:0;margin:0;width:100%;table-layout:fixed;\
font:13px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
.tracemill tr,.tracemill tr:nth-child(n){background:none;border:0}
.tracemill th,.tracemill td{padding:0 .6em;border:0;text-align:left;vertical-align:top;white-space:pre-wrap;color:inherit}
.tracemill th{font-weight:600;border-bottom:1px solid var(--tm-edge)}
.tracemill td+td,.tracemill th+th{border-left:1px solid var(--tm-edge)}
.tracemill tr.removed td:first-child{background:var(--tm-removed)}
.tracemill tr.added td:last-child{background:var(--tm-added)}
.tracemill tr.changed td{background:var(--tm-changed)}
.tracemill .summary{color:var(--tm-comment);font-size:12px;padding:.3em .6em}
.tracemill mark{background:var(--tm-lit);color:inherit;border-radius:2px}
"""


def _under(selectors: str) -> str:
    return ",".join(f"{selector} .tracemill" for selector in selectors.split(","))


# The page's own choice (of a notebook, an editor or a documentation theme) wins over the system's.
STYLE = f"""\
.tracemill{{{_LIGHT}}}
@media (prefers-color-scheme:dark){{.tracemill{{{_DARK}}}}}
{_under('[data-jp-theme-light="true"],[data-theme="light"],.vscode-light')}{{{_LIGHT}}}
{_under('[data-jp-theme-light="false"],[data-theme="dark"],.vscode-dark')}{{{_DARK}}}
{_RULES}"""


def lit_up(count: int) -> str:
    """The rule that lights up all uses of the value under the pointer, for values of classes v0, v1, ..."""
    if not count:
        return ""
    selectors = ",".join(f".tracemill:has(.v{n}:hover) .v{n}" for n in range(count))
    return f"{selectors}{{background:var(--tm-lit)}}\n"
