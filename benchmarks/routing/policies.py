"""Policies to compare with: those of other routers, from their descriptions, over the same simulated engines."""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Sequence

from benchmarks.routing.simulator import Engine, Request
from benchmarks.routing.workload import hashes


class RoundRobin:
    """One after the other."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._next = itertools.cycle(range(len(engines)))

    def choose(self, request: Request, now: float) -> int:
        return next(self._next)

    def first_token(self, request: Request, now: float) -> None:
        pass

    def ended(self, request: Request, now: float) -> None:
        pass


class Counting:
    """Base of policies that count their own requests per replica."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        #: The replicas that there are, by number.
        self.present: Sequence[int] = range(len(engines))
        self.requests = [0] * len(engines)
        self.prefilling = [0] * len(engines)
        self._turns = itertools.count(1)
        self._last = [0] * len(engines)

    def choose(self, request: Request, now: float) -> int:
        replica = self.pick(request, now)
        self.requests[replica] += 1
        self.prefilling[replica] += request.turn.prompt_tokens
        self._last[replica] = next(self._turns)
        return replica

    def pick(self, request: Request, now: float) -> int:
        return min(self.present, key=self.order)

    def follow(self, replicas: Sequence[int], now: float) -> None:
        self.present = replicas

    def order(self, replica: int) -> tuple[int, int]:
        return self.requests[replica], self._last[replica]

    def first_token(self, request: Request, now: float) -> None:
        self.prefilling[request.replica] -= request.turn.prompt_tokens

    def ended(self, request: Request, now: float) -> None:
        self.requests[request.replica] -= 1


class LeastLoaded(Counting):
    """Fewest requests in flight; of equals the one that received none for longest."""


class SessionHash(Counting):
    """The same replica for the same session, or for the same beginning of a prompt without one."""

    def pick(self, request: Request, now: float) -> int:
        name = request.conversation.session or repr(request.turn.blocks[:2]).encode()
        place = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) % len(self.present)
        return self.present[place]


class Exact(Counting):
    """Base of policies that know what each engine holds, from its events."""

    def matches(self, request: Request) -> list[int]:
        """Return the matching tokens per replica, as a view that is a step old has them."""
        turn = request.turn
        size = self.engines[0].scheduler.block_size
        keys = hashes(turn.blocks[: (turn.prompt_tokens - 1) // size])
        return [len(engine.scheduler.pool.match(keys)) * size for engine in self.engines]


class LongestPrefix(Exact):
    """The longest match, however loaded; fewest requests among equals."""

    def pick(self, request: Request, now: float) -> int:
        found = self.matches(request)
        return min(self.present, key=lambda each: (-found[each], *self.order(each)))


class LMetric(Exact):
    """New prefill tokens times the batch (arXiv 2603.15202)."""

    def pick(self, request: Request, now: float) -> int:
        found = self.matches(request)
        new = [request.turn.prompt_tokens - match for match in found]
        return min(
            self.present,
            key=lambda each: ((self._pending(each) + new[each]) * (self.requests[each] + 1), *self.order(each)),
        )

    def _pending(self, replica: int) -> int:
        waiting = (each for each in self.engines[replica].requests if not each.emitted)
        return sum(each.prompt_tokens - each.cached_tokens for each in waiting)


class Dynamo(Exact):
    """Prefill blocks left and new, plus decode blocks (its default cost)."""

    def pick(self, request: Request, now: float) -> int:
        found = self.matches(request)
        size = self.engines[0].scheduler.block_size

        def cost(replica: int) -> float:
            sequences = self.engines[replica].requests
            prefill = sum(each.prompt_tokens - each.computed for each in sequences if not each.emitted)
            decode = sum(each.prompt_tokens + each.emitted for each in sequences if each.emitted)
            return (prefill + request.turn.prompt_tokens - found[replica] + decode) / size

        return min(self.present, key=lambda each: (cost(each), *self.order(each)))


class LlmD(Exact):
    """Scores 3 prefix, 2 queue, 2 cache use."""

    def pick(self, request: Request, now: float) -> int:
        found = self.matches(request)
        queues = {each: len(self.engines[each].scheduler.waiting) for each in self.present}
        low, high = min(queues.values()), max(queues.values())

        def score(replica: int) -> float:
            prefix = found[replica] / request.turn.prompt_tokens
            queue = 1.0 if high == low else (high - queues[replica]) / (high - low)
            return 3 * prefix + 2 * queue + 2 * (1 - self.engines[replica].scheduler.pool.usage)

        return min(self.present, key=lambda each: (-score(each), *self.order(each)))


class KvAware(Exact):
    """vllm-router's ``kv_aware``: the best match, fewest requests in flight without one, load when far apart."""

    def pick(self, request: Request, now: float) -> int:
        found = self.matches(request)
        requests = [self.requests[each] for each in self.present]
        best = max(found[each] for each in self.present)
        if not best or (max(requests) - min(requests) > 32 and max(requests) > 1.1 * min(requests)):
            return min(self.present, key=self.order)
        return min((each for each in self.present if found[each] == best), key=self.order)


class CacheAware(Counting):
    """sglang-router's ``cache_aware``: a tree of what was sent, a share that must match, a bound on the spread."""

    def __init__(self, engines: Sequence[Engine], *, capacity: int = 100_000) -> None:
        super().__init__(engines)
        self._sent: list[OrderedDict[int, None]] = [OrderedDict() for _ in engines]
        self._capacity = capacity

    def pick(self, request: Request, now: float) -> int:
        replica = self._pick(request)
        sent = self._sent[replica]
        for key in request.turn.blocks:
            sent[key] = None
            sent.move_to_end(key)
        while len(sent) > self._capacity:
            sent.popitem(last=False)
        return replica

    def _pick(self, request: Request) -> int:
        requests = [self.requests[each] for each in self.present]
        most, least = max(requests), min(requests)
        if most - least > 32 and most > 1.1 * least:
            return min(self.present, key=self.order)
        keys = request.turn.blocks
        depths = [sum(1 for _ in itertools.takewhile(sent.__contains__, keys)) for sent in self._sent]
        best = max(self.present, key=lambda each: depths[each])
        if keys and depths[best] / len(keys) > 0.5:
            return best
        return min(self.present, key=lambda each: len(self._sent[each]))
