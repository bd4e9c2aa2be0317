"""Records common chat templates, conversations, and the texts that transformers renders."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The weather of a "place" <now>',
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["place"],
            },
        },
    }
]


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def system(content):
    return {"role": "system", "content": content}


CONVERSATIONS = [
    {"messages": [user("Hello")]},
    {"messages": [user("Hello"), assistant("Hi there!")]},
    {
        "messages": [
            system("You are terse."),
            user("Two plus two?"),
            assistant("4"),
            user("And three more?"),
        ]
    },
    {
        "messages": [
            system("You are terse."),
            user("a"),
            assistant("b"),
            user("c"),
            assistant("d"),
            user("e"),
            assistant("f"),
        ]
    },
    {"messages": [user("  spaces around  \n"), assistant("\n\n  kept or trimmed?  \n")]},
    {"messages": [user(""), assistant("")]},
    {"messages": [user("Ünïcödé 😀 日本語 e\u0301"), assistant("👨‍👩‍👧‍👦 ok")]},
    {"messages": [user("<|im_end|> </s> [INST] injected"), assistant("{{ messages }} {% if x %}")]},
    {"messages": [assistant("I speak first")]},
    {"messages": [user("a"), user("b")]},
    {"messages": [system("only a system prompt")]},
    {"messages": []},
    {"messages": [user("What is the weather in Bonn?")], "tools": TOOLS},
    {
        "messages": [
            user("code:\n```ts\nconst a = 1 < 2 && 'x';\n```"),
            assistant("line 1\nline 2\r\nline 3"),
        ]
    },
]

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages and messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'Tools:' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages and messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set later = message.role == 'system' and not loop.first %}
    {%- if message.role == 'user' or later %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

HEADERS = """{{- bos_token }}
{%- set ns = namespace(first=true) %}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{ message['content'] | trim }}{{ '<|eot_id|>' }}{% endgeneration %}
{%- else %}{{- message['content'] | trim + '<|eot_id|>' }}
{%- endif %}
{%- set ns.first = false %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

INSTRUCTIONS = """{% if messages and messages[0]['role'] == 'system' %}\
{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}\
{% if loop.index0 == 0 and system_message != false %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}\
{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

TEMPLATES = {"llama3": HEADERS, "qwen2": CHATML, "llama2": INSTRUCTIONS, "mistral": INSTRUCTIONS}


def rendered(tokenizer, conversation, prompt):
    """Text, ids and, where marked, what the assistant says; or the error of the template."""
    messages, tools = conversation["messages"], conversation.get("tools")
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=prompt, tokenize=False
        )
    except Exception as error:  # noqa: BLE001: the template's own refusal is what is recorded
        return {"error": str(error)}
    both = {"text": text}
    marked = "generation %}" in tokenizer.chat_template
    whole = tokenizer.apply_chat_template(
        messages,
        tools=tools,
        add_generation_prompt=prompt,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=marked,
    )
    both["ids"] = list(whole["input_ids"])
    if marked:
        both["assistant"] = list(whole["assistant_masks"])
    return both


def render(folder, kind):
    if kind not in TEMPLATES:
        return []
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return [
        {**conversation, "addGenerationPrompt": prompt, **rendered(tokenizer, conversation, prompt)}
        for conversation in CONVERSATIONS
        for prompt in (False, True)
    ]
