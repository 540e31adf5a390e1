"""A publisher on a slow, lossy link: what it writes waits in its host's send buffer, while answers come in.

The publisher writes ahead as fast as its buffer takes it. Bytes leave the buffer one message after the other. Each
packet acknowledges all that has arrived when it leaves, also if its bytes were written long before. Packets that are
lost on their way to the tap are sent again, and nobody saw their first sending. The publisher reacts to what it has
read as it should, but what it has written can't be taken back. Nobody breaks a rule.
"""

from __future__ import annotations

from collections import deque
from random import Random

from tests.support.hiero_wire import MS, NODE, Network

_FIRST = 90
_PARTS = ("header", "items", "proof")


class SlowLink:
    """A publisher, its node, and their link, as `seed` selects them."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"hiero slow link {seed}")
        self.net = Network(random.choice(("A", "B", "B")))
        self.new = self.net.profile == "B"
        self.last = _FIRST + 10
        self.net.publisher("N9").block(self.last).ack(self.last).leave(self.last)
        self.net.wait(3000)
        self.line = self.net.line("10.1.0.1", NODE)
        self.line.round_trip_ns = random.choice((1, 20, 90, 300)) * MS
        #: How long a message takes on the link, how many fit into the buffer, and what is lost.
        self.message_ms = random.choice((5, 60, 200))
        self.buffer = random.choice((2, 10, 40))
        self.loss = random.choice((0.0, 0.0, 0.05, 0.2))
        #: What was written and hasn't left.
        self.queue: deque[tuple[str, int]] = deque()
        #: What the node said: when, on which call, what, which block.
        self.inbox: deque[tuple[int, int, str, int]] = deque()
        #: Calls that were written, and those that have left.
        self.written = self.calls = 0
        self.left = random.randint(20, 80)
        self._open(random.choice((self.last + 1, self.last + 1, self.last + 4, self.last - 3)))
        self._run()
        self.net.close()

    # The publisher

    def _open(self, number: int) -> None:
        """Write a call that begins with block `number`."""
        self.queue.append(("open", 0))
        self.written += 1
        self._restart(number)
        self.restarted = 0

    def _restart(self, number: int) -> None:
        self.writes, self.part = number, 0

    def _write(self) -> None:
        """The next message goes into the buffer, if the publisher has more to say."""
        if not (self.left or self.part):
            return
        self.left = max(self.left - 1, 0)
        self.queue.append((_PARTS[self.part], self.writes))
        self.part = (self.part + 1) % len(_PARTS)
        self.writes += not self.part

    def _read(self) -> None:
        """React to what has arrived."""
        before = self.net.now_ns - self.line.round_trip_ns - self.random.choice((0, 0, 30)) * MS
        while self.inbox and self.inbox[0][0] <= before:
            _, call, what, number = self.inbox.popleft()
            if call != self.written:
                continue
            if what == "behind" and self.restarted != number + 1:
                self._restart(number + 1)
                self.restarted = number + 1
            elif what == "end" or (what == "duplicate" and self.new):
                self.queue.append(("half_close", 0))
                self._open(number + 1)
            elif (what == "duplicate" and self.writes <= number) or (what == "skip" and self.writes <= number):
                self._restart(number + 1)
            elif what == "resend":
                self._restart(number)

    # The link

    def _run(self) -> None:
        ended = False
        while not ended:
            self.net.wait(self.random.uniform(0.5, 1.5) * self.message_ms)
            if self.random.random() < self.loss:
                # The packet is lost, and sent again.
                self.net.wait(self.random.choice((210, 400, 600)))
            self._read()
            while len(self.queue) < self.buffer and (self.left or self.part):
                self._write()
            if self.queue:
                self._send(*self.queue.popleft())
            elif not self.inbox:
                ended = True
        self._settle()
        if self.open:
            self.call.wait(1000).leave(self.last, "TOO_FAR_BEHIND" if self.is_behind else "RESET")

    def _send(self, what: str, number: int) -> None:
        if what == "open":
            self.call = self.net.publisher("N1", NODE, self.line)
            self.calls += 1
            self.open, self.is_behind, self.comes, self.skipped = True, False, 0, 0
            return
        if what == "half_close":
            self.call.half_close()
            return
        getattr(self.call, what)(number)
        if self.open:
            self._settle()
            self._answer(what, number)

    # The node

    def _say(self, what: str, number: int) -> None:
        self.inbox.append((self.net.now_ns + MS, self.calls, what, number))
        self.is_behind = what == "behind"
        if what == "end":
            self.call.end("SUCCESS", number).trailers()
        else:
            getattr(self.call, what)(number)
        self.open = self.open and what != "end" and not (what == "duplicate" and self.new)

    def _settle(self) -> None:
        """Another publisher has sent the skipped block, or has failed to."""
        number, self.skipped = self.skipped, 0
        if not number or not self.open:
            return
        if self.random.randrange(2):
            self.last = number
            self._say("ack", number)
        else:
            self._say("resend", number)

    def _answer(self, what: str, number: int) -> None:
        random = self.random
        if what == "header":
            self.comes = 0
            if number > self.last + 1:
                self._say("behind", self.last)
            elif number <= self.last:
                self._say("duplicate", self.last)
            elif self.new and not random.randrange(4):
                self._say("skip", number)
                self.skipped = number
            elif not random.randrange(8):
                self._say("end", self.last)
            else:
                self.comes = number
        elif what == "proof" and self.comes == number:
            self.last, self.comes = number, 0
            self._say("ack", number)
