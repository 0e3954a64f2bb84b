"""How the report looks: on a screen, in the dark, on a phone, on paper.

What lives here: the style sheet, which is part of the page.
"""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #566575; --line: #d8dfe6;
  --paper: #fff; --tier: #2f6fb2; --local: #c9a227; --index: #6fcf97; --bad: #b3392f;
  --shade: #eef2f6; }
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; padding: 1rem; max-width: 64rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; break-after: avoid; }
p { margin: .3rem 0; } .soft { color: var(--soft); } .bad { color: var(--bad); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem;
  margin: 1rem 0; }
.facts div { background: var(--shade); border-radius: .4rem; padding: .5rem .7rem; }
.facts b { display: block; font-size: 1.25rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: middle; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; overflow-wrap: normal; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.when { white-space: nowrap; }
th.name { width: 34%; } th.bar { width: 30%; }
th:last-child, td:last-child { padding-right: 0; }
svg { display: block; width: 100%; height: .8rem; border-radius: .12rem; }
.key span { display: inline-block; margin-right: 1rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem;
  margin-right: .3rem; vertical-align: -.05rem; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e3e9ef; --soft: #9fb0c0;
  --line: #33404d; --paper: #12181f; --tier: #4d8fd6; --local: #d9b64a; --index: #8ee3b0;
  --bad: #ff8a7d; --shade: #1f2832; } }
@media screen and (max-width: 40rem) {
  table, thead, tbody { display: block; }
  tr { display: grid; grid-template-columns: repeat(var(--n), minmax(0, 1fr));
    column-gap: .4rem; padding: .3rem 0; border-bottom: 1px solid var(--line); }
  th, td, td.n, td.when { border: 0; padding: .05rem 0; font-size: .85rem; white-space: normal; }
  th.name, th.bar { width: auto; }
  th.name, td.name, td.bar { grid-column: 1 / -1; } td.name { font-size: 1rem; }
  th.bar, th.name:empty { display: none; } }
@media print { :root { color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 11px; }
  .facts { grid-template-columns: repeat(6, 1fr); } tr, .facts div { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
