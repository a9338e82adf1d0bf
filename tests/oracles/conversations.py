#!/usr/bin/env python3
"""Write, or check, conversations/table.json: which text of a conversation the assistant wrote, by transformers.

  python conversations.py write            draw the conversations and write the table
  python conversations.py check            draw them again and compare
  python conversations.py write --seed N --each M
                                           write a larger one in its place, for a sweep of the test that reads it:
                                           cargo test --release -p crossweave-data --lib what_counts_is

Each conversations/NAME.jinja has the structure of published templates in few words, with `{% generation %}` around what
the assistant writes beyond its header. Without these tags, which touch no white space, it is a template like most
published ones. The table holds the conversations and, of each template that can write them, the places and texts that
the tags enclose, as `render_jinja_template` reports them; neighbours are joined, and empty ones are left out.
"""
import argparse
import glob
import json
import os
import random

from transformers.utils.chat_template_utils import render_jinja_template

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "conversations")
# What a template can write: a system message, calls, several calls in one message, arguments as a string,
# and roles in any order.
CAN = {
    "always-asks": "system free",
    "bare-calls": "calls several",
    "chatml": "system calls several strings free",
    "closes-later": "system calls several free",
    "command": "system calls several free",
    "deepseek-r1": "system calls several strings",
    "gemma": "free",
    "gpt-oss": "system calls",
    "llama2": "system",
    "llama3": "system free",
    "llama3-calls": "system calls",
    "metharme": "system free",
    "mistral": "",
    "mistral-calls": "system calls several strings free",
    "nemotron-nano": "system calls several",
    "not-last": "system free",
    "pairs": "",
    "phi3": "system free",
    "phi4-mini": "system calls several strings free",
    "qwen3": "system calls several strings free",
    "roles": "system free",
    "thinks-always": "system calls several strings free",
    "vicuna": "system",
    "zephyr": "system free",
}
WORDS = ["yes", "no", "q1", "a", "<b>x</b>", "<", "[1]", "é😀", "two\nlines", "user", "assistant:", "{}"]
BOS = EOS = "<|endoftext|>"


def words(draw):
    text = " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))
    return draw.choice(["{}", "{}", "{}", " {}", "{} ", "\n{}\n"]).format(text)


def thoughts(draw, message):
    if draw.random() < 0.3:
        message[draw.choice(["reasoning_content", "thinking", "reasoning"])] = words(draw)
        if draw.random() < 0.2:
            message["thinking"] = words(draw)


def conversation(draw, can):
    messages = []
    if "system" in can and draw.random() < 0.4:
        messages.append({"role": "system", "content": words(draw)})
    if "free" in can and draw.random() < 0.1:
        messages.append({"role": "assistant", "content": words(draw)})
    same = words(draw)
    for _ in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": draw.choice([same, words(draw), words(draw)])})
        while "calls" in can and draw.random() < 0.4:
            call = {"role": "assistant"}
            if (content := draw.choice([0, None, "", "Let me look.", words(draw)])) != 0:
                call["content"] = content
            if not content:
                thoughts(draw, call)
            count = draw.randint(1, 2) if "several" in can else 1
            call["tool_calls"] = []
            for _ in range(count):
                given = {draw.choice("abc"): draw.choice([1, -2.5, True, None, words(draw), [same, {}]]) for _ in range(2)}
                given = draw.choice([given, given, {}])
                if "strings" in can and draw.random() < 0.3:
                    given = json.dumps(given)
                name = draw.choice(["f", "get_time", "f"])
                key = "".join(draw.choices("abcXYZ019", k=9))
                call["tool_calls"].append({"type": "function", "id": key, "function": {"name": name, "arguments": given}})
            messages.append(call)
            for one in call["tool_calls"]:
                messages.append({"role": "tool", "tool_call_id": one["id"], "content": draw.choice(["1", words(draw)])})
        content = draw.choice([same, words(draw), words(draw), ""])
        if draw.random() < 0.15:
            content = f"<think>\n{words(draw)}\n</think>\n\n{words(draw)}"
        answer = {"role": "assistant", "content": content}
        if content and "think" not in content:
            thoughts(draw, answer)
        messages.append(answer)
    if draw.random() < 0.1:
        messages.pop()
    return {"messages": messages}


def rendered(template, line):
    """The text and the spans of it within generation blocks, as tokenizers call it: fields of null are left out."""
    messages = [{k: v for k, v in m.items() if v is not None} for m in line["messages"]]
    texts, spans = render_jinja_template(
        [messages], chat_template=template, return_assistant_tokens_mask=True, bos_token=BOS, eos_token=EOS
    )
    return texts[0], spans[0]


def said(template, line):
    """What the assistant wrote: where each run of it begins, in bytes, and its text."""
    text, spans = rendered(template, line)
    plain = template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    assert rendered(plain, line)[0] == text, "the tags change the text"
    mask = [False] * len(text)
    for start, end in spans:
        mask[start:end] = [True] * (end - start)
    runs, at = [], 0
    while at < len(text):
        end = at
        while end < len(text) and mask[end] == mask[at]:
            end += 1
        if mask[at]:
            runs.append([len(text[:at].encode()), text[at:end]])
        at = end
    return runs


def table(seed, each):
    names = sorted(os.path.basename(path)[:-6] for path in glob.glob(os.path.join(HERE, "*.jinja")))
    assert names == sorted(CAN), set(names) ^ set(CAN)
    lines, rows = [], {}
    for kind in sorted(set(CAN.values())):
        draw = random.Random(f"{seed} {kind}")
        some = [conversation(draw, kind.split()) for _ in range(each)]
        for name in (n for n in names if CAN[n] == kind):
            with open(os.path.join(HERE, name + ".jinja"), encoding="utf-8") as file:
                template = file.read()
            rows[name] = [[len(lines) + i, said(template, line)] for i, line in enumerate(some)]
        lines += some
    text = lambda value: json.dumps(value, ensure_ascii=False)
    lines = ",\n".join(text(text(line)) for line in lines)
    rows = ",\n".join(f"{text(name)}: [\n" + ",\n".join(map(text, some)) + "\n]" for name, some in rows.items())
    return f'{{"conversations": [\n{lines}\n],\n"rows": {{\n{rows}\n}}}}\n'


def main():
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("what", choices=["write", "check"])
    given.add_argument("--seed", default="1")
    given.add_argument("--each", type=int, default=12)
    given = given.parse_args()
    new = table(given.seed, given.each)
    if given.what == "write":
        with open(os.path.join(HERE, "table.json"), "w", encoding="utf-8") as file:
            file.write(new)
    else:
        with open(os.path.join(HERE, "table.json"), encoding="utf-8") as file:
            assert file.read() == new, "the table is not what the templates give"


if __name__ == "__main__":
    main()
