"""What the parser refuses, in the user's words."""

import re


def explain(error: Exception, command: str) -> str:
    """One sentence for what the parser refuses; its own texts show Python's types."""
    text = " ".join(str(error).split())
    if wrong := re.search(r'Parser key "([^"]+)": (.*)(?:Got|Given) value: ?(.*)', text):
        return f"{wrong[1]} must be {_expected(wrong[2])}, not {wrong[3]!r}."
    if unknown := re.search(r"unrecognized arguments: (.+)|Option '(.+)' is not accepted", text):
        named = unknown[1] or unknown[2]
    elif unknown := re.search(r"Group '(.+)' does not accept option '(.+)'", text):
        named = f"{unknown[1]}.{unknown[2]}"
    else:
        return f"{text}; `candapt {command} --help` tells more."
    return f"{named!r} is not understood: `candapt {command} --help` lists what is."


def _expected(types: str) -> str:
    """Types as the parser's errors show them, in words."""
    named = {"<class 'int'>": "a whole number", "<class 'float'>": "a number", "<class 'bool'>": "true or false"}
    words = [word for kind, word in named.items() if kind in types]
    choices = [choice for listed in re.findall(r"Literal\[(.*?)\]", types) for choice in listed.split(", ")]
    return " or ".join([*words, *(choice.strip("'") for choice in choices)]) or "text"
