"""Each message that a user can see has an entry under `docs/troubleshooting/`, word for word, and no entry is stale."""

from __future__ import annotations

import re

from support.docs.message_texts import TEXT_MODULES, Entry, Message, entries, explained, messages

# Errors whose texts are explained together, because no option, script or file of a user causes a single one of them.
FAMILIES = {
    "WireError": "bytes that the protocol or a file's format does not allow; workers.md, errors of Shoal itself",
    "ShoalError": "a broken invariant; workers.md, errors of Shoal itself",
    "ServerUnfit": "a server that lost track ends by itself and is replaced",
    "ServerRefused": "the answer to a worker that breaks the protocol; those that users can cause are in texts.py",
    "ExchangeFailed": "makes a step void and never reaches user code",
    "PeerLost": "the same; with torch.distributed, collectives.md, peers that are lost",
    "Aborted": "the same",
    "ReplicasDiffer": "the same; the screen shows the warning about parameters that differed",
    "MeetingCalled": "the same",
    "ParametersLost": "the same",
    "RelayLost": "the same, where workers exchange tensors by way of servers",
}
# Modules whose processes talk to each other only, below the package.
SIMULATED = ("plan/members/", "plan/served/", "plan/prediction.py")
SENTENCE_END = re.compile(r"[.?!](?=\s|$)")
# Texts that nobody meets by themselves, by their name or, if an error has no name of its own, by the text.
INTERNAL = {
    "shortened": "a mark where a long traceback was cut",
    "… is nothing that a server tells the keeper": "the answer to a process that breaks the protocol",
    "… is not for the keeper": "the answer to a process that breaks the protocol",
}


def needs_entry(message: Message) -> bool:
    if message.name in INTERNAL or message.text in INTERNAL or message.source.startswith(SIMULATED):
        return False
    return message.source.endswith(TEXT_MODULES) or message.name not in FAMILIES


def test_every_message_is_explained() -> None:
    known = explained()
    missing = [message for message in messages() if needs_entry(message) and message.text not in known]
    lines = "\n".join(
        f"  in docs/troubleshooting/{message.page} ({message.name} of {message.source}):\n"
        f"    {message.entry}<br>\n      CAUSE in one sentence. CURE in one sentence."
        for message in missing
    )
    assert not missing, f"add these entries, each in the section where a user would look:\n{lines}"


def test_every_entry_is_a_message() -> None:
    there = {message.text for message in messages()}
    stale = {text: page for text, page in explained().items() if text not in there}
    assert not stale, f"no message reads like this any more; mend or remove these entries: {stale}"


def test_every_entry_says_cause_and_cure() -> None:
    """An entry that only repeats its message helps nobody: one sentence for the cause, one for what to do."""
    bare = [f"{entry.page}: {entry.line}" for entry in entries() if sentences(entry) < 2]
    assert not bare, f"write at least two sentences below these entries, cause and cure: {bare}"


def sentences(entry: Entry) -> int:
    return len(SENTENCE_END.findall(re.sub(r"`[^`]*`", "code", entry.body)))
