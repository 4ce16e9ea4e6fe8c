"""What transformers makes of templates that use what those of the hub use.

    python chat.py > chat.json     # transformers 5.23.0
"""

import json

import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template as compile_template

USER, SYSTEM, ASSISTANT = (dict(role=role) for role in ("user", "system", "assistant"))
TALK = [
    SYSTEM | dict(content="  Be brief, <b>bold</b> & 'quoted'. "),
    USER | dict(content="Who\nare you? ë 漢字 🙂"),
    ASSISTANT | dict(content="<think>\nhm\n</think>\n\nNobody."),
    USER | dict(content="Why?"),
]

TEMPLATES = {
    "namespaces, reversed lists, methods of texts": """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not message.content.startswith('<tool') %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + content + '(' + thought.strip().upper() + ')<|im_end|>\\n' }}
    {%- elif loop.index0 == ns.last or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content.replace('\\n', ' / ') + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "dates, JSON, mappings": """\
{{- bos_token }}
{%- if strftime_now is defined %}
    {%- set year = strftime_now("%Y") %}
{%- endif %}
{{- "years have " ~ year|length ~ " digits\\n" }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- system_message | tojson }}
{{- {"name": "f", "parameters": {"type": "object", "a<b": [1, 2.5, none, true]}} | tojson }}
{{- {"name": "f", "of": [1, "é"], "none": []} | tojson(indent=4) }}
{%- for message in messages %}
    {%- if message is mapping and not ('tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "blocks on lines of their own": """\
{% for message in messages %}
    {% if message['role'] == 'user' %}
[INST] {{ message['content'] }} [/INST]
    {% elif message['role'] == 'assistant' %}
{{ message['content'] }}{{ eos_token }}
    {% else %}
        {% continue %}
    {% endif %}
    {% if loop.last %}
        {% break %}
    {% endif %}
{% endfor %}
""",
    "macros, filters, joins": """\
{%- macro turn(role, text) -%}
{{ role | capitalize }}: {{ text | replace('\\n', ' ') }}
{%- endmacro -%}
{{ messages | map(attribute='role') | join(', ') }}
{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ turn(m.role, m.content) }}
{% endfor %}
{{- messages | length }}{{ ' many' if messages | length > 2 else ' few' }}{{ [1, 2, 3][-1] }}{{ "%s-%s" | format('a', 'b') }}
{{ messages[0].content.strip().split(' ')[0] }}{{ none is none }}{{ '' or 'nothing' }}{{ messages[1].get('name', 'nameless') }}
{%- for key, value in messages[3].items() %} {{ key }}={{ value }}{% endfor %}
""",
    "marks of what the model says": """\
{% for message in messages %}
    {% if message.role == "assistant" %}
        {% generation %}
{{ message.content }}
        {% endgeneration %}
    {% else %}
{{ message.content }}{%- generation -%} : {%- endgeneration %}
    {% endif %}
{% endfor %}
""",
}

SPECIAL = dict(bos_token="<s>", eos_token="</s>")

cases = []
for name, template in TEMPLATES.items():
    rendered = compile_template(template).render(messages=TALK, add_generation_prompt=True, **SPECIAL)
    cases.append(dict(name=name, template=template, rendered=rendered))
print(json.dumps(dict(transformers=transformers.__version__, special=SPECIAL, messages=TALK, cases=cases), indent=1, ensure_ascii=False))
