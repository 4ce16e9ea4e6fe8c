r"""What jinja2, set up as transformers sets it up, makes of the constructs of chat templates.

    pip install transformers==5.24.0 jinja2==3.1.6
    python templates.py > templates.json

A case is a name and a template; a third text says that the program refuses it, with an error that has this text. What jinja2 refuses has no `rendered`.
The templates of families of models are shortened from what these are published with.
"""

import json
import sys

import jinja2
import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template, _plain_template_data

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a \"city\", <today> & tomorrow: ë 漢字",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name"},
                "unit": {"type": ["string", "null"], "enum": ["C", "F"], "default": None},
                "days": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            },
            "required": ["city"],
        },
    },
}
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2], "deep": {"a": None, "b": True}}}}
CONTEXT = {
    "messages": [
        {"role": "system", "content": "  Be brief, <b>bold</b> & 'quoted'. "},
        {"role": "user", "content": "Who\nare you? ë 漢字 🙂"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nNobody."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}, {"type": "image"}]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "{\"sky\": \"clear\"}"},
        {"role": "user", "content": "Thanks\t!"},
    ],
    "talk": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}],
    "tools": [WEATHER, PING],
    "documents": None,
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": None,
    "none_": None,
    "n": 7,
    "big": 12345678901234567890,
    "x": 2.5,
    "t": True,
    "s": "Hello, World",
    "quoted": "it's \"both\" \\ \n\t\x07é\xa0\u200b",
    "empty": "",
    "words": ["pear", "Apple", "fig", "apple"],
    "nested": [[1, [2.0, "x"]], {"k": [1], "z": None}],
    "numbers": [3, 1, 2, 10],
    "people": [{"name": "Bo", "age": 3, "pet": {"kind": "cat"}}, {"name": "al", "age": 10, "pet": {"kind": "dog"}}, {"name": "Cy", "age": 3, "pet": {"kind": "cat"}}],
    "d": {"b": 1, "a": "two", "C": None},
    "tags": {"items": 1, "keys": 2},
}

