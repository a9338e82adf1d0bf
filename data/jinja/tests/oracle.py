"""Writes `oracle.json`: small templates, and what Jinja2 writes for them as `transformers` sets it up.

    python data/jinja/tests/oracle.py        # transformers 5.23, jinja2 3.1.6
    python data/jinja/tests/oracle.py DIR    # writes DIR/published.json: every DIR/*.jinja with every conversation, for CROSSWEAVE_TEMPLATES=DIR

`values` are JSON texts of the variable `v` (`null` as text: `v` is not given), or expressions that begin with `=`. `each` holds for every template
the result with every value: a string, or `null` where Python raises, or `false` where the result names a place in memory (and differs in every run). `alone` holds pairs of a
template and its result with the `context`. `numbers` holds JSON texts of numbers with Python's `str`.
"""
import json, random, re, sys
from pathlib import Path
from transformers.utils.chat_template_utils import _compile_jinja_template as compile_template

VALUES = [None, "null", "true", "false", "0", "-7", "12345678901234567890123", "1.5", "-0.0", "1e20", "1e-7", "2.5", '""', '"Hello World"',
          '"a<b>&\'c\'\\n  x\\t\\u00c4\\u00df"', '"42"', '" -3.9 "', '"0x1F"', '"one two  three"', "[]", '[1, "a", null]', "[3, 1, 2]", '["b", "A", "a"]',
          '[{"n": 2, "s": "x"}, {"n": 1, "s": "y"}, {"n": 2}]', "{}", '{"b": 1, "a": [1], "C": null}', "=(1, 2)", "=('x',)", "=range(3)", "=[1, 2] | map('string')",
          "={'k': 'v'}.items()", "=namespace(a=1)", "=raise_exception"]

FILTERS = ["abs", "attr('upper')", "attr('b')", "batch(2)", "batch(2, 'x')", "capitalize", "center(9)", "count", "default('d')", "default('d', true)", "d", "dictsort",
           "dictsort(true)", "dictsort(false, 'value')", "dictsort(reverse=true)", "e", "escape", "forceescape", "filesizeformat", "filesizeformat(true)", "first", "float",
           "float(7)", "format(1)", "format(a=1)", "format", "groupby('n')", "groupby('s', default='z')", "indent", "indent(2, true)", "indent('> ', true, true)", "int", "int(5)", "int(0, 16)",
           "int(0, 0)", "items", "join", "join(', ')", "join('|', 'n')", "last", "length", "list", "lower", "map('upper')", "map(attribute='n')", "map(attribute='n', default=9)",
           "map('int')", "max", "min", "max(attribute='n')", "min(true)", "reject", "reject('none')", "rejectattr('n')", "rejectattr('n', 'eq', 2)", "replace('a', 'b')", "replace('l', '', 1)",
           "replace('', '-')", "replace(1, 2)", "reverse", "round", "round(1)", "round(-1)", "round(1, 'floor')", "round(0, 'ceil')", "round(method='x')", "safe", "select", "select('string')",
           "select('gt', 1)", "selectattr('s')", "selectattr('n', 'equalto', 2)", "slice(2)", "slice(2, 'x')", "sort", "sort(true)", "sort(case_sensitive=true)", "sort(attribute='n')",
           "string", "sum", "sum('n')", "sum(start=10)", "title", "trim", "trim('H d')", "truncate(5)", "truncate(5, true)", "truncate(5, true, '', 0)", "truncate(2)", "unique",
           "unique(true)", "unique(attribute='n')", "upper", "urlencode", "wordcount", "xmlattr", "tojson", "tojson(indent=2)", "tojson(true)", "tojson(sort_keys=true)",
           "tojson(separators=(',', ':'))", "nothing", "pprint", "striptags", "wordwrap(5)", "urlize", "length(1)", "first(1)", "list | tojson", "string | length"]
TESTS = ["odd", "even", "divisibleby 3", "divisibleby(0)", "defined", "undefined", "filter", "test", "none", "boolean", "false", "true", "integer", "float", "lower", "upper", "string",
         "mapping", "number", "sequence", "iterable", "callable", "sameas none", "sameas true", "escaped", "in [1, 'a', -7]", "in 'Hello World 42'", "eq 1.5", "ne 0", "gt 1", "ge 0", "lt 'b'",
         "le 3", "equalto 'A'", "greaterthan(-1)", "lessthan 5", "nothing", "not none", "not defined"]
