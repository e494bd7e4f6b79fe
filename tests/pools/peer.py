"""One side of transfers in a process of its own: ``python -m tests.pools.peer send`` or ``receive``.

Commands are lines of JSON on standard input, what happens is lines of JSON on standard output.

    send:     {"transport", "address", "ticket", "frames"}  sends so many messages, or all if null, and waits for a line
    receive:  {"transport", "address", "epoch", "lease"}    until standard input has something, or ends
"""

import json
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any

from trimaran.pools.link import Link
from trimaran.pools.receiving import Admit, Again, Refusal
from trimaran.pools.sending import Sending
from trimaran.pools.ticket import open_ticket
from trimaran.pools.transfer import Answer, Frame, PageFrame
from trimaran.pools.transports import open_transport

from .transfers import KEY, Receiver, hello, sending, ticket, whole

TOKENS, ROOM = 3000, 4096  # 28 frames


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def commands() -> Any:
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def things() -> list[int]:
    return [len(list(Path("/proc/self/fd").iterdir())), threading.active_count()]


def send() -> None:
    before, command = things(), commands()
    link = open_transport(command["transport"], KEY).connect(command["address"], hello("sender"))
    machine = sending(open_ticket(bytes.fromhex(command["ticket"]), KEY), time.monotonic())
    messages = whole(machine, ROOM)
    first = len(messages) if command["frames"] is None else command["frames"]
    push(link, messages[:first], machine)
    say(sent=first)
    if first < len(messages):
        commands()
        push(link, messages[first:], machine)
    while not machine.over:
        hear(link, machine)
        select.select([link], [], [], 0.1)
    say(end=machine.state.value, cause=machine.cause, text=machine.failure)
    link.close()
    settle(before)


def push(link: Link, messages: list[tuple[Frame, Any]], machine: Sending) -> None:
    for message, data in messages:
        while not machine.over and not link.send(message, data):
            select.select([link], [], [], 0.1)
            hear(link, machine)


def hear(link: Link, machine: Sending) -> None:
    for arrival in link.receive():
        assert isinstance(arrival.message, Answer)
        machine.answer(arrival.message)
    if link.failure is not None:
        machine.abort("link", str(link.failure))
    machine.expire(time.monotonic())


def receive() -> None:
    before, command = things(), commands()
    engine = Receiver(epoch=command["epoch"])
    transport = open_transport(command["transport"], KEY)
    listener = transport.listen(hello("receiver", epoch=command["epoch"]), command["address"])
    of = ticket(TOKENS, epoch=command["epoch"], lease=command["lease"])
    engine.expect(of, time.monotonic())
    say(address=listener.address, ticket=of.seal(KEY).hex())
    links: dict[int, Link] = {}
    while sys.stdin not in select.select([sys.stdin, listener, *links.values()], [], [], 0.05)[0]:
        links |= {id(link): link for link in listener.accept()}
        for number, link in list(links.items()):
            take_all(engine, link, number)
            if link.failure is not None:
                for refused in engine.arrivals.broke(number, str(link.failure)):
                    say(failed=refused.cause, text=refused.text)
                links.pop(number).close()
        for refused, number in engine.arrivals.expire(time.monotonic()):
            say(failed=refused.cause, text=refused.text)
            if number in links:
                links[number].send(refused)
    say(open=len(engine.arrivals))
    for link in (*links.values(), listener):
        link.close()
    links.clear()
    settle(before)


def take_all(engine: Receiver, link: Link, number: int) -> None:
    for arrival in link.receive():
        message = arrival.message
        assert isinstance(message, Frame)
        outcome = engine.take(message, arrival.data, time.monotonic(), number)
        arrival.free()
        if isinstance(message, PageFrame) and message.number == 0:
            say(began=message.transfer)
        match outcome:
            case Admit(answer=answer, ticket=of):
                say(admitted=of.transfer, right=engine.right(of))
                link.send(answer)
            case Again(answer=again):
                link.send(again)
            case Refusal(answer=refused):
                say(failed=refused.cause, text=refused.text)
                link.send(refused)


def settle(before: list[int]) -> None:
    """Says what is left of descriptors and threads, once there is nothing or some time has passed."""
    until = time.monotonic() + 10
    while things() > before and time.monotonic() < until:
        time.sleep(0.01)
    say(left=[a - b for a, b in zip(things(), before, strict=True)])


if __name__ == "__main__":
    say(ready=True)
    {"send": send, "receive": receive}[sys.argv[1]]()