# In these, what is between the marks is one template.
EXPRESSIONS = r"""
### printing
{{ none_ }}|{{ t }}|{{ false }}|{{ True }}|{{ None }}
{{ n }} {{ x }} {{ 1.0 }} {{ 1e3 }} {{ 0.1 + 0.2 }} {{ big }}
{{ 1e16 }} {{ 1e15 }} {{ 123456789012345680.0 }} {{ 1e-4 }} {{ 1e-5 }} {{ 1.5e300 }}
{{ words }}
{{ nested }}
{{ d }}
{{ {} }} {{ [] }} {{ () }} {{ (1,) }} {{ (1, 'a') }}
{{ [quoted] }}
{{ ['it\'s', "say \"x\"", 'both \' and "'] }}
{{ [none, true, 1.0, -2] }}
{{ messages[4].tool_calls }}
{{ {'a': [1, {'b': none}], 2: 'c'} }}
{{ [missing] }}
{{ quoted }}
{{ "漢字 🙂" }} {{ ["漢字 🙂 \u200b \xad"] }}
{{ namespace(a=1) }} !! namespace
{{ range(3) }} !! range
{{ range(3) | list }} {{ range(1, 10, 3) | list }} {{ range(3, 0, -1) | list }}
{{ range }} !! function
{{ missing }}[{{ d.nope }}]
{{ d.items() }} {{ d.keys() }} {{ d.values() }}
{{ s.upper }} !! upper
{{ words | map('upper') }} !! generator
{{ 7 }}{{ 'a' }}{{ 1_000 }}
{{ -n }} {{ --n }} {{ -(3) }} {{ -2 ** 2 }}
{{ +n }} !! unexpected
{{ -messages[0].n }}
{{ -numbers[0] }} !! minus
{{ -(numbers[0]) }} {{ (-n) | abs }} {{ -n | abs }} {{ 2 - -n }}
{{ 0x1f }} {{ 0b11 }} {{ 0o17 }}
{{ 1, 2 }} !! unexpected
{{ -0.0 }} {{ 3.0 | int }} {{ 100000000000000000000000 }}
### strings and escapes
{{ 'a\nb' }} {{ "a\tb" }} {{ 'a\\b' }} {{ 'q\'q' }}
{{ '\x41\u00e9\101' }}
{{ 'a\/b' }} !! \/
{{ '\d\s' }}
{{ '\b' | tojson }} {{ '\f' | tojson }}
{{ '\a' }} !! \a
{{ '\U0001F642' }} !! \U
{{ 'a' 'b' "c" }}
{{ '\é' }} !! escape
{{ 1_000.5 }} {{ 1e-3 }} {{ 0 }} {{ 00 }} {{ 1.50 }} {{ 5E2 }}
{{ 007 }}
{{ 1__0 }}
{{ 1. }}
{{ 1e400 }} !! 1e400
{{ '{{ x }}' }} {{ "{% if %}" }} {{ '%}' }}
### arithmetic
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ 7.5 // 2 }} {{ n // 2.0 }} {{ -7.5 // 2 }}
{{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }}
{{ 7 / 2 }} {{ 6 / 2 }} {{ 1 / 3 }}
{{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 2 ** 3 ** 2 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1.0 % 0 }}
{{ n + x }} {{ n - 10 }} {{ n * x }} {{ t + 1 }} {{ t * 3 }} {{ true + true }}
{{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'ab' * 0 }} {{ 'ab' * -1 }}
{{ [1] * 2 }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ words + ['x'] }}
{{ [1] + (2,) }}
{{ 'a' + 1 }}
{{ 'a' + none }}
{{ missing + 'a' }}
{{ 'a' + missing }}
{{ missing * 2 }}
{{ 1 + none_ }}
{{ d + d }}
{{ 'a' - 'b' }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ (1 + 2) * 3 }}
{{ 10 ** 30 }}
{{ [] * 10**15 }} {{ '' * 10**15 }} {{ () * 10**15 }} {{ 'a' * -10**15 }} {{ [1, 'a'] * 2 }} {{ 2 * (1, 2) }}
{{ 'a' * 10**12 }} !! too long
{{ [0] * 10**12 }} !! too long
{{ (-2)**127 // 3 }} !! too large
### concatenation
{{ 'a' ~ 1 ~ 2.0 ~ none ~ true }} {{ 1 ~ 2 }}
{{ 'a' ~ words }} {{ 'a' ~ d }} {{ 'a' ~ missing ~ 'b' }}
{{ 'n: ' ~ n + 1 }}
{{ 'n: ' ~ (n + 1) ~ n - 1 }}
{{ 'n: ' ~ (n + 1) }}
{{ 'a' ~ (1, 2) }}
### formatting
{{ '%s and %s' % ('a', 1) }} {{ '%s' % 'x' }} {{ '%d items' % n }}
{{ '%05.2f|%5d|%-5d|%+d|%x|%%' % (x, n, n, n, 255) }}
{{ '%s' % x }} {{ '%r' % s }} {{ '%s' % none_ }} {{ '%s' % [[1, 'a']] }}
{{ '%(a)s-%(b)d' % {'a': 'k', 'b': 3} }}
{{ '%s %s' % ('a',) }}
{{ '%s' % ('a', 'b') }}
{{ '%d' % 'a' }}
{{ '%d' % 2.9 }} {{ '%.3s' % 'abcdef' }} {{ '%10s|' % 'r' }} {{ '%-10s|' % 'l' }}
{{ '%.2e' % 12345.678 }} {{ '%e' % 0.00012 }}
{{ '%g' % 0.0001 }} !! %g
{{ '%#x' % 255 }} !! #
{{ '%s=%s' | format('a', 1) }} {{ '%s' | format(x) }}
{{ '{} {}'.format('a', 1) }} {{ '{1}{0}'.format('a', 'b') }} {{ '{k}'.format(k='v') }}
{{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}'.format('a', 'b', 'c', 42, 3.14159) }}
{{ '{:,}'.format(1234567) }}
{{ '{!r}'.format('a') }} !! {!r}
{{ '{:^5}|{:>4}|{:*<4}|{:*^6}'.format('ß', 'ë', 'x', 7) }} {{ '{:+d} {:,.2f} {:x} {:e} {: d}'.format(3, 12345.678, 255, 1.5, 4) }} {{ '{:5}|{:5}|'.format('a', 1) }}
{{ '{:>4}'.format(none_) }}
{{ '{:d}'.format('a') }}
{{ '{a} {0} {a}'.format(1, a='x') }}
{{ '{} {}'.format(1) }}
{{ '{'.format(1) }}
{{ '{0.real}'.format(1) }} !! 0.real
{{ '{{}}{}'.format(none_) }} {{ '{}'.format([1, 'a']) }} {{ '{}'.format(true) }} {{ '{}'.format(1.0) }}
{{ '%.70000f' % 1.0 }} !! 70000
{{ '%.65535e' % 1.0 }} !! 65535
{{ '{:.70000f}'.format(1.0) }} !! 70000
{{ '{:.65534e}'.format(1.0) | length }} {{ ('%.65534f' % 1.0) | length }} {{ '%.70000s' % 'a' }}
{{ '{:>99999999999999999999}'.format(1) }}
{{ '{:.99999999999999999999f}'.format(1.0) }}
{{ '{:.f}'.format(1.0) }}
{{ '%99999999999999999999d' % 1 }}
{{ '%.99999999999999999999f' % 1.0 }}
{{ '%..5f' % 1.0 }}
{{ '{:>100000000}'.format(1) | length }} !! too long
### comparison
{{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 'a' }} {{ none_ == none }} {{ missing == none }} {{ missing == missing2 }}
{{ 1 != 2 }} {{ 1 < 2 <= 2 < 3 }} {{ 1 < 3 > 2 }} {{ 'a' < 'b' }} {{ 'Z' < 'a' }} {{ [1, 2] < [1, 3] }}
{{ 'a' < 1 }}
{{ none_ < 1 }}
{{ missing > 0 }}
{{ [1] < ['a'] }}
{{ (1, 2) == [1, 2] }} {{ (1, 2) == (1, 2) }} {{ [1, 2.0] == [1.0, 2] }} {{ {'a': 1} == {'a': 1.0} }}
{{ 'a' in 'abc' }} {{ 1 in [1.0] }} {{ 'b' in d }} {{ 'z' not in d }} {{ not 'a' in 'abc' }} {{ 1 in (1, 2) }}
{{ 1 in 'abc' }}
{{ 'a' in none_ }}
{{ 'a' in missing }}
{{ missing in ['a'] }}
{{ 'a' in n }}
{{ true == 1 and false == 0 }} {{ '' == none }} {{ 'True' == true }}
{{ 1 < x < 3 }} {{ t < 2 }}
{{ 2 in range(3) }} {{ '' in 'abc' }} {{ 'role' in messages[0] }} {{ 'b' in d.keys() }} {{ ('b', 1) in d.items() }}
### logic
{{ 0 or 'b' }} {{ 'a' and 'b' }} {{ '' and 'b' }}| {{ none or [] }} {{ 1 and 0 or 2 }}
{{ not 1 }} {{ not '' }} {{ not [] }} {{ not none_ }} {{ not missing }} {{ not 0.0 }} {{ not {} }} {{ not range(0) }}
{{ 'a' if t else 'b' }} {{ 'a' if not t }}| {{ 'a' if false else 'b' if false else 'c' }}
{{ (words or none)[0] }} {{ words and 'some' }}
{% if missing %}a{% elif none_ %}b{% elif '' %}c{% else %}e{% endif %}
{{ 1 if words else 2 }} {{ (none or 'x') ~ (missing or 'y') }}
### attributes and items
{{ d.a }} {{ d['a'] }} {{ d['C'] }} {{ d.C is none }} {{ d['no'] is defined }}
{{ messages[0].role }} {{ messages[-1]['content'] }} {{ messages[0]['role'][0] }} {{ s[-1] }} {{ s[100] }}|
{{ messages[100] }}|{{ words[10] is defined }}|{{ words['a'] }}|
{{ messages[100].role }}
{{ missing.attr }}
{{ missing['a'] }}
{{ d.no.no }}
{{ none_.a }}| {{ none_['a'] }}| {{ n.a }}| {{ s.a }}| {{ none_.a is defined }}
{{ none_.a.b }}
{{ words.0 }} {{ words[1.0] }}|
{{ nested.0.1 }} !! float
{{ tags['items'] }} {{ tags.get('items') }}
{{ tags.items }} !! items
{{ tools[0].function.parameters.properties.days.items }} !! items
{{ d['get'] }} !! get
{{ words[true] }} {{ words[-2] }}
{{ d[words] }}|
{{ s.__class__ }}| !! __class__
{{ s['upper']() }} !! upper
{{ (1, 2)[0] }} {{ (1, 2)[-1] }} {{ {'a': 1}['a'] }} {{ 'abc'[1] }} {{ [1, 2][5] }}|
{{ messages[0]['content'][:4] }}
### slices
{{ words[1:] }} {{ words[:-1] }} {{ words[::-1] }} {{ words[::2] }} {{ words[-2:] }} {{ words[1:100] }}
{{ numbers[3:1:-1] }} {{ numbers[::-2] }} {{ numbers[-1:0:-1] }} {{ numbers[-1:0] }} {{ numbers[100:0:-1] }} {{ numbers[-100:2] }} {{ numbers[2:1] }}
{{ s[1:5] }} {{ s[::-1] }} {{ s[-3:] }} {{ s[:0] }}| {{ s[5:2:-1] }} {{ s[100:] }}|
{{ (1, 2, 3)[1:] }} {{ (1, 2, 3)[::-1] }} {{ range(5)[1:3] | list }}
{{ words[none:2] }} {{ words[:none] }}
{{ none_[1:] }}|
{{ missing[1:] }}
{{ n[1:] }}|
{{ words[::0] }}|
{{ 'ë漢字🙂'[1:3] }} {{ 'ë漢字🙂'[::-1] }}
{{ messages[1:][0].role }} {{ messages[:2] | length }}
{{ words[missing:] }}|
{{ d[1:] }}|
### methods of texts
{{ ' a b '.strip() }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcab'.lstrip('ba') }}|{{ 'a\n\n'.rstrip('\n') }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a b c'.split(none, 1) }}
{{ 'a b c'.split(' ', maxsplit=1) }} {{ 'a b c'.split(sep=' ') }}
{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b  c'.rsplit() }} {{ 'a b  c '.rsplit(none, 1) }} {{ 'a--b--c'.rsplit('--') }}
{{ 'a'.split('') }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.swapcase() }} {{ "they're bill's".title() }} {{ 'ÉCOLE straße'.capitalize() }} {{ 'straße'.upper() }}
{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'aaa'.replace('', '-') }} {{ 'a'.replace('a', '') }}| {{ 'aaa'.replace('a', 'b', -1) }}
{{ s.startswith('Hell') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith('ld') }} {{ s.startswith('World', 7) }} {{ s.endswith(('x', 'd')) }} {{ s.startswith('') }}
{{ s.startswith(['H']) }}
{{ s.startswith(1) }}
{{ s.find('o') }} {{ s.find('zz') }} {{ s.rfind('o') }} {{ s.index('W') }} {{ 'ë漢字'.find('字') }} {{ s.find('o', 5) }}
{{ s.index('zz') }}
{{ s.count('o') }} {{ 'aaaa'.count('aa') }} {{ 'abc'.count('') }}
{{ ', '.join(words) }} {{ '-'.join('abc') }} {{ ''.join([]) }}|
{{ ','.join([1, 2]) }}
{{ 'Xab'.removeprefix('X') }} {{ 'abX'.removesuffix('X') }} {{ 'ab'.removesuffix('') }} {{ 'ab'.removeprefix('z') }}
{{ 'a\nb\r\nc'.splitlines() }} {{ 'a\nb\n'.splitlines(true) }} {{ ''.splitlines() }} {{ 'a\x0bb\x0cc\u2028d'.splitlines() }}
{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }}
{{ 'abc'.isalpha() }} {{ ''.isalpha() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'a1'.isalnum() }} {{ ' \n'.isspace() }} {{ ''.isspace() }}
{{ 'abc1'.islower() }} {{ 'A1'.isupper() }} {{ '1'.isupper() }} {{ ''.islower() }} {{ 'Ab'.islower() }} {{ 'abc'.isascii() }} {{ 'ë'.isascii() }} {{ '12'.isdecimal() }} {{ '12'.isnumeric() }}
{{ '½'.isnumeric() }} !! isnumeric
{{ '²'.isdigit() }} !! isdigit
{{ 'Title Case'.istitle() }} !! istitle
{{ 'a_1'.isidentifier() }} !! isidentifier
{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'a'.center(4, '*') }}|{{ '7'.zfill(3) }}|{{ '-7'.zfill(4) }}
{{ 'abc'.nope() }}
{{ 'aXb'.casefold() }} {{ 'a\tb'.expandtabs(4) }} !! expandtabs
{{ 'abc'.encode() }} !! encode
{{ '\xa0a\u3000'.strip() }}|{{ '\x1ca\x1f'.strip() }}|{{ 'a\x1cb'.split() }}
{{ 'a' .strip() .upper() }} {{ ('a' ~ 'b').upper() }} {{ 'A'.lower().upper().lower() }}
{{ '<think>a</think>b'.split('</think>')[-1].lstrip('\n') }} {{ 'a</think>b'.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}
### methods of lists and mappings
{{ d.get('a') }} {{ d.get('zz') }} {{ d.get('zz', 'def') }} {{ d.get('C', 'def') }} {{ d.get('b') == 1 }} {{ d.get(missing) }} {{ d.get(none) }} {{ missing in d }} {{ none in d }} {{ {1: 'a'}[true] }} {{ {1: 'a'}[1.0] }}
{{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list }} {{ d.items() | length }} {{ d.keys() | join(',') }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }};{% endfor %}{% for k in d.keys() %}{{ k }};{% endfor %}{% for v in d.values() %}{{ v }};{% endfor %}
{{ numbers.index(2) }} {{ numbers.count(1) }} {{ (1, 2, 1).count(1) }}
{{ numbers.index(99) }}
{{ numbers.append(1) }}
{% set _ = numbers.append(1) %}
{{ d.update({'a': 1}) }}
{{ d.pop('a') }}
{{ numbers.sort() }}
{{ d.copy() }} {{ numbers.copy() }}
{{ d.nope() }}
{{ dict(a=1, b='x') }} {{ dict({'q': 1}, r=2) }} {{ dict([('a', 1), ('b', 2)]) }}
{{ dict.fromkeys(['a', 'b']) }} !! fromkeys
{{ d.items() | first }} {{ d.values() | sum(start=0) if false else 'ok' }}
{{ messages[0].get('role', '') }} {{ messages[0].get('tool_calls') is none }} {{ messages[0].get('content').strip() }}
{{ n.bit_length() }} !! bit_length
{{ x.is_integer() }} !! is_integer
### tests
{{ none_ is none }} {{ n is none }} {{ missing is none }} {{ none_ is not none }} {{ missing is defined }} {{ none_ is defined }} {{ missing is undefined }} {{ d.no is not defined }}
{{ s is string }} {{ n is string }} {{ missing is string }} {{ words is string }} {{ 'a' ~ 1 is string }}
{{ d is mapping }} {{ words is mapping }} {{ none_ is mapping }} {{ missing is mapping }} {{ messages[0] is mapping }}
{{ s is iterable }} {{ words is iterable }} {{ d is iterable }} {{ none_ is iterable }} {{ n is iterable }} {{ missing is iterable }} {{ d.items() is iterable }} {{ range(2) is iterable }}
{{ s is sequence }} {{ words is sequence }} {{ d is sequence }} {{ none_ is sequence }} {{ n is sequence }} {{ d.items() is sequence }} {{ (1,) is sequence }}
{{ missing is sequence }}
{{ n is number }} {{ x is number }} {{ t is number }} {{ s is number }} {{ none_ is number }} {{ '1' is number }}
{{ n is integer }} {{ t is integer }} {{ x is integer }} {{ x is float }} {{ n is float }} {{ 1.0 is float }}
{{ t is boolean }} {{ n is boolean }} {{ t is true }} {{ 1 is true }} {{ t is false }} {{ false is false }} {{ none_ is false }}
{{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }} {{ -3 is odd }}
{{ s is odd }}
{{ none_ is odd }}
{{ n is eq 7 }} {{ n is equalto 7 }} {{ n is == 7 }} !! unexpected
{{ n is eq 7 }} {{ n is equalto(7.0) }} {{ n is ne 1 }} {{ n is gt 3 }} {{ n is greaterthan 3 }} {{ n is lt 3 }} {{ n is lessthan 3 }} {{ n is ge 7 }} {{ n is le 7 }}
{{ 'a' is in words }} {{ 'fig' is in(words) }} {{ 'fig' is in words }} {{ 'x' is not in words }}
{{ none_ is sameas none }} {{ t is sameas true }} {{ n is sameas true }} {{ 1 is sameas true }} {{ false is sameas false }}
{{ words is sameas words }} !! sameas
{{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 'Abc' is lower }} {{ '' is upper }} {{ 1 is lower }}
{{ range is callable }} {{ s is callable }} {{ missing is callable }}
{{ s.upper is callable }} !! upper
{{ raise_exception is defined }} {{ strftime_now is defined }} {{ namespace is callable }} {{ tojson is defined }} {{ range is callable }} {{ s is callable }}
{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ 'nope' is test }} {{ n is filter }}
{{ words is filter }}
{{ s is escaped }}
{{ n is nope }}
{% if false %}{{ n is nope }}{% endif %}ok !! nope
{{ s is defined is true }}
{{ (s is defined) is true }} {{ (n is not odd) is false }} {{ x is odd }} {{ x is even }} {{ 3.0 is odd }}
{{ not s is string }} {{ s is string and n is number }} {{ 'y' if s is string else 'n' }} {{ s is not string or n is not number }}
{{ n is gt -1 }}
{{ tools is iterable and tools | length > 0 }} {{ documents is iterable and documents | length > 0 }} {{ nope is iterable and nope | length > 0 }}
{{ tools is defined and tools is not none and tools is iterable and tools is not mapping and tools is not string }}
{{ x is divisibleby 2 }} {{ 4.0 is even }}
{{ n is integer is defined }}
{{ loop is defined }} {{ caller is defined }} {{ self is defined }} !! self
### filters
{{ 'a' | upper }} {{ 'A' | lower }} {{ "hello world foo-bar [baz] (qux) it's 1st" | title }} {{ 'hello World' | capitalize }} {{ ' a ' | trim }}| {{ 'xax' | trim('x') }}
{{ 1 | upper }} {{ none_ | upper }} {{ missing | upper }}| {{ 1 | trim }} {{ words | upper }} {{ none_ | trim }} {{ missing | trim }}|
{{ words | length }} {{ s | length }} {{ d | length }} {{ missing | length }} {{ '' | length }} {{ 'ë漢字🙂' | length }} {{ words | count }} {{ (1, 2) | length }} {{ range(4) | length }}
{{ none_ | length }}
{{ n | length }}
{{ (words | map('upper')) | length }}
{{ missing | default('d') }} {{ none_ | default('d') }} {{ none_ | default('d', true) }} {{ '' | default('d') }}| {{ '' | default('d', true) }} {{ false | d('x', boolean=true) }} {{ missing | default }}| {{ d.no | default('q') }} {{ s | default('no') }}
{{ missing.a | default('d') }}
{{ words | join(', ') }} {{ words | join }} {{ numbers | join('-') }} {{ [1, none, true, 2.0, 'a', [1]] | join('|') }} {{ 'abc' | join('.') }} {{ d | join(',') }} {{ missing | join(',') }}|
{{ people | join(', ', attribute='name') }} {{ none_ | join(',') if false else 'ok' }}
{{ none_ | join(',') }}
{{ words | first }} {{ words | last }} {{ s | first }} {{ s | last }} {{ [] | first }}| {{ [] | last }}| {{ d | first }} {{ missing | first }}|
{{ none_ | first }}
{{ s | list }} {{ d | list }} {{ (1, 2) | list }} {{ missing | list }} {{ words | list }} {{ d.items() | list }}
{{ n | list }}
{{ s | string }} {{ n | string }} {{ none_ | string }} {{ words | string }} {{ missing | string }}| {{ x | string | length }}
{{ '42' | int }} {{ '4.9' | int }} {{ 'x' | int }} {{ 'x' | int(default=5) }} {{ 4.9 | int }} {{ none_ | int }} {{ t | int }} {{ ' 7 ' | int }} {{ '-3' | int }} {{ '0x1A' | int(0, 16) }} {{ '1e3' | int }} {{ '1_0' | int }}
{{ missing | int }}
{{ '1.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ none_ | float(1.5) }} {{ '1e3' | float }} {{ 'inf' | float }} {{ ' 2 ' | float }}
{{ -3 | abs }} {{ (-3) | abs }} {{ x | abs }} {{ (-2.5) | abs }} {{ true | abs }}
{{ s | abs }}
{{ 2.567 | round }} {{ 2.567 | round(1) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ 7 | round }} {{ 1234.5 | round(-2) }} {{ 2.675 | round(2) }} {{ 0.125 | round(2) }}
{{ numbers | sum }} {{ people | sum(attribute='age') }} {{ [] | sum }} {{ [1.5, 2] | sum }} {{ numbers | sum(start=10) }}
{{ numbers | min }} {{ numbers | max }} {{ words | min }} {{ words | max(case_sensitive=true) }} {{ words | min(true) }} {{ [] | min }}| {{ people | max(attribute='age') }}
{{ [1, 'a'] | max }}
{{ numbers | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ numbers | sort(reverse=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ people | sort(attribute='age,name') | map(attribute='name') | list }} {{ d | sort }} {{ 'hello' | sort }} {{ people | sort(attribute='pet.kind', reverse=true) | map(attribute='name') | join }}
{{ [1, 'a'] | sort }}
{{ [none, 1] | sort }}
{{ d | dictsort }} {{ d | dictsort(true) }} {{ {'x': 3, 'y': 1} | dictsort(by='value') }} {{ {'x': 3, 'y': 1} | dictsort(false, 'key', true) }}
{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}
{{ d | items | list }} {{ missing | items | list }} {% for k, v in d | items %}{{ k }}:{{ v }},{% endfor %}
{{ words | items | list }}
{{ words | reverse | list }} {{ s | reverse }} {{ numbers | reverse | first }} {{ d | reverse | list }}
{{ n | reverse }}
{{ words | unique | list }} {{ words | unique(true) | list }} {{ [1, 1.0, true, 2] | unique | list }} {{ people | unique(attribute='age') | map(attribute='name') | list }}
{{ words | map('upper') | list }} {{ people | map(attribute='name') | list }} {{ people | map(attribute='pet.kind') | join(' ') }} {{ people | map(attribute='zz', default='-') | list }} {{ words | map('replace', 'p', 'b') | list }} {{ numbers | map('string') | join('+') }} {{ words | map('length') | sum }}
{{ people | map('nope') | list }}
{{ people | map(attribute='nope') | list }} {{ nested | map('first') | list }} {{ [[1, 2], [3]] | map(attribute=0) | list }} {{ words | map('trim') | map('title') | list }}
{{ numbers | select('odd') | list }} {{ numbers | reject('odd') | list }} {{ [0, 1, '', 'a', none] | select | list }} {{ [0, 1, none] | reject | list }} {{ numbers | select('gt', 2) | list }} {{ words | select('in', ['fig']) | list }} {{ numbers | select('divisibleby', 2) | list }}
{{ people | selectattr('age', 'equalto', 3) | map(attribute='name') | list }} {{ people | selectattr('age', '>', 3) | list | length }} {{ people | rejectattr('age', 'eq', 3) | list | length }} {{ people | selectattr('nope') | list }} {{ people | selectattr('pet.kind', '==', 'cat') | list | length }} {{ messages | selectattr('role', 'equalto', 'user') | list | last | string | length }} {{ messages | rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | join(',') }} {{ messages | selectattr('tool_calls', 'defined') | list | length }}
{{ messages | selectattr('role', 'nope', 1) | list }}
{% for age, who in people | groupby('age') %}{{ age }}: {{ who | map(attribute='name') | join(',') }}; {% endfor %}{{ (people | groupby('age'))[0].grouper }} {{ (people | groupby('age'))[0].list | length }} !! grouper
{% for age, who in people | groupby('age') %}{{ age }}: {{ who | map(attribute='name') | join(',') }}; {% endfor %}
{% for row in range(7) | batch(3) %}{{ row }}{% endfor %} {% for row in range(7) | batch(3, 'x') %}{{ row }}{% endfor %}
{% for col in range(7) | slice(3) %}{{ col }}{% endfor %} {% for col in range(7) | slice(3, 'x') %}{{ col }}{% endfor %}
{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ 1212 | replace('1', 'x') }} {{ s | replace('zz', 1) }}
{{ 'a\nb\n\nc' | indent }} {{ 'a\nb\n\nc' | indent(2) }} {{ 'a\nb' | indent(2, true) }} {{ 'a\n\nb' | indent(width=2, first=false, blank=true) }} {{ 'a\nb' | indent('> ') }} {{ 'a\n' | indent }}|
{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }} {{ 'foo bar baz' | truncate(100) }} {{ 'foo bar baz qux' | truncate(11, false, '...', 0) }} {{ 'foo bar' | truncate(5, leeway=5) }}
{{ 'hello' | truncate(10, leeway=-8) }}
{{ 'hello' | truncate(10, leeway=-1) }}
{{ 'hello' | truncate(2) }}
{{ 'hello' | truncate(none) }}
{{ 'hello' | truncate(-9223372036854775807) }}
{{ 'hello' | truncate(9223372036854775807) }} {{ 'hello' | truncate(3, end='', leeway=9223372036854775807) }} {{ 'hello' | truncate(3, leeway=none) }}
{{ 'a b  c' | wordcount }} {{ 'it is, no?' | wordcount }} {{ 'ab' | center(6) }}|{{ 'abc' | center(6) }}|
{{ d | attr('a') }}| {{ n | attr('x') }}| {{ s | attr('upper') }} !! attr
{{ words[0] | upper | lower | title | replace('P', 'p') }} {{ (words | first) | length }} {{ words | map('first') | join | upper }}
{{ '<a href="x">&\'</a>' | e }} {{ '<b>' | escape }} {{ '<b>' | safe }} {{ 1 | e }} {{ missing | e }}|
{{ ('<b>' | e) ~ '<' }}
{{ ('<b>' | e) + '<' }} !! safe
{{ ('<b>' | safe) + '<' }} !! safe
{{ '<b>x</b>' | striptags }} !! striptags
{{ 'a b&c' | urlencode }} !! urlencode
{{ d | xmlattr }} !! xmlattr
{{ 12345 | filesizeformat }} !! filesizeformat
{{ d | pprint }} !! pprint
{{ 'a b c d' | wordwrap(3) }} !! wordwrap
{{ words | random | length }} !! random
{{ 'http://x.y' | urlize }} !! urlize
{{ '<b>' | forceescape }} !! forceescape
{{ s | nope }}
{% if false %}{{ s | nope }}{% endif %}ok !! nope
{% for i in [] %}{{ s | nope }}{% endfor %}
{% if false %}{{ s | urlencode }}{% endif %}ok
{{ words | join(', ') | upper }} {{ words | length + 1 }} {{ -1 | string }} {{ 2 + 3 | string | length }} {{ words | length > 3 and 'many' }}
{{ words|map('upper')|select('in',['FIG','PEAR'])|list }} {{ s|upper|lower }}
{{ missing | sum }} {{ missing | sort }} {{ missing | map('upper') | list }} {{ missing | reverse | list }} {{ missing | unique | list }} {{ missing | select | list }} {{ missing | dictsort if false else 1 }}
{{ none_ | sort }}
{{ none_ | map('upper') | list }}
### JSON
{{ tools | tojson }}
{{ tools[0] | tojson(indent=4) }}
{{ tools[0].function | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ [[], {}] | tojson(indent=1) }}
{{ [1, 2.0, none, true, 'é<>&\'"/\n\t\x07\x7f\u2028'] | tojson }}
{{ 'é' | tojson(ensure_ascii=true) }} {{ '🙂' | tojson(ensure_ascii=True) }} {{ 'é' | tojson(ensure_ascii=False) }}
{{ {'b': 1, 'a': [1, 2]} | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ {'a': [1, 2]} | tojson(separators=(',', ': '), indent=2) }} {{ {'a': 1} | tojson(indent=none) }} {{ [1] | tojson(indent=0) }} {{ [1] | tojson(indent='--') }}
{{ (1, 2) | tojson }} {{ {1: 'a', true: 'b', none: 'c', 1.5: 'd'} | tojson }} !! key
{{ (1, 2) | tojson }} {{ {1: 'a', 'b': 2} | tojson }} {{ 1e16 | tojson }} {{ 1e-7 | tojson }} {{ big | tojson }} {{ -0.0 | tojson }}
{{ missing | tojson }}
{{ [missing] | tojson }}
{{ range(3) | tojson }}
{{ words | map('upper') | tojson }}
{{ d.items() | tojson }}
{{ d.items() | list | tojson }} {{ s | tojson | tojson }} {{ s | tojson | upper }} {{ 'x' ~ (d | tojson) }} {{ (d | tojson) + '<' }} {{ (d | tojson) | length }}
{{ messages[4].tool_calls[0].function.arguments | tojson }} {{ messages[1].content | tojson }}
{{ tools | map('tojson') | join('\n') }} {{ tools | tojson(4) }}
{{ tools | map(attribute='function') | map(attribute='name') | list | tojson }} {{ namespace(a=1) | tojson if false else '' }}
### statements
{% set a = 1 %}{% set b, c = 2, 3 %}{{ a }}{{ b }}{{ c }}
{% set a = (1, 2) %}{{ a }}{% set a = 1, 2 %}{{ a }}
{% set a = [] %}{% set a = a + [1] %}{{ a }}
{% set a, b = [1, 2] %}{{ b }}{% set (c, e) = 'xy' | list %}{{ c }}{{ e }}
{% set a, b = [1] %}{{ a }}
{% set block %}a {{ n }} b{% endset %}[{{ block }}] {{ block | length }}
{% set block | upper %}a {{ s }}{% endset %}{{ block }}
{% if n > 5 %}{% set v = 'in' %}{% endif %}{{ v }}
{% set v = 1 %}{% for i in [1, 2] %}{% set v = v + i %}{{ v }}{% endfor %}{{ v }}
{% set ns = namespace(v=1) %}{% for i in [1, 2] %}{% set ns.v = ns.v + i %}{% endfor %}{{ ns.v }}
{% set ns = namespace(found=false, list=[]) %}{% set ns.list = ns.list + ['x'] %}{% set ns.new = 5 %}{{ ns.list }}{{ ns.new }}{{ ns.found }}{{ ns.nope is defined }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}
{% set ns = namespace(items=[1]) %}{{ ns.items }}
{% set d.x = 1 %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set ns = namespace(_x=1) %}
{% set ns = namespace() %}{% set ns.x = 1 %}{{ ns.x }}{% set other = ns %}{% set other.x = 2 %}{{ ns.x }}
{% for i in [1, 2] %}{{ i }}{% else %}none{% endfor %}{% for i in [] %}{{ i }}{% else %}none{% endfor %}
{% for m in talk %}{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }}; {% endfor %}
{% for i in numbers %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}
{% for i in numbers %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}
{% for i in numbers %}{{ loop.cycle('odd', 'even') }} {% endfor %}{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}
{% for i in range(5) if i is odd %}{{ i }}:{{ loop.index }}/{{ loop.length }} {% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in [1] %}{% for j in [2, 3] %}{{ loop.index }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}{{ loop.index }}{{ loop.depth }}{% endfor %}
{% for i in [1, 2] %}{% set outer = loop %}{% for j in 'ab' %}{{ outer.index }}{{ j }}{% endfor %}{% endfor %}
{% for c in 'ab漢' %}{{ c }}.{% endfor %}{% for i in missing %}x{% endfor %}{% for i in range(2) %}{{ i }}{% endfor %}{% for i in (1, 2) %}{{ i }}{% endfor %}
{% for i in none_ %}x{% endfor %}
{% for i in n %}x{% endfor %}
{% for a, b in [[1, 2], (3, 4)] %}{{ a }}{{ b }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}
{% for a, b in [[1]] %}{{ a }}{% endfor %}
{% for a, b in [[1, 2], [3, 4]] if a %}{{ loop.previtem }}{{ loop.nextitem }}{{ b }}{% endfor %}
{% for item in [1, [2, [3]]] recursive %}{% if item is sequence %}[{{ loop(item) }}]{% else %}{{ item }}@{{ loop.depth }}{% endif %}{% endfor %}
{% for m in messages[1:] %}{% if not loop.last and m.role != messages[1:][loop.index].role %}{{ m.role[0] }}{% endif %}{% endfor %}
{{ loop }}|{% for i in [1] %}{% endfor %}{{ i }}|
{% for i in [1, 2, 3] %}{{ i }}{{ ', ' if not loop.last else '' }}{% endfor %}
{% for i in words | sort %}{{ i }} {% endfor %}{% for i in numbers | reverse %}{{ i }} {% endfor %}{% for i in words | map('upper') %}{{ loop.index }}{{ loop.last }}{{ i }} {% endfor %}
{% for k, v in tools[0].function.parameters.properties.items() %}{{ k }}:{{ v.type }}{{ '|' if not loop.last }}{% endfor %}
{% for i in [1, 2] %}{{ loop }}{% endfor %} !! loop
{% for i in [1, 2] %}{{ loop.cycle() }}{% endfor %}
{% break %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}
{% with a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{% endwith %}
{% filter upper %}a {{ s }}{% endfilter %} {% filter replace('a', 'b') | trim %} banana {% endfilter %}|
{% filter length %}abc{% endfilter %}
{% macro m(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(a=1, c=3) }}{{ m() }}{{ m(1) | length }}{{ m('q') ~ '!' }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, a=2) }} !! varargs
{% macro m(a, b=1) %}{{ b }}{% endmacro %}{{ m(1, missing) }}| !! undefined
{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(5) }}
{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * (fact(n - 1) | int) }}{% endif %}{% endmacro %}{{ fact(5) }}
{% set v = 1 %}{% macro m() %}{{ v }}{% endmacro %}{% set v = 2 %}{{ m() }}
{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}
{% macro m() %}{{ inner is defined }}{% endmacro %}{% for inner in [1] %}{{ m() }}{% endfor %}
{% macro m() %}{% set local = 1 %}{% endmacro %}{{ m() }}{{ local is defined }}
{% macro m(x) %}{{ x.role }}: {{ caller() }};{% endmacro %}{% call m(messages[0]) %}inside {{ n }}{% endcall %}
{% macro m() %}{{ caller(1, 'b') }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}
{% macro m() %}x{% endmacro %}{{ m.name }}
{% macro m(a) %}x{% endmacro %}{{ m.arguments }} !! arguments
{{ m() }}{% macro m() %}x{% endmacro %}
{% macro m() %}x{% endmacro %}{{ m }} !! macro
{{ nope() }}
{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'b': 3, 'a': 4}) }}{{ m(5, *(6,)) }} {{ 'a-b'.split(*['-']) }}
{% macro m(a, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }} !! arguments by *
{{ s() }}
{{ d.a() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ words | map('m') | list }}
{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}
{% if true %}{% macro m() %}cond{% endmacro %}{% endif %}{{ m() }}
{% generation %}a{{ n }}{% endgeneration %}|{%- generation -%} b {%- endgeneration -%} |
{% for i in [1, 2] %}{% generation %}{{ loop.index }}{% set q = i %}{{ q }}{% endgeneration %}{% endfor %}
{% set a = 1 %}{% generation %}{{ a }}{% set a = 2 %}{% endgeneration %}{{ a }}
{% raw %}{{ x }} {% if %}{% endraw %}|{% raw -%}  a {%- endraw %}
{# a comment {{ x }} #}a{#- b -#} c
{% include 'a' %}
{% import 'a' as a %}
{% from 'a' import b %}
{% extends 'a' %}
{% block b %}x{% endblock %} !! block
{% do 1 %}
{% autoescape true %}{{ '<' }}{% endautoescape %} !! autoescape
{% trans %}a{% endtrans %}
{% debug %}
{% nope %}
{% if %}a{% endif %}
{% if true %}a
{{ 'a
{{ a b }}
{{ raise_exception('Stop: ' ~ n) }}
{% if n == 7 %}{{ raise_exception("no") }}{% endif %}
{{ strftime_now('%%') }}{{ strftime_now('day') }}{{ strftime_now('%Y-%m-%d') | length }}{{ strftime_now('%d %b %Y') | length }} {{ strftime_now('%H:%M') | length }}
{{ lipsum() | length > 0 }} !! lipsum
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }} !! cycler
{% set j = joiner(', ') %}{{ j() }}a{{ j() }}b !! joiner
{{ self.b() }} !! self
{{ range(100001) | length }}
{% set true = 1 %}
{% filter upper %}{% set q = 1 %}a{% endfilter %}{{ q is defined }}
{% set b %}{% set q = 1 %}a{% endset %}{{ q is defined }}
{% for i in [] %}{% else %}{% set q = 1 %}{{ q }}{% endfor %}{{ q is defined }}
{% for i in [1] %}{% continue %}{% else %}e{% endfor %} !! else
{% for i in [1, 2] %}{% with %}{% break %}{% endwith %}{% endfor %} !! break
{% for i in [1, 2] %}{% for j in [] %}{% else %}{% break %}{% endfor %}{{ i }}{% endfor %} !! break
{% for i in [1] %}{{ n }}{% endfor %}{% set n = 3 %} !! n is used
{% macro m() %}{{ n }}{% endmacro %}{% set n = 3 %}{{ m() }} !! n is used
{% macro m() %}{{ w }}{% endmacro %}{% set w = 3 %}{{ m() }}{% set w = 4 %}{{ m() }}
{% for i in [1, 2] %}{{ n }}{% set n = n + i %}{{ n }},{% endfor %}{{ n }}
{% if false %}{% set n = 3 %}{% endif %}{{ n }}{% for i in [1] %}{{ n }}{% endfor %}
{% raw +%}x{% endraw %}
{{ '{% generation %}' }}{# {% generation %} #}{% generation %}x{% endgeneration %}{% raw %}{% generation %}{% endraw %}
{{ varargs }}{{ kwargs }} !! varargs
{% for i in 'ab' %}{% if i == 'b' %}{% set last = true %}{{ last }}{% endif %}{{ last is defined }}{% endfor %}
{% set loop = 1 %}{{ loop }} !! reserved
{{ messages | length }}{% set messages = messages[1:] %}{{ messages | length }}
{% for messages in [1] %}{{ messages }}{% endfor %}{{ messages | length }}
{%- set a = 'x' -%} {{- a -}} y
{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}|
{{ ['a', 'b'][loop.index0] if loop is defined else 'no' }}
{% set x = x if x is defined else 1 %}{{ x }}
{% set q = q | default('w') %}{{ q }}
{% if messages[0]['role'] == 'system' and messages[0].content is string %}{{ messages[0].content | trim }}{% endif %}
{% set f = {'a': 1} %}{% if 'a' in f and f['a'] is not none %}{{ f.a }}{% endif %}
{{ (messages | selectattr('role', 'equalto', 'system') | list | first).content | trim }}
{{ ([1, 2, 3] | last) + (words | length) }}
"""

