"""The queue: clients in turn, each first come, first served; bounded; nobody is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from edgespec.server.errors import ApiError
from edgespec.server.request_queue import RequestQueue

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Callers:
    """Tasks that acquire the engine, note it, and hold it until they are told to go.

    The first letter of a name is the client's; all numbers are of one client. stays: the names of
    those whose response begins as soon as they have a place.
    """

    def __init__(self, queue: RequestQueue, *stays: str) -> None:
        self.queue = queue
        self.stays = stays
        self.begun: set[int | str] = set()
        self.order: list[int | str] = []
        self.leave: dict[int | str, asyncio.Event] = {}

    async def call(self, name: int | str) -> None:
        self.leave[name] = asyncio.Event()
        admitted = (lambda: self.begun.add(name)) if name in self.stays else None
        async with self.queue.acquire(name[0] if isinstance(name, str) else "", admitted):
            self.order.append(name)
            await self.leave[name].wait()

    async def start(self, name: int | str) -> asyncio.Task:
        task = asyncio.create_task(self.call(name))
        await settle()
        return task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_first_come_first_served():
    callers = Callers(RequestQueue(8))
    tasks = [await callers.start(i) for i in range(5)]
    assert callers.order == [0]
    assert (callers.queue.n_running, callers.queue.n_waiting) == (1, 4)
    for i in range(5):
        callers.leave[i].set()
        await settle()
    await asyncio.gather(*tasks)
    assert callers.order == [0, 1, 2, 3, 4]
    assert (callers.queue.n_running, callers.queue.n_waiting) == (0, 0)


async def test_who_arrives_while_the_engine_changes_hands_does_not_jump_the_queue():
    callers = Callers(RequestQueue(8))
    await callers.start(0)
    second = await callers.start(1)
    callers.leave[0].set()
    third = asyncio.create_task(callers.call(2))  # before 1 has noticed that it may run
    await settle()
    assert callers.order == [0, 1]
    callers.leave[1].set()
    await settle()
    callers.leave[2].set()
    await asyncio.gather(second, third)


async def test_a_full_queue_says_when_to_come_again():
    callers = Callers(RequestQueue(1))
    await callers.start(0)
    waiting = await callers.start(1)
    with pytest.raises(ApiError) as refused:
        await callers.call(2)
    assert refused.value.status == 429
    assert int(refused.value.headers["Retry-After"]) >= 1
    assert refused.value.code == "queue_full"
    waiting.cancel()
    await settle()
    last = await callers.start(3)
    callers.leave[0].set()
    await settle()
    assert callers.order == [0, 3]
    callers.leave[3].set()
    await last


async def test_without_a_queue_only_a_free_engine_answers():
    callers = Callers(RequestQueue(0))
    first = await callers.start(0)
    with pytest.raises(ApiError):
        await callers.call(1)
    callers.leave[0].set()
    await first
    await callers.start(2)
    assert callers.order == [0, 2]
    callers.leave[2].set()
    await settle()


async def test_an_engine_handed_to_a_cancelled_task_goes_to_the_next():
    callers = Callers(RequestQueue(8))
    await callers.start(0)
    second, third = await callers.start(1), await callers.start(2)
    callers.leave[0].set()
    while callers.queue.n_waiting == 2:  # until the engine was handed to 1 …
        await asyncio.sleep(0)
    second.cancel()  # … which has not run since
    await settle()
    assert second.cancelled()
    assert callers.order == [0, 2]
    callers.leave[2].set()
    await third
    assert callers.queue.n_running == 0


async def test_after_a_failure_the_next_request_runs():
    queue = RequestQueue(8)
    with pytest.raises(RuntimeError):
        async with queue.acquire():
            raise RuntimeError
    async with queue.acquire():
        assert queue.n_running == 1


async def test_closing_sends_those_away_who_wait_and_those_who_come():
    callers = Callers(RequestQueue(8))
    running, waiting = await callers.start(0), await callers.start(1)
    callers.queue.close()
    with pytest.raises(ApiError) as refused:
        await waiting
    assert refused.value.status == 503
    with pytest.raises(ApiError):
        await callers.call(2)
    assert callers.queue.n_running == 1
    callers.leave[0].set()
    await running
    assert callers.queue.closed


async def test_clients_take_turns():
    callers = Callers(RequestQueue(8))
    names = ["a1", "a2", "a3", "b1", "a4", "b2", "c1"]
    tasks = [await callers.start(name) for name in names]
    for _ in names:
        callers.leave[callers.order[-1]].set()
        await settle()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert callers.order == ["a1", "b1", "a2", "c1", "b2", "a3", "a4"]


async def test_a_busy_client_does_not_keep_others_out_of_a_full_queue():
    callers = Callers(RequestQueue(3))
    tasks = [await callers.start(name) for name in ("a1", "a2", "a3", "a4")]
    tasks += [await callers.start(name) for name in ("b1", "b2")]
    for refused in tasks[2:4]:
        assert refused.exception().status == 429
    assert callers.queue.n_waiting == 3
    for name in ("a5", "b3"):  # nobody has two more than they
        with pytest.raises(ApiError):
            await callers.call(name)
    tasks[4].cancel()
    await settle()
    tasks.append(await callers.start("c1"))
    for _ in range(4):
        callers.leave[callers.order[-1]].set()
        await settle()
    assert callers.order == ["a1", "b2", "a2", "c1"]
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)


async def test_what_has_begun_keeps_its_place_and_others_still_come_in():
    callers = Callers(RequestQueue(2), "a1", "a2", "a3", "b2")
    tasks = [await callers.start(name) for name in ("a1", "a2", "a3")]
    assert callers.begun == {"a1", "a2", "a3"}
    tasks.append(await callers.start("b1"))  # none of client a's can be refused for it
    assert callers.queue.n_waiting == 3
    tasks.append(await callers.start("c1"))
    assert callers.queue.n_waiting == 4
    for name in ("a4", "b2", "d1"):  # nobody has two more than they, or it is twice its size
        with pytest.raises(ApiError):
            await callers.call(name)
    assert "b2" not in callers.begun
    for _ in range(5):
        callers.leave[callers.order[-1]].set()
        await settle()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert callers.order == ["a1", "b1", "a2", "c1", "a3"]
    assert (callers.queue.n_running, callers.queue.n_waiting) == (0, 0)


async def test_who_has_not_begun_is_refused_before_the_queue_grows():
    callers = Callers(RequestQueue(3), "a1", "a2", "a4")
    tasks = [await callers.start(name) for name in ("a1", "a2", "a3", "a4", "b1")]
    assert callers.queue.n_waiting == 3
    assert tasks[2].exception().status == 429
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (callers.queue.n_running, callers.queue.n_waiting) == (0, 0)


async def test_as_many_run_as_there_are_slots():
    callers = Callers(RequestQueue(8, 3))
    tasks = [await callers.start(i) for i in range(5)]
    assert callers.order == [0, 1, 2]
    assert (callers.queue.n_running, callers.queue.n_waiting) == (3, 2)
    callers.leave[1].set()
    await settle()
    assert callers.order == [0, 1, 2, 3]
    for i in (0, 2, 3):
        callers.leave[i].set()
    await settle()
    callers.leave[4].set()
    await asyncio.gather(*tasks)
    assert (callers.queue.n_running, callers.queue.n_waiting) == (0, 0)


async def test_a_free_slot_goes_to_the_client_with_the_fewest_running_requests():
    callers = Callers(RequestQueue(16, 3))
    names = ["a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1"]
    tasks = [await callers.start(name) for name in names]
    for name in ("a1", "a2", "a3", "b1", "c1"):
        callers.leave[name].set()
        await settle()
    # b, then c; then b again or a, whoever has fewer running
    assert callers.order == ["a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"]
    for name in ("a4", "b2", "a5"):
        callers.leave[name].set()
    await asyncio.gather(*tasks)


class Replacing(Callers):
    """Callers of which each has the owner that its first letter names. cancelled: who was ended."""

    def __init__(self, queue):
        super().__init__(queue)
        self.ended = []

    async def call(self, name, on_busy="wait"):
        self.leave[name] = asyncio.Event()
        async with self.queue.acquire(name[0], owner=name[0], on_busy=on_busy) as place:
            place.cancel = lambda: (self.ended.append(name), self.leave[name].set())
            self.order.append(name)
            await self.leave[name].wait()
            return place.is_replaced

    async def start(self, name, on_busy="wait"):
        task = asyncio.create_task(self.call(name, on_busy))
        await settle()
        return task


async def test_a_request_takes_over_the_slot_of_its_owners_oldest_one():
    callers = Replacing(RequestQueue(1, 2))
    first, other = await callers.start("a1"), await callers.start("b1")
    waiting = await callers.start("c1")
    second = await callers.start("a2", "replace")  # although the queue is full
    assert await first
    assert (callers.ended, callers.order) == (["a1"], ["a1", "b1", "a2"])
    third = await callers.start("a3", "replace")
    assert callers.order[-1] == "a3"
    assert callers.ended == ["a1", "a2"]
    for name in ("b1", "a3"):
        callers.leave[name].set()
        await settle()
    callers.leave["c1"].set()
    assert await asyncio.gather(second, other, third, waiting) == [True, False, False, False]


async def test_who_has_nothing_to_replace_waits_and_who_wants_no_wait_is_refused():
    callers = Replacing(RequestQueue(1))
    first = await callers.start("a1")
    with pytest.raises(ApiError, match="all slots are busy") as refused:
        await callers.call("b1", "error")
    assert (refused.value.status, refused.value.code) == (429, "busy")
    second = await callers.start("b2", "replace")
    assert not callers.ended
    callers.leave["a1"].set()
    await settle()
    callers.leave["b2"].set()
    await asyncio.gather(first, second)
    last = await callers.start("b3", "error")
    assert callers.order[-1] == "b3"
    callers.leave["b3"].set()
    await last


@pytest.mark.parametrize("closes", [False, True])
async def test_a_request_that_replaces_may_end_before_its_turn(closes):
    queue = RequestQueue(8)
    callers = Replacing(queue)

    async def stubborn():
        async with queue.acquire("a", owner="a"):
            await gate.wait()

    gate = asyncio.Event()
    first = asyncio.create_task(stubborn())
    await settle()
    replacing, next_one = await callers.start("a2", "replace"), None
    assert queue.n_waiting == 1
    if closes:
        queue.close()
    else:
        next_one = await callers.start("c1")
        replacing.cancel()
    await asyncio.wait([replacing])
    assert queue.n_waiting == (0 if closes else 1)
    assert replacing.cancelled() or replacing.exception().status == 503
    gate.set()
    await first
    await settle()
    if next_one:
        assert callers.order == ["c1"]
        callers.leave["c1"].set()
        await next_one
    assert (queue.n_running, queue.n_waiting) == (0, 0)


async def test_one_more_slot_for_a_request_is_not_refused_by_a_full_queue():
    queue = RequestQueue(0, 2)
    got = []

    async def more():
        async with queue.acquire("a", is_more=True):
            got.append(True)

    async with queue.acquire("a"):
        async with queue.acquire("b"):
            task = asyncio.create_task(more())
            await settle()
            assert not got
        await task
    assert got


async def test_of_two_requests_that_replace_the_same_one_both_have_their_turn():
    queue, gate = RequestQueue(8), asyncio.Event()
    callers = Replacing(queue)

    async def stubborn():
        async with queue.acquire("a", owner="a"):
            await gate.wait()

    first = asyncio.create_task(stubborn())
    await settle()
    tasks = [await callers.start(name, "replace") for name in ("a1", "a2")]
    gate.set()
    await first
    for name in ("a1", "a2"):
        await settle()
        callers.leave[name].set()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert callers.order == ["a1", "a2"]