METHODS = ["capitalize()", "casefold()", "center(8, '*')", "center(7)", "count('l')", "count('')", "count(1)", "encode()", "endswith('d')", "endswith(('x', 'd'))", "expandtabs(4)", "find('o')",
           "find('o', 5)", "find('o', -3, 99)", "rfind('o')", "index('o')", "rindex('o')", "index(1)", "index('zz')", "format(1)", "isalnum()", "isalpha()", "isascii()", "isdecimal()", "isdigit()",
           "isidentifier()", "islower()", "isnumeric()", "isprintable()", "isspace()", "istitle()", "isupper()", "join(['x', 'y'])", "join([1])", "join('ab')", "ljust(8, '.')", "rjust(8)", "zfill(8)",
           "lower()", "upper()", "swapcase()", "title()", "lstrip()", "rstrip()", "strip()", "strip('Hd')", "lstrip('H')", "partition(' ')", "rpartition(' ')", "partition('')", "removeprefix('Hello')",
           "removesuffix('ld')", "replace('l', 'L', 1)", "replace('l', 'L')", "split()", "split(' ')", "split(none, 1)", "split(' ', 1)", "split(' ', maxsplit=0)", "split('')", "rsplit()", "rsplit(' ', 1)",
           "rsplit(none, 1)", "rsplit(maxsplit=1)", "splitlines()", "splitlines(true)", "startswith('He')", "startswith('lo', 3)", "startswith(1)", "translate({97: 'X', 98: none})", "items()", "keys()", "values()",
           "get('a')", "get('z')", "get('z', 5)", "get()", "copy()", "append(1)", "pop()", "update({})", "setdefault('a')", "sort()", "fromkeys([1, 2])", "bit_length()", "is_integer()", "real", "upper", "nothing", "nothing()",
           "__class__", "b", "a[0]", "n"]
FORMS = ["v", "v ~ 'x'", "[v]", "(v,)", "{'k': v}", "not v", "v + 1", "v + 'x'", "1 + v", "v - 1", "v * 2", "v * -1", "v / 2", "v // 2", "v % 2", "v ** 2", "2 ** v if v is not integer or v < 100", "-v", "+v", "v == v", "v == 0", "v == 1.5", "v != none", "v < 1",
         "v > 'a'", "v <= [1]", "v in 'Hello'", "v in [0, '']", "v not in {}", "1 in v", "'a' in v", "v[0]", "v[-1]", "v['b']", "v[1:]", "v[::-1]", "v[:2]", "v[1.0]", "v[none]", "v.b", "v and 1", "v or 1", "v if v", "v | string ~ v",
         "v is iterable and v | length > 0", "v(1)", "'%s' % v", "'%r|%5s|%-5s|' % (v, v, v)", "'%d' % v", "'%x' % v", "'%.2f' % v", "'%g' % v", "'%05d' % v", "'{}'.format(v)", "'{!r:>8}'.format(v)", "'{:5}|{:<5}|{:^5}'.format(v, v, v)",
         "'{:d}'.format(v)", "'{:,}'.format(v)", "'{:.2f}'.format(v)", "'{:.3}'.format(v)", "'{:e}'.format(v)", "'{:+}'.format(v)", "'{:x}'.format(v)", "'{:08.3f}'.format(v)", "'{0.b}'.format(v)", "'{0[0]}'.format(v)", "'{a}'.format(a=v)",
         "dict(v)", "namespace(v)", "range(v) | list", "cycler(v).next()", "dict(a=v)", "[1, 2][v]", "{1: 2}[v]", "{v: 1}", "'abc'[v]", "(v, 1) < (v, 2)"]
STATEMENTS = ["{% for x in v %}{{ loop.index }}{{ x }};{% else %}none{% endfor %}", "{% for a, b in v %}{{ a }}={{ b }};{% endfor %}", "{% set a, b = v %}{{ a }}{{ b }}", "{% if v %}yes{% else %}no{% endif %}",
              "{% for x in v if x %}{{ loop.last }}{{ x }};{% endfor %}", "{% for k, w in v.items() %}{{ k }}{{ w }}{% endfor %}", "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(v, v, k=v) }}", "{% set ns = namespace(a=v) %}{% set ns.b = v %}{{ ns.a }}{{ ns.b }}",
              "{% for x in v | reverse %}{{ x }}{% endfor %}", "{% set it = v | select %}{{ it | first }}{{ it | list }}{{ it | list }}", "{% filter upper %}{{ v }}{% endfilter %}", "{% for x in v %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}{{ loop.revindex }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.length }}{% endfor %}",
              "{% with w = v %}{{ w }}{% endwith %}{{ w }}", "{{ (v | safe) + '<' }}{{ (v | e) ~ '<' }}"]