# Blanks and line breaks, written as Python writes texts.
LINES = {
    "blocks take the line break after them": "a\n{% if t %}\nb\n{% endif %}\nc\n",
    "blanks before blocks": "a\n    {% if t %}\n  b\n    {% endif %}\nc  {% if t %} d{% endif %}\n\n",
    "blanks before expressions stay": "a\n    {{ n }}\n  b\n",
    "minus": "a  \n\n {%- if t -%}\n\n b \n{%- endif -%}\n\n c {{- n -}}  \n d",
    "plus": "a\n    {%+ if t %}\nb{% endif +%}\nc\n",
    "comments": "a\n  {# one #}\nb {# two #}\nc{#- three -#}\n d",
    "comment of several lines": "a\n{# one\ntwo #}\n\nb",
    "one line break at the end goes": "a\n\n",
    "expression at the end of a line": "{{ n }}\n{{ n }}\n",
    "set takes its line": "{% set a = 1 %}\n{% set b = 2 %}\n\n{{ a }}{{ b }}",
    "for with minus": "{%- for m in talk %}\n    {{- m.role + '\\n' }}\n    {%- if not loop.last %}\n        {{- '--' }}\n    {%- endif %}\n{%- endfor %}\n",
    "CRLF": "a\r\n{% if t %}\r\nb\r\n{% endif %}\r\n{{ 'x\\r\\ny' | tojson }}\r\nc\r\n",
    "CRLF in a string": "{{ 'a\r\nb' | tojson }}",
    "CR alone": "a\rb\r{% if t %}\rc{% endif %}",
    "CRLF before an expression": "a\r\n  {{- n }}\r\n",
    "several lines in an expression": "{{ {\n  'a': 1,\n  'b': [1,\n 2]\n} | tojson }}",
    "several lines in a tag": "{% if n == 7\n   and t\n%}\nyes\n{% endif %}",
    "a string of two lines": "{{ 'multi\nline' }}",
    "raw keeps": "a\n{% raw %}\n  {{ x }}\n{% endraw %}\nb",
    "raw with minus": "a\n{%- raw -%}\n  {{ x }}\n{%- endraw -%}\nb",
    "tabs": "a\n\t{% if t %}\n\tb\n\t{% endif %}\n",
    "other blanks": "a\u00a0{%- if t %}b{% endif -%}\u3000c",
    "form feed": "a\n\x0c{% if t %}\nb{% endif %}",
    "blanks within braces": "{{n}}{{  n  }}{%if t%}a{%endif%}{%-if t-%} b {%-endif-%} c",
    "end of a set block": "{% set a %}\n  x\n{% endset %}\n[{{ a }}]",
    "generation marks": "{%- for m in talk %}\n{%- if m.role == 'assistant' %}\n{% generation %}\n{{ m.content }}\n{% endgeneration %}\n{%- endif %}\n{%- endfor %}\nend",
    "macro with lines": "{% macro m(a) %}\n  <{{ a }}>\n{% endmacro %}\n{{ m(1) }}\n{{ m(2) }}",
    "braces in text": "{ {a} } }} %} #} {\"k\": {{ n }}} {{ '{' }}{{ '}' }}",
    "dollar and percent": "100% $x #{n} ${n}",
    "empty": "",
    "text alone": "Hello ë 漢字 🙂\n",
    "line statement marks are text": "# for x in y\n## no\n",
    "elif chain": "{% if n == 1 %}\none\n{% elif n == 7 %}\nseven\n{% else %}\nother\n{% endif %}\n",
}

