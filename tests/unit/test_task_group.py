"""Tasks of which the first that fails ends the others, and is raised as itself."""

from __future__ import annotations

import asyncio

import pytest

from wire.runtime.task_group import task_group


async def forever() -> None:
    await asyncio.Event().wait()


async def failing(after: asyncio.Event | None = None) -> None:
    if after is not None:
        await after.wait()
    raise ValueError("the first failure") from KeyError("its cause")


class TidyAfterwards:
    """Needs a turn of the event loop to clean up once it is cancelled, and may fail in it."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.started = asyncio.Event()
        self.tidied = False
        self._failure = failure

    async def run(self) -> None:
        self.started.set()
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            self.tidied = True
            if self._failure is not None:
                raise self._failure


@pytest.mark.parametrize("later", [None, OSError("a later failure")])
def test_the_first_failure_comes_out_as_itself_and_ends_the_others(later: Exception | None) -> None:
    async def main() -> None:
        tidy = TidyAfterwards(later)
        try:
            async with task_group() as group:
                for work in (tidy.run(), failing(tidy.started), forever()):
                    group.create_task(work)
        finally:
            assert tidy.tidied

    with pytest.raises(ValueError, match="the first failure") as raised:
        asyncio.run(main())
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_failure_of_an_inner_group_comes_out_as_itself() -> None:
    async def inner() -> None:
        async with task_group() as group:
            group.create_task(failing())

    async def main() -> None:
        async with task_group() as group:
            group.create_task(inner())
            group.create_task(forever())

    with pytest.raises(ValueError, match="the first failure"):
        asyncio.run(main())


def test_a_failure_of_the_block_ends_the_tasks() -> None:
    async def main() -> None:
        tidy = TidyAfterwards()
        try:
            async with task_group() as group:
                group.create_task(tidy.run())
                await tidy.started.wait()
                await failing()
        finally:
            assert tidy.tidied

    with pytest.raises(ValueError, match="the first failure"):
        asyncio.run(main())


def test_being_cancelled_cancels_the_tasks_and_waits_for_them() -> None:
    async def main() -> None:
        tidy = TidyAfterwards()

        async def work() -> None:
            async with task_group() as group:
                group.create_task(forever())
                group.create_task(tidy.run())

        working = asyncio.create_task(work())
        await tidy.started.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert tidy.tidied

    asyncio.run(main())