ALONE = [
    # What opens, closes and trims.
    "a\n{% if true %}\n  b\n{% endif %}\nc\n", "  {% if true %} x {% endif %}  \n", "x {%- if true -%}  y  {%- endif -%} z", "{%+ if true %}\n{%+ endif %}\n", "  {%+ if true +%}\n x{% endif %}", "a {{- 'b' -}} c", "{{+ 'b' }}", "{# c #}\nx\n{#- c -#}\n y", "  {# c #}\n  z",
    "{% raw %}{{ x }}{% if %}{% endraw %}", " {%- raw -%} {{ x }} {%- endraw -%} ", "{% raw %}\na{% endraw %}\nb", "\n\nx\n\n", "x\r\ny\rz\r\n", "{{ '}}' }}{{ '%}' }}", "{{ {'a': {'b': 1}} }}", "{{ {'a':{}}}}", "{%if true%}a{%endif%}", "\t{% set x = 1 %}\n\t{{ x }}\n",
    # Literals.
    "{{ 'a\\\nb' }}", "{{ 'a\\n\\t\\x41\\u00e9\\U0001f600\\101\\q\\'\"' }}", "{{ 'a' \"b\" 'c' }}", "{{ 1_000 }}{{ 0x1f }}{{ 0o17 }}{{ 0b101 }}{{ 1e3 }}{{ 1.5e-7 }}{{ 00 }}", "{{ 1.real }}", "{{ 10 ** 25 }}{{ 2 ** 100 }}{{ -2 ** 2 }}{{ 2 ** 3 ** 2 }}{{ 2 ** -1 }}", "{{ True }}{{ False }}{{ None }}{{ true }}{{ none }}", "{{ () }}{{ (1,) }}{{ 1, 2 }}", "{{ [1, [2, {'a': 'b\\'c'}], 'x\"y\\'z'] }}", "{{ 'tab\\t\\x00\\x7f\\u200b\\u00ad\\ud55c' | list }}", "{{ '\\ud83d' }}", "{{ 'é\\é' }}", "{{ 9007199254740993 + 0 }}{{ 9223372036854775807 + 1 }}{{ -9223372036854775808 - 1 }}",
    "{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 // -2 }}{{ 7 % 3 }}{{ -7 % 3 }}{{ 7 % -3 }}{{ 7.5 // 2 }}{{ -7.5 % 2 }}{{ 1 / 3 }}{{ 10 / 5 }}{{ 10 ** 30 / 7 }}{{ 10 ** 30 // 7 }}{{ 10 ** 30 % 7 }}{{ -(10 ** 30) // 7 }}", "{{ 1e16 }}{{ 123456789012345680.0 }}{{ 0.1 + 0.2 }}{{ 1e15 }}{{ 1e-4 }}{{ 1e-5 }}{{ 5e-324 }}{{ 1.7976931348623157e308 }}{{ -0.0 }}", "{{ 1e400 }}", "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 5.0 % 0 }}", "{{ 0.0 ** -1 }}", "{{ (-8) ** 0.5 }}", "{{ 1 == 1.0 }}{{ true == 1 }}{{ 9007199254740993 == 9007199254740992.0 }}{{ 10 ** 25 > 1e25 }}{{ 10 ** 25 == 1e25 }}",
    "{{ true + true }}{{ true * 3 }}{{ -true }}{{ 'a' * true }}{{ [1] * 2 }}{{ 2 * (1,) }}{{ 'ab' * -1 }}", "{{ 1 < 2 < 3 }}{{ 1 < 2 > 5 }}{{ 3 > 2 == 2 }}", "{{ not 1 == 2 }}{{ not (1 in [1]) }}{{ 1 not in [2] }}", "{{ 1 if true else 2 }}{{ 1 if false }}{{ 'a' if false else 'b' if false else 'c' }}", "{{ 1 + 2 ~ 3 * 2 }}{{ 1 ~ 2 + 3 }}{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }}", "{{ -1 | abs }}{{ (-1) | abs }}{{ 2 + 3 | string }}{{ 'x' is string and 'y' is none or 3 }}", "{{ 'a' < 'b' }}{{ 'Z' < 'a' }}{{ [1, 2] < [1, 3] }}{{ (1,) < (1, 0) }}", "{{ 'a' < 1 }}", "{{ none < 1 }}", "{{ {} < {} }}", "{{ 'b' in 'abc' }}{{ 1 in {1: 2} }}{{ 'x' in {} }}{{ 2 in range(3) }}{{ 2.0 in range(3) }}{{ 1.5 in range(3) }}", "{{ 1 in 'abc' }}",
    # Names and scopes.
    "{{ x }}{{ x | length }}{{ x is defined }}", "{{ x.y }}", "{{ x['y'] }}", "{{ x() }}", "{{ d.x.y }}", "{{ d.x }}{{ d['x'] }}{{ d.x is defined }}", "{{ x + 1 }}", "{{ x == y }}{{ x != y }}{{ x == none }}", "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% if true %}{% set x = 5 %}{% endif %}{{ x }}", "{% for i in [1] %}{% if true %}{% set z = 5 %}{% endif %}{{ z }}{% endfor %}{{ z }}", "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m() %}{{ y }}{% endmacro %}{% for y in [1] %}{{ m() }}{% endfor %}",
    "{% macro m(a, b=a ~ '!', c=3) %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(c=5, a=4) }}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}x{% endcall %}", "{% macro w() %}<{{ caller('q', 2) }}>{% endmacro %}{% call(a, b=1) w() %}{{ a }}{{ b }}{% endcall %}", "{% macro w() %}{{ caller is defined }}{% endmacro %}{{ w() }}", "{% macro m(caller) %}{{ caller() }}{% endmacro %}{% call m() %}z{% endcall %}",
    "{% set x %}a{{ 1 }}b{% endset %}{{ x | upper }}{{ x is string }}", "{% set x | upper | replace('A', 'z') %}a{{ 1 }}b{% endset %}{{ x }}", "{% set ns = namespace(a=1, b='x') %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}{{ ns }}", "{% set d.x = 1 %}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns['b'] }}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}", "{% set a, b = 1 %}", "{% set a, b = [1, 2, 3] %}", "{% set a, b = [1] %}", "{% with a=1, b=2 %}{{ a + b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}", "{% filter upper | replace('A', 'b') %}a{% set in = 2 %}{{ in }}{% endfilter %}{{ in }}", "{% block b %}x{{ d.a }}{% endblock %}", "{% for i in [1] %}{% block c scoped %}y{% endblock c %}{% endfor %}", "{% print 1, 2 %}",
    # Loops.
    "{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in [] %}x{% else %}e{% endfor %}", "{% for i in [1] if i > 1 %}x{% else %}e{% endfor %}", "{% for i in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}|{% endfor %}", "{% for i in [1, 2] %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.previtem is defined }}{% endfor %}", "{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in range(5) if i % 2 == 0 %}{{ i }}{{ loop.length }}{{ loop.last }};{% endfor %}", "{% for i in [1, 2] %}{% for j in [3, 4] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for i in [1, 2] %}{{ loop }}{% endfor %}{{ loop }}", "{% for i in [[1, [2]], 3] recursive %}{% if i is iterable %}({{ loop(i) }}){{ loop.depth }}{% else %}{{ i }}{% endif %}{% endfor %}", "{% for i in [1] %}{{ loop([]) }}{% endfor %}", "{% set ns = namespace(n=0) %}{% for i in range(6) if ns.n < 2 %}{% set ns.n = ns.n + 1 %}{{ i }}{% endfor %}", "{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}", "{% for c in 'héy' %}{{ c }},{% endfor %}", "{% for i in none %}{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for i in range(3) | reverse %}{{ i }}{% endfor %}{% for i in range(10, 0, -3) %}{{ i }},{% endfor %}{{ range(3) }}{{ range(0, 10, 2) }}", "{{ range(0, 1, 0) }}", "{{ range(200000) }}", "{% for i in [3, 1, 2] | sort %}{{ i }}{% endfor %}",
    "{% for m in messages %}{{ loop.index0 }}:{{ m.role }}:{{ m['content'] }}:{{ m.get('x', '-') }}\n{% endfor %}", "{{ messages[0].role }}{{ messages[-1]['role'] }}{{ messages[1:] | length }}{{ messages[::-1][0].role }}{{ messages[5] is defined }}", "{{ messages | map(attribute='role') | join(',') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ (messages | last).content }}", "{{ messages | tojson }}", "{{ messages | tojson(indent=4) }}", "{{ messages }}", "{{ d.items() }}{{ d.keys() }}{{ d.values() | list }}{{ d | items | list }}{{ d | dictsort }}", "{{ d.a }}{{ d['a'] }}{{ d.get('a') }}{{ d.items is defined }}{{ d['items'] is defined }}", "{{ {'items': 1}.items }}", "{{ {'items': 1}['items'] }}{{ {'x': 1}.x }}{{ {'x': 1}['x'] }}{{ {1: 2, 1.0: 3, true: 4} }}{{ {'a': 1, 'b': 2, 'a': 3} }}", "{{ [1, 2, 3][1:] }}{{ (1, 2, 3)[::-1] }}{{ 'héllo'[1:-1] }}{{ 'abc'[::2] }}{{ 'abc'[5:] }}{{ [1, 2][-9:9] }}{{ 'abc'[-1] }}", "{{ 'abc'[10] }}{{ [1][3] is defined }}", "{{ 'abc'[::0] }}", "{{ {'a': 1}.pop('a') }}", "{{ [].append(1) }}", "{% do [] %}", "{{ [1, 2].append }}", "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}", "{{ d.__class__ }}", "{{ '{0.__class__}'.format(1) }}", "{{ 'x'.upper }}", "{{ range }}", "{{ cycler('a', 'b').next() }}{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}", "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b", "{{ dict(a=1, **{'b': 2}) }}{{ dict([('x', 1)]) }}{{ dict.fromkeys([1, 2]) }}", "{{ range(*[1, 4]) | list }}", "{{ raise_exception('no') }}", "{% if false %}{{ raise_exception('no') }}{% endif %}ok",
    "{{ 'a' | nothing }}", "{{ 'a' is nothing }}", "{{ true is divisibleby }}", "{{ 4 is divisibleby 2 }}{{ 3 is odd }}{{ 3 is not odd }}{{ 'a' is in 'abc' }}{{ none is none }}", "{{ 1 is string is true }}", "{{ [1, none, 0, 'a'] | select | list }}{{ [1, 2, 3] | select('odd') | list }}{{ ['a', 'b'] | reject('equalto', 'a') | list }}", "{{ 'abc' | map('upper') | join }}", "{{ [3, 1, 2] | sort(reverse=true) }}{{ ['b', 'A'] | sort }}{{ ['b', 'A'] | sort(case_sensitive=true) }}", "{{ [1, 'a'] | sort }}", "{{ [{'a': {'b': 2}}, {'a': {'b': 1}}] | sort(attribute='a.b') | map(attribute='a.b') | list }}", "{{ [[1, 'x'], [0, 'y']] | map(attribute=1) | list }}{{ [[1, 'x']] | map(attribute='1') | first }}", "{% for g in [{'k': 'B', 'v': 1}, {'k': 'a', 'v': 2}, {'k': 'b', 'v': 3}] | groupby('k') %}{{ g.grouper }}{{ g.list | map(attribute='v') | list }}{{ g[0] }}{% endfor %}", "{{ [1, 2, 3, 4, 5] | batch(2) | list }}{{ [1, 2, 3, 4, 5] | batch(2, 0) | list }}{{ [1, 2, 3, 4, 5] | slice(2) | list }}", "{{ [1, 1, 'a', 'A'] | unique | list }}", "{{ (1, 2) | map('string') }}", "{{ [1] | select | length }}", "{{ [[1], [2]] | sum(start=[]) }}{{ [1.5, 2] | sum }}", "{{ ['a'] | sum }}", "{{ '<a & b>' | e }}{{ '<' | safe }}{{ '<' | e | e }}{{ '<' | forceescape }}{{ ('<' | e) + '>' }}{{ ('<' | e) ~ '>' }}{{ '<' | e | upper }}{{ '<' | escape is escaped }}", "{{ 'it''s' }}", "{{ 1.5 | round }}{{ 2.5 | round }}{{ 0.125 | round(2) }}{{ 5 | round }}{{ 42.55 | round(1, 'floor') }}{{ 1234 | round(-2) }}{{ 15.0 | round(-1) }}{{ 3.7 | int }}{{ '3.7' | int }}{{ 'x' | int(9) }}{{ '1_000' | int }}{{ '0b11' | int(0, 2) }}{{ '  7 ' | float }}{{ 'inf' | float }}{{ '1e3' | float | int }}",
    "{{ '%s and %r, %d%%, %5.2f|%-6s|%06d|%x|%X|%o|%e|%g|%c' | format('a', 'b', 3, 2.5, 'l', 42, 255, 255, 8, 12345.678, 1e-5, 'c') }}", "{{ '%(a)s-%(b)d' % {'a': 1, 'b': 2} }}{{ '%s' % none }}{{ '%s' % [1, 2] }}{{ '%s %s' % (1, 'b') }}{{ '%.3s|%+d|% d|%#x|%5s|%*d' % ('abcdef', 5, 5, 255, 'a', 4, 7) }}", "{{ '%d' % 'a' }}", "{{ '%s %s' % 'a' }}", "{{ '%s' % (1, 2) }}", "{{ 'a' % 1 }}", "{{ '%d' % 2.9 }}{{ '%i' % true }}{{ '%f' % 1 }}{{ '%G' % 1e20 }}{{ '%.0f' % 2.5 }}{{ '%g' % 100000 }}{{ '%g' % 1000000 }}{{ '%#g' % 1 }}", "{{ '{} {}'.format(1, 'a') }}{{ '{1}{0}'.format('a', 'b') }}{{ '{a}{b[0]}{b[1]}{c.x}'.format(a=1, b=[2, 3], c={'x': 4}) }}{{ '{{}}'.format() }}{{ '{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:+d}|{:,}|{:_}|{:x}|{:#x}|{:b}|{:o}|{:.2f}|{:.1%}|{:e}|{:g}'.format('a', 'b', 'c', 'd', 42, 7, 1234567, 1234567, 255, 255, 5, 8, 3.14159, 0.256, 12345.678, 0.0001) }}{{ '{!r}|{!s}|{!a}'.format('é', 'é', 'é') }}{{ '{:{w}.{p}f}'.format(3.14159, w=8, p=2) }}", "{{ '{}{0}'.format(1) }}", "{{ '{'.format() }}", "{{ '}'.format() }}", "{{ '{2}'.format(1) }}", "{{ '{x}'.format() }}", "{{ '{:d}'.format('a') }}", "{{ '{:5}'.format(none) }}", "{{ '{:5}|{:<5}|{:05}|{:.3}|{:10.4}|{}'.format(1.5, 1.5, 1.5, 1234.5678, 0.00001234, 1e16) }}", "{{ '{a}'.format_map({'a': 1}) }}",
    "{{ 'ß'.upper() }}{{ 'ΑΣ'.lower() }}{{ 'ǆ'.title() }}{{ 'ßx'.capitalize() }}{{ 'ﬁx'.title() }}{{ 'İ'.lower() | length }}{{ 'Straße'.casefold() }}{{ 'éÉ'.swapcase() }}{{ '²'.isdigit() }}{{ '½'.isnumeric() }}{{ '٣'.isdecimal() }}{{ 'ⅷ'.isalpha() }}{{ 'ª'.isalpha() }}{{ '一'.isnumeric() }}{{ 'aͅ'.isalpha() }}{{ 'A1'.istitle() }}", "{{ 'they\\'re bill\\'s friends-from (the uk)'.title() }}|{{ 'they\\'re bill\\'s friends-from (the uk)' | title }}", "{{ 'a\\x1cb\\x85c\\u2028d\\r\\ne\\x0bf' | list | length }}{{ 'a\\x1cb\\x85c\\u2028d\\r\\ne\\x0bf'.splitlines() }}", "{{ ' a b ' .split(' ') }}{{ ' a  b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}", "{{ '\\u00a0x\\u3000'.strip() }}|{{ 'xxhixx'.strip('x') }}|{{ 'abc'.strip('') }}", "{{ 'hello world foo' | truncate(8) }}|{{ 'a b' | wordcount }}|{{ 'x-y z_1 é' | wordcount }}|{{ 'a b&c/d' | urlencode }}|{{ {'a b': 'c&', 'd': 1} | urlencode }}", "{{ 'a\\n\\nb\\n' | indent(2) }}|{{ 'a\\nb' | indent('> ', true) }}|{{ 'a\\n\\nb' | indent(2, blank=true) }}", "{{ 12345 | filesizeformat }}{{ 1 | filesizeformat }}{{ 1000000 | filesizeformat(true) }}", "{{ 'é\"\\\\\\n\\u2028\\x7f\\x01' | tojson }}{{ 'é\\x7f😀' | tojson(ensure_ascii=true) }}{{ {'a': none, 'b': [true, 1.0, 1e100], 'c': {}, 'd': []} | tojson(indent=2) }}{{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}{{ (1, 2) | tojson }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}{{ 1e400 | tojson }}{{ [] | tojson(indent=1) }}{{ [1, {'a': [2]}] | tojson(indent='--') }}", "{{ x | tojson }}", "{{ {(1, 2): 3} | tojson }}", "{{ range(3) | tojson }}",
    "{{ true | string }}{{ none | string }}{{ 1.0 | string }}{{ [1] | string | length }}{{ 123 | length }}", "{{ [1, 2] | first }}{{ [] | first }}{{ [] | last is defined }}{{ 'abc' | last }}{{ {'a': 1} | first }}{{ range(3) | last }}", "{{ [1, 2, 3] | max }}{{ ['b', 'A'] | min }}{{ [] | max }}{{ 'hello' | max }}", "{{ 'a' | default('b') }}{{ x | default('b') }}{{ none | default('b') }}{{ '' | default('b', true) }}{{ x | d }}", "{{ [1, 2] | join }}{{ ['a', none, 1.0] | join('-') }}{{ x | join(',') }}{{ 'abc' | join('.') }}", "{{ 'abc' | reverse }}{{ [1, 2] | reverse | list }}{{ {'a': 1, 'b': 2} | reverse | list }}{{ 'abc' | list }}{{ {'a': 1} | list }}", "{{ (1, 2, 1).count(1) }}{{ [1, 2].index(2) }}{{ [1, 2].count(3) }}{{ [1, 2].copy() }}{{ range(5).count(2) }}{{ range(3, 9).index(5) }}", "{{ [1].index(2) }}", "{{ 10 | string | int + 5 }}{{ '5' * 3 }}{{ '5' | int * 3 }}", "{{ (2 ** 70) | string | length }}{{ (2 ** 70) | tojson }}{{ 2 ** 70 ~ '' }}{{ [2 ** 70] }}{{ (2 ** 70) // 3 }}{{ (2 ** 70) | float }}{{ '12345678901234567890123' | int }}{{ 12345678901234567890123 | abs }}", "{{ [1] is sameas [1] }}{% set q = [1] %}{{ q is sameas q }}{{ none is sameas none }}{{ true is sameas 1 }}", "{{ 'lower' is filter }}{{ 'x' is filter }}{{ 'odd' is test }}{{ range is callable }}{{ x is callable }}{{ 'a' is callable }}", "{{ [undefined] }}{{ [x] }}{{ {'a': x} }}",
    # What is no template.
    "{{", "{{ 1", "{% if true %}", "{% endif %}", "{% if %}{% endif %}", "{{ 1 + }}", "{{ ) }}", "{{ (1 }}", "{{ 'a }}", "{% for %}{% endfor %}", "{% for x in %}{% endfor %}", "{% set = 1 %}", "{% set 1 = 1 %}", "{% set true = 1 %}", "{# x", "{% raw %}x", "{% unknown %}", "{{ a b }}", "{{ a. }}", "{{ a[ }}", "{% break %}", "{% macro m() %}{% continue %}{% endmacro %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{{ a | }}", "{{ a is }}", "{{ f(a=1, 2) }}", "{{ f(**a, b) }}", "{{ f(a=1, a=2) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% call 1 %}{% endcall %}", "{{ \"a\\xz\" }}", "{{ '\\N{BULLET}' }}", "{{ $ }}", "{{ 1 if }}", "{{ {1} }}", "{% if true %}{% else %}{% else %}{% endif %}", "{{ a ! b }}", "{% endfor %}", "{% trans %}x{% endtrans %}", "{{ lambda }}", "{{ [1, 2,] }}{{ {'a': 1,} }}{{ (1,) }}{{ range(1, ) | list }}",
    # The generation block.
    "{% generation %}a{% set y = 1 %}{{ y }}{% endgeneration %}{{ y }}", "a{%- generation -%} b {%- endgeneration %} c", "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
]
CONTEXT = {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hé <b>\n"}, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.0, "n": 10 ** 22}}}]}, {"role": "tool", "content": ["a", {"t": 1e-9}]}], "d": {"a": 1, "b": {"c": [1, 2]}}}


def result(template, context):
    try:
        text = compile_template(template).render(**context)
        text.encode()
    except Exception:
        return None
    return False if re.search(r"0x[0-9a-f]{9,}", text.replace("-", ""), re.IGNORECASE) else text


def each(template):
    out = []
    for value in VALUES:
        if value is not None and value.startswith("="):
            out.append(result("{% set v = " + value[1:] + " %}" + template, {}))
        else:
            out.append(result(template, {} if value is None else {"v": json.loads(value)}))
    return out


def numbers():
    draw = random.Random(7)
    texts = ["0", "-0", "0.0", "-0.0", "1e16", "1e15", "9999999999999998.0", "99999999999999990.0", "1e-4", "1e-5", "0.0001", "1e22", "1e23", "5e-324", "2.2250738585072014e-308", "1.7976931348623157e308", "1E5", "1.0", "100", "1e0"]
    for _ in range(150):
        texts.append(repr(draw.uniform(-1, 1) * 10 ** draw.randint(-320, 308)))
        texts.append(str(draw.randint(-10, 10) * 10 ** draw.randint(0, 60) + draw.randint(0, 9)))
        texts.append(repr(round(draw.uniform(0, 1000), draw.randint(0, 6))))
    return [[t, str(json.loads(t))] for t in texts]


def talks():
    user, answer = {"role": "user", "content": "hé <b> 2+2?\n"}, {"role": "assistant", "content": "It is 4."}
    system = {"role": "system", "content": " Be kind. "}
    tool = {"type": "function", "function": {"name": "get", "description": "Gets.", "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where", "enum": ["a", "b"]}, "n": {"type": "array", "items": {"type": "number"}}}, "required": ["city"]}}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "get", "arguments": {"city": "Zürich", "n": [1.0, 1e-7, 10 ** 22, None, True]}}}]}
    result = {"role": "tool", "name": "get", "tool_call_id": "abcdefghi", "content": "{\"t\": 3}"}
    think = dict(answer, reasoning_content="Let me see.\nYes.", thinking="Let me see.\nYes.")
    parts = {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image", "image": "x"}]}
    lists = [[user], [user, answer], [system, user, answer, user, answer], [user, think, user, think], [user, dict(answer, content="<think>\nhm\n</think>\n\nfour"), user, answer], [system, user, call, result, answer],
             [user, call, result, dict(call, content="Again."), result, result, answer, user], [parts, answer], [answer, user], [user, user], [system], [dict(user, role="developer"), user, answer], [user, dict(call, content=None), result]]
    return [dict(messages=m, tools=t, documents=None, add_generation_prompt=p, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>") for m in lists for t in (None, [tool]) for p in (False, True)]


def published(folder):
    all_talks, cases = talks(), {}
    for path in sorted(folder.glob("*.jinja")):
        try:
            template = compile_template(path.read_text())
        except Exception:
            cases[path.name] = None
            continue
        template.globals["strftime_now"] = lambda format: "DATE"
        cases[path.name] = out = []
        for talk in all_talks:
            try:
                out.append(template.render(**talk))
            except Exception:
                out.append(None)
    (folder / "published.json").write_text(json.dumps({"talks": [json.dumps(t) for t in all_talks], "cases": cases}))


def main():
    if len(sys.argv) > 1:
        return published(Path(sys.argv[1]))
    templates = ["{{ v | %s }}" % f for f in FILTERS] + ["{{ v is %s }}" % t for t in TESTS] + ["{{ v.%s }}" % m for m in METHODS] + ["{{ %s }}" % f for f in FORMS] + STATEMENTS
    table = {"values": VALUES, "context": json.dumps(CONTEXT), "each": {t: each(t) for t in templates}, "alone": [[t, result(t, CONTEXT)] for t in ALONE], "numbers": numbers()}
    lines = [json.dumps(k) + ": " + json.dumps(v, ensure_ascii=False) for k, v in table.items() if k not in ("each", "alone", "numbers")]
    rows = ",\n".join(json.dumps(t, ensure_ascii=False) + ": " + json.dumps(r, ensure_ascii=False, separators=(",", ":")) for t, r in table["each"].items())
    lines.append('"each": {\n' + rows + "\n}")
    lines.append('"alone": [\n' + ",\n".join(json.dumps(r, ensure_ascii=False) for r in table["alone"]) + "\n]")
    lines.append('"numbers": ' + json.dumps(table["numbers"]))
    Path(__file__).with_name("oracle.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main())