MODELS = {
    "Llama 3.1": r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\n\n"}}
{%- endif %}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | string | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
""",
    "Qwen2.5": r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><tool_call>\n{\"name\": <function-name>}\n</tool_call><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' ~ message.content ~ '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""",
    "Qwen3": r"""{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}""",
    "Qwen3-Coder": r"""{% macro render_extra_keys(json_dict, handled_keys) %}
    {%- if json_dict is mapping %}
        {%- for json_key in json_dict if json_key not in handled_keys %}
            {%- if json_dict[json_key] is mapping or (json_dict[json_key] is sequence and json_dict[json_key] is not string) %}
                {{- '\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | tojson | safe) ~ '</' ~ json_key ~ '>' }}
            {%- else %}
                {{-'\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | string) ~ '</' ~ json_key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{% endmacro %}

{%- if not tools is defined %}
    {%- set tools = [] %}
{%- endif %}
{%- if tools is iterable and tools | length > 0 %}
    {{- "\n\n# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {%- if tool.function is defined %}
            {%- set tool = tool.function %}
        {%- endif %}
        {{- "\n<function>\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.description is defined %}
            {{- '\n<description>' ~ (tool.description | trim) ~ '</description>' }}
        {%- endif %}
        {{- '\n<parameters>' }}
        {%- if tool.parameters is defined and tool.parameters is mapping and tool.parameters.properties is defined and tool.parameters.properties is mapping %}
            {%- for param_name, param_fields in tool.parameters.properties|items %}
                {{- '\n<parameter>' }}
                {{- '\n<name>' ~ param_name ~ '</name>' }}
                {%- if param_fields.type is defined %}
                    {{- '\n<type>' ~ (param_fields.type | string) ~ '</type>' }}
                {%- endif %}
                {%- set handled_keys = ['name', 'type', 'description'] %}
                {{- render_extra_keys(param_fields, handled_keys) }}
                {{- '\n</parameter>' }}
            {%- endfor %}
        {%- endif %}
        {% set handled_keys = ['type', 'properties'] %}
        {{- render_extra_keys(tool.parameters, handled_keys) }}
        {{- '\n</parameters>\n</function>' }}
    {%- endfor %}
    {{- "\n</tools>" }}
{%- endif %}
{%- for message in messages[1:] %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}
            {{- '\n' + message.content | trim + '\n' }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n<function=' + tool_call.name + '>\n' }}
            {%- if tool_call.arguments is defined %}
                {%- for args_name, args_value in tool_call.arguments|items %}
                    {{- '<parameter=' + args_name + '>\n' }}
                    {%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is not string) else args_value | string %}
                    {{- args_value }}
                    {{- '\n</parameter>\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "user" or message.role == "system" or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' ~ message.content ~ '<|im_end|>' + '\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\n' }}
        {%- elif loop.last %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""",
    "Nemotron": r"""{% set ns = namespace(enable_thinking=true) -%}
{%- set enable_thinking = enable_thinking if enable_thinking is defined else True -%}
{%- for message in messages -%}
  {%- set content = message['content'] -%}
  {%- if message['role'] == 'user' or message['role'] == 'system' -%}
    {%- if content is string and '/think' in content.replace('</think>', '') -%}
      {%- set ns.enable_thinking = true -%}
    {%- elif content is string and '/no_think' in content -%}
      {%- set ns.enable_thinking = false -%}
    {%- endif -%}
  {%- endif -%}
{%- endfor -%}
{{- bos_token -}}
{%- if messages[0]['role'] != 'system' -%}
{{- '<SPECIAL_10>System\n' -}}
{%- else -%}
{{- '<SPECIAL_10>System\n' + messages[0]['content'].replace('/think', '').replace('/no_think', '').strip() }}
{%- endif -%}
{%- if tools -%}
{{- '\n\n<AVAILABLE_TOOLS>[' }}{%- for tool in tools %}{{ (tool.function if tool.function is defined else tool) | tojson }}{{- ', ' if not loop.last else '' -}}{%- endfor %}{{- ']</AVAILABLE_TOOLS>\n' -}}
{%- endif -%}
{%- if tools is iterable and tools | length > 0 -%}{{ tools | length }}{%- endif -%}
{%- for message in messages -%}
  {%- if message['role'] == 'user' -%}
    {{- '<SPECIAL_11>User\n' + message['content'] | string | replace('/think', '') | trim + '\n' -}}
  {%- elif message['role'] == 'tool' -%}
    {%- if loop.first or (messages[loop.index0 - 1].role != 'tool') -%}{{- '<SPECIAL_11>User\n<TOOL_RESPONSE>[' }}{%- endif -%}
    {{- message['content'] -}}
    {{- ', ' if not loop.last and (messages[loop.index0 + 1].role == 'tool') else '' -}}
    {%- if loop.last or (messages[loop.index0 + 1].role != 'tool') -%}{{- ']</TOOL_RESPONSE>' -}}{%- endif -%}
  {%- elif message['role'] == 'assistant' -%}
    {%- set content = message['content'] -%}
    {%- if '</think>' in content -%}{%- set content = content.split('</think>')[1].strip() -%}{%- endif -%}
    {{- '<SPECIAL_11>Assistant\n' + content.strip() -}}
    {%- if message.tool_calls -%}
      {{- '<TOOLCALL>[' -}}
      {%- for call in message.tool_calls -%}
        {%- set fn = call.function if call.function is defined else call -%}
        {{- '{"name": "' + fn.name + '", "arguments": ' -}}
        {%- if fn.arguments is string -%}{{- fn.arguments -}}{%- else -%}{{- fn.arguments | tojson -}}{%- endif -%}
        {{- '}' + (', ' if not loop.last else '') -}}
      {%- endfor -%}
      {{- ']</TOOLCALL>' -}}
    {%- endif -%}
    {{- '\n<SPECIAL_12>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<SPECIAL_11>Assistant\n' -}}{%- if ns.enable_thinking -%}{{ '<think>\n' }}{%- else -%}{{ '<think></think>' }}{%- endif -%}
{%- endif -%}
""",
    "Mistral": r"""{%- if talk[0]["role"] == "system" %}
    {%- set system_message = talk[0]["content"] %}
    {%- set loop_messages = talk[1:] %}
{%- else %}
    {%- set loop_messages = talk %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{#- This block checks for alternating user/assistant messages, skipping tool calling messages #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "Gemma 3": r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages[:3] -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
""",
    "DeepSeek": r"""{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\n\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' ~ message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{%- if message['content'] is none or message['content'] == '' %}{{'<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\n' + '```json' + '\n' + tool['function']['arguments'] | tojson + '\n' + '```' + '<｜tool▁call▁end｜>'}}{%- endif %}{%- set ns.is_first = true -%}{%- endif %}{%- endfor %}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- set ns.is_output_first = false %}{%- else %}{{'\n<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\n'}}{% endif %}""",
    "Phi-4": r"""{% for message in talk %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}""",
    "Phi-4-mini": r"""{% for message in talk %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""",
    "GLM-4.5": r"""[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
<tools>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>
{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- elif item is string -%}
                {{- item }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {% set ns.last_user_index = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning_content = '' %}
{%- set content = visible_text(m.content) %}
{%- if m.reasoning_content is string %}
    {%- set reasoning_content = m.reasoning_content %}
{%- else %}
    {%- if '</think>' in content %}
        {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}
{{ '\n<think>' + reasoning_content.strip() +  '</think>'}}
{%- else -%}
{{ '\n<think></think>' }}
{%- endif -%}
{%- if content.strip() -%}
{{ '\n' + content.strip() }}
{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}
{%- if tc.function %}
    {%- set tc = tc.function %}
{%- endif %}
{{ '\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if m.content is string -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
    {{- '<|observation|>' }}
{%- endif %}
{{- '\n<tool_response>\n' }}
{{- m.content }}
{{- '\n</tool_response>' }}
{%- endif -%}
{%- elif m.role == 'system' -%}
<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}""",
    "Granite": r"""{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge Cutoff Date: April 2024.\nToday's Date: " + strftime_now('%B %d, %Y') + "." %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}
{%- if tools %}
    {{- '<|start_of_role|>tools<|end_of_role|>' }}
    {{- tools | tojson(indent=4) }}
    {{- '<|end_of_text|>\n' }}
{%- endif %}
{%- if documents %}
    {%- for document in documents %}
        {{- 'Document ' + loop.index0 | string + '\n' + document['text'] }}
    {%- endfor %}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] | string + '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' }}
        {%- if controls %}
            {{- ' ' + controls | tojson()}}
        {%- endif %}
        {{- '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}""",
    "Command-R": r"""{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% elif false == true %}{% set loop_messages = messages %}{% set system_message = 'You are Command-R' %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% if system_message != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}
{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "boolean": "bool"
} %}
{%- if basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
    {{- "List[" + json_to_python_type(json_spec['items']) + "]"}}
{%- elif json_spec.type == "object" %}
    {{- "Dict[str, " + json_to_python_type(json_spec.additionalProperties) + ']'}}
{%- elif json_spec.type is iterable %}
    {{- "Union[" }}
    {%- for t in json_spec.type %}
      {{- json_to_python_type({"type": t}) }}
      {%- if not loop.last %}
        {{- "," }}
    {%- endif %}
    {%- endfor %}
    {{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}
{%- for tool in tools %}
{%- set tool = tool.function %}
{{'\ndef ' + tool.name + '(' }}
{%- for param_name, param_fields in tool.parameters.properties.items() %}
    {{- param_name }}{%- if param_name not in tool.parameters.required %}{{'?'}}{%- endif %}: {{ json_to_python_type(param_fields) if param_fields.type is string else 'Union' }}
    {%- if not loop.last %}{{- ", "}}{%- endif %}
{%- endfor %}
{{- ') -> List[Dict]:\n    """'}}{{ tool.description }}{{'"""\n    pass' }}
{%- endfor %}""",
    "gpt-oss": r"""{%- macro render_typescript_type(param_spec, required_params, is_nullable=false) -%}
    {%- if param_spec.type == "array" -%}
        {%- if param_spec['items'] -%}
            {%- if param_spec['items']['type'] == "string" -%}
                {{- "string[]" }}
            {%- elif param_spec['items']['type'] == "number" or param_spec['items']['type'] == "integer" -%}
                {{- "number[]" }}
            {%- else -%}
                {%- set inner_type = render_typescript_type(param_spec['items'], required_params) -%}
                {{- inner_type + "[]" }}
            {%- endif -%}
            {%- if param_spec.nullable -%}
                {{- " | null" }}
            {%- endif -%}
        {%- else -%}
            {{- "any[]" }}
        {%- endif -%}
    {%- elif param_spec.type is defined and param_spec.type is iterable and param_spec.type is not string and param_spec.type is not mapping and param_spec.type[0] is defined -%}
        {%- if param_spec.type | length > 1 -%}
            {{- param_spec.type | join(" | ") }}
        {%- else -%}
            {{- param_spec.type[0] }}
        {%- endif -%}
    {%- elif param_spec.oneOf -%}
        {{- "oneOf" }}
    {%- elif param_spec.type == "string" -%}
        {%- if param_spec.enum -%}
            {{- '"' + param_spec.enum|join('" | "') + '"' -}}
        {%- else -%}
            {{- "string" }}
        {%- endif -%}
    {%- else -%}
        {{- "any" }}
    {%- endif -%}
{%- endmacro -%}
{%- macro render_tool_namespace(namespace_name, tools) -%}
    {{- "## " + namespace_name + "\n\n" }}
    {{- "namespace " + namespace_name + " {\n\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + (tool.description or '') + "\n" }}
        {{- "type "+ tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: {\n" }}
            {%- for param_name, param_spec in tool.parameters.properties.items() %}
                {%- if param_spec.description %}
                    {{- "// " + param_spec.description + "\n" }}
                {%- endif %}
                {{- param_name }}
                {%- if param_name not in (tool.parameters.required or []) -%}
                    {{- "?" }}
                {%- endif -%}
                {{- ": " }}
                {{- render_typescript_type(param_spec, tool.parameters.required or []) }}
                {%- if param_spec.default is defined -%}
                    {%- if param_spec.enum %}
                        {{- ", // default: " + (param_spec.default | string) }}
                    {%- elif param_spec.oneOf %}
                        {{- "// default: " + param_spec.default }}
                    {%- else %}
                        {{- ", // default: " + param_spec.default|tojson }}
                    {%- endif -%}
                {%- endif -%}
                {%- if not loop.last %}
                    {{- ",\n" }}
                {%- else %}
                    {{- ",\n" }}
                {%- endif -%}
            {%- endfor %}
            {{- "}) => any;\n\n" }}
        {%- else -%}
            {{- "() => any;\n\n" }}
        {%- endif -%}
    {%- endfor %}
    {{- "} // namespace " + namespace_name }}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}
{{- render_tool_namespace("functions", tools) }}
{%- set loop_messages = messages[1:] %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "tool_calls" in message %}
            {%- set future_final_message = namespace(found=false) %}
            {%- for future_message in loop_messages[loop.index:] %}
                {%- if future_message.role == 'assistant' and "tool_calls" not in future_message %}
                    {%- set future_final_message.found = true %}
                {%- endif %}
            {%- endfor %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- "<|start|>assistant to=" }}
            {{- "functions." + tool_call.name + "<|channel|>commentary " }}
            {{- (tool_call.content_type if tool_call.content_type is defined else "json") + "<|message|>" }}
            {{- tool_call.arguments|tojson }}
            {{- "<|call|>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last_tool_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}
            {{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}
        {%- endif %}
        {{- "<|start|>functions." + last_tool_call.name }}
        {{- " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content | string + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}""",
    "Zephyr, with line breaks of Windows": "{% for message in talk %}\r\n{% if message['role'] == 'user' %}\r\n{{ '<|user|>\n' + message['content'] + eos_token }}\r\n{% elif message['role'] == 'system' %}\r\n{{ '<|system|>\n' + message['content'] + eos_token }}\r\n{% elif message['role'] == 'assistant' %}\r\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\r\n{% endif %}\r\n{% if loop.last and add_generation_prompt %}\r\n{{ '<|assistant|>' }}\r\n{% endif %}\r\n{% endfor %}",
    "Llama 2": r"""{% if talk[0]['role'] == 'system' %}{% set loop_messages = talk[1:] %}{% set system_message = talk[0]['content'] %}{% else %}{% set loop_messages = talk %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "OLMo 2": r"""{{ bos_token }}{% for message in talk %}{% if message['role'] == 'system' %}{{ '<|system|>
' + message['content'] + '
' }}{% elif message['role'] == 'user' %}{{ '<|user|>
' + message['content'] + '
' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>
'  + message['content'] + eos_token + '
' }}{% else %}{{ '<|assistant|>
'  + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>
' }}{% endif %}{% endfor %}""",
    "SmolLM3": r"""{%- set defaults = {"enable_thinking": true, "xml_tools": none} -%}
{%- set enable_thinking = enable_thinking if enable_thinking is defined else defaults.enable_thinking -%}
{%- set reasoning_mode = "/think" if enable_thinking else "/no_think" -%}
{%- set system_message = messages[0].content if messages[0].role == "system" else "" -%}
{%- if "/no_think" in system_message -%}{%- set reasoning_mode = "/no_think" -%}{%- endif -%}
{%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{{- "<|im_start|>system\n" -}}
{{- "## Metadata\n\nReasoning Mode: " + reasoning_mode + "\n\n" -}}
{%- if custom_instructions -%}{{- custom_instructions + "\n\n" -}}{%- endif -%}
{%- if tools -%}
{%- set ns = namespace(xml_tool_string="You may call functions.\n\n<tools>\n") -%}
{%- for tool in tools[:] -%}{%- set ns.xml_tool_string = ns.xml_tool_string ~ (tool | string) ~ "\n" -%}{%- endfor -%}
{%- set xml_tool_string = ns.xml_tool_string + "</tools>" -%}
{{- xml_tool_string + "\n\n" -}}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages[1:] -%}
{%- set content = message.content if message.content is string else "" -%}
{%- if message.role == "user" -%}
{{ "<|im_start|>user\n" + content + "<|im_end|>\n" }}
{%- elif message.role == "assistant" -%}
{% generation %}
{%- if reasoning_mode == "/think" -%}
{{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
{%- else -%}
{{ "<|im_start|>assistant\n<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}
{%- endif -%}
{% endgeneration %}
{%- elif message.role == "tool" -%}
{{ "<|im_start|>user\n" + content + "<|im_end|>\n" }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{%- if reasoning_mode == "/think" -%}{{ "<|im_start|>assistant\n" }}{%- else -%}{{ "<|im_start|>assistant\n<think>\n\n</think>\n" }}{%- endif -%}
{%- endif -%}""",
}


def rendered(template):
    """The text, or none where jinja2 refuses the template or what it does."""
    try:
        return _compile_jinja_template(template).render(**_plain_template_data(CONTEXT))
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, SyntaxError, AssertionError) as error:
        print(f"refused: {template[:70]!r}: {type(error).__name__}: {error}", file=sys.stderr)
        return None


cases, section = [], None
for line in EXPRESSIONS.strip().splitlines():
    if line.startswith("### "):
        section = line[4:]
        continue
    template, _, refusal = line.partition(" !! ")
    cases.append((section, template, refusal))
cases += [(name, template, "") for group in (LINES, MODELS) for name, template in group.items()]
cases = [
    {"name": name, "template": template, "rendered": None if refusal else rendered(template)} | ({"refused": refusal} if refusal else {})
    for name, template, refusal in cases
]
result = dict(jinja2=jinja2.__version__, transformers=transformers.__version__, context=CONTEXT, cases=cases)
print(json.dumps(result, indent=1, ensure_ascii=False))
